"""Plans and runs the stage `evidence` of a judged variant, from the records of its run.

A promotion calls :func:`evidence_stage` for each variant, runs it, and registers its `output/`,
which has the quantized weights.
"""

from __future__ import annotations

from artifacts.command_line import command_line
from artifacts.evidence.recompute import claims_of
from artifacts.run_record import RunReport
from artifacts.verdict_inputs import VerdictInputs, collect_stages
from pipeline.checkpoint.source_info import find_source
from pipeline.core.digest import digest_json
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.release.signer import Signer
from pipeline.release.stages.evidence import (
    EVIDENCE,
    JUDGE_OF,
    EvidenceParameters,
    EvidenceRuntime,
)
from pipeline.stages.context import execute


def write_evidence(
    run: RunReport,
    recipe: str,
    store: Store,
    progress: Progress,
    *,
    override: str | None = None,
    name: str | None = None,
    signer: Signer | None = None,
) -> StageRecord:
    """Make the folder to deploy for one judged variant, `output/` of the stage, or reuse it.

    Raises:
        EvidenceError: a stage that the verdict depends on is missing, or the weights changed since.
        UsageError: the variant was not judged.
    """
    spec = evidence_stage(run, recipe, store, override=override, name=name, signer=signer)
    return execute(spec, progress)


def evidence_stage(
    run: RunReport,
    recipe: str,
    store: Store,
    *,
    override: str | None = None,
    name: str | None = None,
    signer: Signer | None = None,
) -> StageSpec:
    """Return the stage `evidence` of one variant; its key depends on all that it depends on.

    `override` is the reason for promoting it without a pass. Without `name` it has the run's. With
    a signer, only a process that can read the private key may run the stage.

    Raises:
        EvidenceError: a stage that the verdict depends on is gone from the store.
        UsageError: the variant was not judged.
    """
    claims = claims_of(run)
    if recipe not in claims.judges or run.checkpoint is None:
        raise UsageError(
            f"run {run.run} did not judge '{recipe}', so there is no evidence to bundle",
            hint=f"judged were: {', '.join(claims.judges) or 'none'}",
        )
    judged = VerdictInputs.load_by_key(store.find, claims.judges[recipe])
    inputs = {
        "weights": judged.quantize.record.as_reference(),
        "check_weights": judged.check_weights.record.as_reference(),
        **{
            JUDGE_OF + each: StageReference(stage="judge", key=key)
            for each, key in claims.judges.items()
        },
    }
    outcomes = {
        v.recipe: v.verdict
        for v in claims.variants
        if v.recipe not in claims.judges and v.verdict not in ("pass", "undecided")
    }
    tried = sorted(claims.tried)
    source = run.checkpoint.source or find_source(run.checkpoint.ref, run.checkpoint.digest, None)
    return EVIDENCE.spec(
        recipe,
        EvidenceParameters(
            recipe=recipe,
            override=override,
            name=name or run.registered_name or recipe,
            profile=run.options.profile or "",
            policy=run.options.policy or "",
            source=source,
            attempted=tried,
            unjudged=outcomes,
            # Versions point to the folder: what came out otherwise another time has another.
            depends_on=digest_json(
                [
                    [r.stage, r.key, r.result]
                    for r in collect_stages(store.find, list(inputs.values()))
                ]
            ),
            signer=signer.fingerprint if signer else None,
        ),
        inputs,
        EvidenceRuntime(
            run=run.run,
            command=command_line(run.kind, run.command, public=True),
            private_key=signer.private_key if signer else None,
        ),
        store.root,
    )
