"""`prepare recheck`: judges a registered version on the present deployable tuple.

If no member of the tuple has changed, nothing is measured. Kernels are compared only if a server is
started. Else the evidence gives the request: policy, profile, and source as baseline. The outcome
is a tag of the version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.deploy.recheck_record import RecheckRecord, rechecks_of, record_of, stands
from artifacts.deploy.registered import (
    RegisteredVersion,
    checked_folder,
    find_version,
    open_version,
)
from artifacts.deployable import Deployable, TupleDifference
from artifacts.registry import Registry, Version
from artifacts.requests import ModelRequest, RecheckRequest
from artifacts.run_record import RunReport, VariantReport, exit_code_of
from pipeline.environments.environment import Accelerator, ensure, identity
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import served_profile
from pipeline.plan.checkpoint_resolver import Located, Locator
from pipeline.plan.model_plan import make_planner
from pipeline.plan.plan import Plan
from pipeline.plan.progress import PlanProgress
from pipeline.plan.resolved_options import Choice, find_gates, registry_uri
from pipeline.plan.serving_profile import check_processor, choose_profile, refuse_unfit
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.preflight.machine import find_missing_gpus, machine_of
from pipeline.run.model import check_early
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.run.work import carry_out
from pipeline.serving.argument_check import engine_version
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.adopt import ADOPT, AdoptParameters, AdoptRuntime
from pipeline.stages.evidence import Evidence
from prepare.errors import CheckpointError, ExitCode, UsageError
from prepare.events import Progress
from prepare.hardware import NodeInfo, this_node
from prepare.own_command import own_command
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import parse_reference
from recipes.checkpoints.source_info import describe_source
from recipes.engines import find_engine
from recipes.schema import ServingProfile


@dataclass(frozen=True)
class RecheckOutcome:
    """What a recheck found."""

    past: RegisteredVersion  # the version with its verdict
    changed: tuple[TupleDifference, ...]
    report: RunReport | None = None  # None if nothing had to be measured
    refuted: RecheckRecord | None = None  # an earlier recheck of this very tuple that failed

    @property
    def now(self) -> VariantReport | None:
        """The new verdict, if there is one."""
        return self.report.variants[0] if self.report and self.report.variants else None

    @property
    def stands(self) -> bool | None:
        """Whether the version's verdict holds; None if unknown."""
        if self.report is None:
            return self.refuted is None
        return stands(self.past.bundle.variant.verdict, self.now.verdict) if self.now else None

    @property
    def run(self) -> str | None:
        record = self.report or self.refuted
        return record.run if record else None

    @property
    def exit_code(self) -> int:
        if self.report is None:
            return exit_code_of([self.refuted.verdict]) if self.refuted else ExitCode.SUCCESS
        code = self.report.exit_code
        return ExitCode.UNEXPECTED if code is None else code

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "name": self.past.version.name,
            "version": self.past.version.version,
            "recipe": self.past.bundle.recipe,
            "changed": [vars(change) for change in self.changed],
            "measured": self.report is not None,
            "stands": self.stands,
            "exit_code": self.exit_code,
            "then": self.past.bundle.variant.model_dump(mode="json"),
            "now": self.now.model_dump(mode="json") if self.now else None,
            "run": self.run,
            "error": self.report.error if self.report else None,
        }


def run_recheck(request: RecheckRequest, settings: Settings, progress: Progress) -> RecheckOutcome:
    """Compare, and measure if something changed; the report has a measurement's error.

    PrepareError: version, files or evidence are unavailable or invalid, or the machine is
    unsuitable.
    """
    registry = Registry(registry_uri(request.registry, settings))
    version = find_version(registry, request.reference)
    folder = checked_folder(version, request.weights, settings, "recheck")
    past = open_version(version, folder, trust_remote_code=request.trust_remote_code)
    node = this_node()
    profile = _profile(request, past, node, settings.store)
    accelerator = Accelerator(profile.accelerator)

    def made(spec: StageSpec) -> Path:  # nothing is made before a change is known
        store = settings.open_store()
        if store.find(spec.stage, spec.key) is None:
            raise UsageError(
                "the demo that drafts is not made yet",
                where="key speculative.model",
                hint="`prepare model` with this profile makes it",
            )
        return store.stage_folder(spec.stage, spec.key) / "output"

    known = Checkpoints()
    draft = Locator(profile, settings, made, progress, known, request.trust_remote_code).draft()
    serve = ensure(find_engine(profile.engine).environment, accelerator, settings, progress)
    here = past.deployable.model_copy(
        update={
            "engine_version": engine_version(profile.engine, serve.python),
            "serve_environment": serve.identity,
            "evaluate_environment": identity("evaluate", accelerator, settings),
            "serving": ServingArguments.of(
                profile, is_baseline=False, draft=draft.digest if draft else None
            ),
            "hardware": node.hardware(profile.accelerator),
        }
    )
    changed = past.deployable.differences(here)
    gates = frozenset(find_gates(request.remeasure, past.policy, profile.accelerator))
    if not changed and not request.force and not gates:
        of_this = [
            recheck for recheck in rechecks_of(version) if recheck.tuple_digest == here.digest
        ]
        refuted = next((recheck for recheck in of_this if not recheck.stands), None)
        return RecheckOutcome(past, (), refuted=refuted)
    for change in changed:
        progress.note(f"changed: {change}")
    if request.force:
        speed = past.policy.speed
        gates = frozenset([*past.policy.suites, *(speed.tiers if speed is not None else ())])
    choices = replace(_choices(request, past, profile, node), checkpoints=known)
    asked = replace(
        request, reference=f"{version.name}@{version.version}", eval_data=choices.eval_data
    )
    resolved = choices.resolved().model_copy(
        update={
            "attempted": past.bundle.attempted,
            "changed": tuple(map(str, changed)),
        }
    )
    run = Run(asked, resolved, accelerator, settings, progress)

    with run:
        plan = _plan(choices, past, draft, gates, run)
        carry_out(Servers(run), PlanProgress(plan, run.store))
        (report,) = run.log.variants()
        kernels = None
        for key in run.log.report().judges.values():
            kernels = Deployable.of(Evidence.of_variant(run.store, key)).kernels
        for change in past.deployable.kernel_differences(kernels) if kernels else ():
            progress.note(f"changed: {change}")
            changed.append(change)
        served = here.model_copy(update={"kernels": kernels})
        record = record_of(past, served, changed, report, run.log.run_id)
        if record is not None:
            registry.set_tags(version.name, version.version, record.tags())
        run.exit_code = exit_code_of([report.verdict])
    return RecheckOutcome(past, tuple(changed), run.log.report())


def _choices(
    request: RecheckRequest,
    past: RegisteredVersion,
    profile: ServingProfile,
    node: NodeInfo,
) -> Choice:
    """Return the evidence as options of `prepare model`."""
    find_speed_gates(past.policy, profile)
    source = request.source or past.source
    try:
        reference = parse_reference(source)
    except UsageError as error:
        raise _no_source(error, past.version, source) from error
    return Choice(
        asked=ModelRequest(
            checkpoint=source,
            recipes=(past.recipe.name,),
            profile=profile.name,
            policy=past.policy.name,
            registry=request.registry,
            trust_remote_code=past.judged.trust_remote_code,
            promote=False,
        ),
        reference=reference,
        recipes=(past.recipe,),
        profile=profile,
        policy=past.policy,
        name=past.version.name,
        node=node,
        eval_data=request.eval_data.expanduser().resolve() if request.eval_data else None,
    )


def _plan(
    choices: Choice,
    past: RegisteredVersion,
    draft: Checkpoint | None,
    gates: frozenset[str],
    run: Run,
) -> Plan:
    """Check the machine, locate the source, and return the plan; `gates` are measured again."""
    settings = run.settings
    source = choices.reference.text
    name = past.recipe.name
    try:
        sources = check_early(choices, run, frozenset({name})).sources
    except CheckpointError as error:
        raise _no_source(error, choices, source) from error
    try:
        trusts_code = choices.asked.trust_remote_code
        known = choices.checkpoints
        locator = Locator(
            choices.profile, settings, run.output_of, run.progress, known, trusts_code
        )
        checkpoint = locator.source(choices)
        judged = past.judged.sanity.parameters.checkpoint
        if checkpoint.digest != judged:
            raise CheckpointError(
                f"its digest is {checkpoint.digest[:12]}, and the verdict was against "
                f"{judged[:12]}",
                where=str(checkpoint.path),
            )
    except (CheckpointError, UsageError) as error:
        raise _no_source(error, choices, source) from error
    run.log.update(checkpoint=describe_source(checkpoint), registered_name=choices.name)
    folder = past.folder
    registered = inspect_folder(folder, settings.digests)
    made = past.judged.quantize
    adopt = ADOPT.spec(
        past.bundle.recipe,
        AdoptParameters(
            checkpoint=checkpoint.digest,
            files={file.name: file.sha256 for file in registered.files},
            quantization=made.parameters.quantization,
            calibration_data=made.parameters.calibration_data,
            environment=made.parameters.environment,
            made=made.result,
        ),
        {},
        AdoptRuntime(folder=str(folder)),
        settings.store,
    )
    _discard_if_gone(adopt, run.store, settings)
    planner = make_planner(choices, Located(checkpoint, draft=draft), settings, sources)
    # The policy is that of the verdict, to the letter.
    choices = replace(choices, policy=past.policy, remeasured=tuple(gates))
    made_so = {name: adopt}
    tried = past.bundle.attempted
    return replace(planner, choices=choices, made=made_so, tried=tried, run=run.log.run_id).plan()


def _no_source(
    error: CheckpointError | UsageError, of: Version | Choice, source: str
) -> CheckpointError:
    again = own_command("recheck", f"{of.name}@VERSION", "--source", "CHECKPOINT")
    return CheckpointError(
        f"the source checkpoint, which is the baseline, is unavailable: {error.message}",
        where=error.where or source,
        hint=f"say where the same checkpoint is now, a folder or a Hub id: {again}",
    )


def _discard_if_gone(adopt: StageSpec, store: Store, settings: Settings) -> None:
    """Remove missing or changed adopted weights, which may be links."""
    if store.find(adopt.stage, adopt.key) is None:
        return
    output = store.stage_folder(adopt.stage, adopt.key) / "output"
    try:
        files = ADOPT.parameters_of(adopt).files.items()
        if all(settings.digests.digest(output / name) == digest for name, digest in files):
            return
    except CheckpointError:
        pass
    store.discard(adopt.stage, adopt.key)


def _profile(
    request: RecheckRequest, past: RegisteredVersion, node: NodeInfo, store: Path
) -> ServingProfile:
    """Return the judged or requested profile; UsageError if unsuitable."""
    profile = past.profile
    if request.profile:
        profile = choose_profile(request.profile, node)
        if profile.accelerator == "cuda" and profile.gpus_a_copy is None:
            profile = profile.spread_as(past.profile)
    profile = served_profile(profile, past.recipe)
    # Before a GPU environment is built for a node without one.
    machine = machine_of(node, store, with_gpu=profile.accelerator == "cuda")
    if (missing := find_missing_gpus(profile, machine)) is not None:
        raise missing
    if profile.accelerator == "cpu":
        check_processor(profile, node.cpu_features)
    refuse_unfit(profile, request.profile or profile.name)
    return profile
