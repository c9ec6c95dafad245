"""Promotion: makes a version's folder, registers it, and moves the alias.

`STORE/versions/<manifest digest>/` has weights (hard links, or copies), model card and evidence.
`STORE/registries.jsonl` lists promoted models for garbage collection.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from pydantic import Field

from artifacts.deployable import Deployable, as_tag
from artifacts.evidence.bundle import BundleVerdict, write_bundle
from artifacts.evidence.card import Card
from artifacts.evidence.manifest import MANIFEST, find_changes, read_manifest
from artifacts.evidence.signing import Signer, sign_with_key
from artifacts.evidence.verify import check_bundle, check_run, find_missing
from artifacts.registry import (
    EVIDENCE_TAG,
    JUDGE_TAG,
    MANIFEST_TAG,
    POLICY_TAG,
    RUN_TAG,
    TUPLE_TAG,
    WEIGHTS_STAGE_TAG,
    Cause,
    Move,
    Registered,
    Registry,
    Version,
    who_am_i,
)
from artifacts.run_record import RunReport, VariantReport, report_judged, report_unjudged
from pipeline.stages.evidence import Evidence
from pipeline.stages.verdict import policy_digest
from prepare.digest import digest_file, digest_json
from prepare.errors import (
    EvidenceError,
    RegistryError,
    StoreError,
    UsageError,
    did_you_mean,
    raise_as,
)
from prepare.events import Progress
from prepare.own_command import own_command
from prepare.private_files import (
    flush_folder,
    flush_to_disk,
    is_shared,
    open_log,
    private_umask,
    share_with_group,
)
from prepare.record import Record
from prepare.stage import StageRecord
from prepare.store import Store
from prepare.untrusted import MAX_RECORD_BYTES, parse_record, read_regular
from recipes.checkpoints.weight_files import ARCHIVE, BUNDLE, plain_files

VERSIONS = "versions"
REGISTRIES = "registries.jsonl"
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


@dataclass(frozen=True)
class PromotionRequest:
    """What to promote, and where to."""

    registry: str  # its URI
    # the recipe; None: the policy's preference among those that passed
    variant: str | None = None
    override: str | None = None  # why a variant without a pass is promoted
    name: str | None = None  # in the registry; None: the run's
    alias: str | None = None  # None: the policy's
    replaces: str | None = None  # version that the alias must point to now; None: any
    # Number of a move: the alias must point to what it did after it; None: any.
    since: int | None = None
    signer: Signer | None = None


class Promoted(Record):
    """What is registered now."""

    name: str
    versions: dict[str, str] = Field(description="version by recipe")
    champion: str = Field(description="recipe of the version that has the alias")
    preferred: str = Field(description="why that one of several that passed")
    alias: str
    registry: str
    replaced: str | None
    moved: bool = Field(description="false: the alias pointed there already")


class Registration(Record):
    """One line of `registries.jsonl`."""

    registry: str
    name: str
    run: str
    registered: bool = Field(description="false: it was about to be")


@dataclass(frozen=True)
class Candidate:
    """A variant to register."""

    report: VariantReport
    judged: Evidence
    heading: BundleVerdict
    records: tuple[StageRecord, ...]
    identity: str  # of all that its evidence follows from
    signer: Signer | None

    @property
    def recipe(self) -> str:
        return self.report.recipe

    def preference(self, prefer: str) -> tuple[float, int]:
        """Return the sort key: throughput, then small weights."""
        ratio = next((s.estimate for s in self.report.speed if s.is_ratio), None)
        measured = ratio or 0.0 if prefer == "throughput" else 0.0
        return measured, -self.judged.weights.result.weights_bytes

    def tags(self, run: RunReport, manifest: str) -> dict[str, str]:
        """Return the tuple and its origin as text."""
        judge = self.judged.judge.record
        source = self.heading.source
        return {
            **evidence_tags(self.judged, self.heading),
            MANIFEST_TAG: manifest,
            EVIDENCE_TAG: self.identity,
            JUDGE_TAG: judge.key,
            WEIGHTS_STAGE_TAG: self.judged.weights.record.key,
            RUN_TAG: run.run,
            "prepare.signer": self.heading.signer,
            "prepare.policy": self.judged.judge.parameters.policy.name,
            "prepare.source.checkpoint": source.digest,
            "prepare.source.ref": run.checkpoint.ref if run.checkpoint else "",
            "prepare.source.revision": as_tag(source.revision or ""),
        }


def promote_run(
    run: RunReport, store: Store, request: PromotionRequest, progress: Progress
) -> Promoted:
    """Promote from a finished run, after checking its evidence.

    `prepare gc` waits, or the files could go before the alias names them.
    """
    with store.in_use(progress.note):
        return _promote_checked(run, store, request, progress)


def _promote_checked(
    run: RunReport, store: Store, request: PromotionRequest, progress: Progress
) -> Promoted:
    chosen = choose_variants(run, request)
    if request.override is not None and chosen[0].verdict == "pass":
        progress.note(f"{chosen[0].recipe} passed: there is nothing to override")
        request = replace(request, override=None)
    missing = find_missing(run)
    # All of them: a variant's bundle has the others' verdicts, too.
    for check in check_run(run, store):
        if problems := [*check.differences, *missing]:
            raise StoreError(
                f"the evidence on '{check.recipe}' does not give the verdict of the record: "
                f"{problems[0]}",
                where=str(store.root / "runs" / run.run),
                hint=f"`{own_command('verify', run.run)}` names every difference; run the model "
                "again",
            )
    return promote(run, chosen, store, request, progress)


def promote(
    run: RunReport,
    chosen: Sequence[VariantReport],
    store: Store,
    request: PromotionRequest,
    progress: Progress,
) -> Promoted:
    """Register the chosen variants, and move the alias to the preferred one.

    The same call completes a killed promotion.
    """
    candidates = [find_candidate(run, variant, store, request) for variant in chosen]
    parameters = candidates[0].judged.judge.parameters
    policy = parameters.policy.promotion
    prefer = "" if parameters.trial.descent else policy.prefer
    best = _find_best(candidates, parameters.trial.descent, prefer)
    name = best.heading.registered_name
    alias = request.alias or policy.alias
    registry = Registry(request.registry)
    model = registry.model(name) or Registered({}, (), ())
    versions = _find_registered(candidates, model)
    current = model.aliases.get(alias)
    last = model.last_note(alias)
    move = None
    if (
        len(versions) == len(candidates)
        and current == versions[best.recipe]
        and (last is None or last[1].done)
        and request.replaces is None
    ):
        progress.note("nothing to do: the alias points there already")
    else:
        replaces = request.replaces or current
        if request.since is not None:
            _refuse_after_rollback(registry.uri, name, model, alias, best, run)
            if request.replaces is None:
                replaces = _find_pointed_to(model.history, alias, request.since, current)
        missing = [candidate for candidate in candidates if candidate.recipe not in versions]
        versions |= _register(missing, registry, name, run, store)
        move = registry.move(
            name,
            alias,
            versions[best.recipe],
            _find_cause(best, run, request.override),
            replaces=replaces,
            previous_alias=policy.previous_alias if alias == policy.alias else None,
        )
    return Promoted(
        name=name,
        versions=versions,
        champion=best.recipe,
        preferred=_describe_preference(candidates, best, prefer),
        alias=alias,
        registry=request.registry,
        replaced=move.replaced if move else None,
        moved=move is not None,
    )


def _find_best(candidates: Sequence[Candidate], descent: Sequence[str], prefer: str) -> Candidate:
    """Return the last of a descent, or the preferred candidate."""
    if descent:
        return max(candidates, key=lambda candidate: descent.index(candidate.recipe))
    return max(candidates, key=lambda candidate: candidate.preference(prefer))


def _find_registered(candidates: Sequence[Candidate], model: Registered) -> dict[str, str]:
    """Return by recipe the versions that have this evidence, and their files."""
    known = {version.tags.get(EVIDENCE_TAG): version for version in model.versions}
    versions = {}
    for candidate in candidates:
        version = known.get(candidate.identity)
        if version is not None and _has_files(version):
            versions[candidate.recipe] = version.version
    return versions


def _register(
    candidates: Sequence[Candidate], registry: Registry, name: str, run: RunReport, store: Store
) -> dict[str, str]:
    """Register the candidates; return their versions by recipe."""
    begun = Registration(registry=registry.uri, name=name, run=run.run, registered=False)
    _note_registration(store, begun)
    versions = {}
    for candidate in candidates:
        folder = make_version(candidate, run, store)
        tags = candidate.tags(run, folder.name)
        versions[candidate.recipe] = registry.register(name, folder, tags, _has_files)
    _note_registration(store, begun.model_copy(update={"registered": True}))
    return versions


def _find_cause(best: Candidate, run: RunReport, override: str | None) -> Cause:
    own = best.judged.judge.result
    # Other variants may have changed the run's record.
    judged = own if own.verdict == best.report.verdict else best.report
    return Cause(
        action="promote" if override is None else "override",
        who=who_am_i(),
        run=run.run,
        verdict=best.report.verdict,
        reason=override or judged.reason,
    )


def _describe_preference(candidates: Sequence[Candidate], best: Candidate, prefer: str) -> str:
    """Return why it is the best one; without `prefer` it is the last of a descent."""
    if len(candidates) == 1:
        return ""
    if not prefer:
        return f"the last of {len(candidates)} that passed, from the largest down (--until pass)"
    ratio, size = best.preference(prefer)
    figure = f"{-size / 1e6:,.1f} MB"
    if ratio and ratio > max(
        candidate.preference(prefer)[0] for candidate in candidates if candidate != best
    ):
        figure = f"x {ratio:.2f} of the baseline's output tokens/s"
    elif prefer == "throughput":
        prefer = "size, as throughput does not decide"
    return f"preferred of {len(candidates)} that passed, by {prefer}: {figure}"


def choose_variants(run: RunReport, request: PromotionRequest) -> list[VariantReport]:
    """Return the requested variants, or raise UsageError."""
    where = f"run {run.run}"
    if run.kind != "model":
        raise UsageError(
            f"this run of `prepare {run.kind}` has no weights to promote",
            where=where,
            hint="`prepare model CHECKPOINT` makes variants that can be promoted",
        )
    if run.status == "running":
        raise UsageError(
            "this run is not finished", where=where, hint="wait for it, then promote its variant"
        )
    judges = run.judges
    judged = [variant for variant in run.variants if variant.recipe in judges]
    if request.variant is not None:
        judged = [variant for variant in judged if variant.recipe == request.variant]
    names = ", ".join(f"{v.recipe} ({v.verdict})" for v in run.variants) or "none"
    if not judged:
        wanted = request.variant
        raise UsageError(
            f"the run judged no variant '{wanted}'" if wanted else "the run judged no variant",
            where=where,
            hint=f"{did_you_mean(wanted or '', list(judges))}its variants: {names}",
        )
    if request.override is not None:
        if not request.override.strip() or len(judged) > 1:
            raise UsageError(
                "--override needs a reason, and is about one variant",
                where=where,
                hint="say why, which is kept in the history, and name the variant: RUN:VARIANT; "
                f"its variants: {names}",
            )
        return judged
    passed = [variant for variant in judged if variant.verdict == "pass"]
    if not passed:
        raise UsageError(
            "no variant passed, so none is promoted"
            if request.variant is None
            else f"the verdict on '{request.variant}' is '{judged[0].verdict}', not 'pass'",
            where=where,
            hint="to promote it anyway: --override REASON, which is kept in the "
            f"history; the run's variants: {names}",
        )
    return passed


def registrations(store: Store) -> list[Registration]:
    """Return what this store registered; StoreError for a damaged file."""
    file = store.root / REGISTRIES
    try:
        lines = read_regular(file, MAX_RECORD_BYTES).split(b"\n")
        # A kill may leave a half line, whose registration never began.
        return [parse_record(line, Registration) for line in lines if line.endswith(b"}")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the list of registries cannot be read: {error}",
            where=str(file),
            hint="put the damaged line right: each has registry, name, run and registered",
        ) from error


def _note_registration(store: Store, told: Registration) -> None:
    if told in registrations(store):
        return
    with open_log(store.root / REGISTRIES) as file:
        file.write(f"\n{told.model_dump_json()}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def _has_files(version: Version) -> bool:
    """Return whether the files are there, unchanged."""
    folder = Path(version.source)
    with raise_as(RegistryError, "the version's source is not a path", version.source):
        is_there = folder.is_dir()
    if folder.is_absolute() and is_there:
        _check_unchanged(folder)
    return not folder.is_absolute() or is_there


def _find_pointed_to(
    history: Sequence[Move], alias: str, since: int, current: str | None
) -> str | None:
    """Return the version that the alias pointed to after a move.

    Moves are numbered under the registry's lock; clocks of machines differ.
    """
    later = [move for move in history if move.alias == alias and move.number > since]
    return later[0].replaced if later else current


def _refuse_after_rollback(
    where: str, name: str, model: Registered, alias: str, best: Candidate, run: RunReport
) -> None:
    """Raise RegistryError if the last move rolled back this tuple."""
    moves = [move for move in model.history if move.alias == alias]
    if not moves or moves[-1].action != "rollback" or moves[-1].replaced is None:
        return
    last = moves[-1]
    left = model.find(last.replaced or "")
    if left is not None and left.tags.get(TUPLE_TAG) == Deployable.of(best.judged).digest:
        raise RegistryError(
            f"version {last.replaced} of '{name}', which is the same, was rolled back by "
            f"{last.who} at {last.when}" + (f" ({last.reason})" if last.reason else ""),
            where=where,
            hint=f"`{own_command('promote', run.run)}` promotes it anyway",
        )


def evidence_tags(evidence: Evidence, verdict: BundleVerdict) -> dict[str, str]:
    """Return the tags that follow from the evidence."""
    made_by = {"prepare.made_by": evidence.made_by} if evidence.made_by else {}
    return {
        **Deployable.of(evidence).tags(),
        POLICY_TAG: policy_digest(evidence.judge.record),
        "prepare.recipe": verdict.recipe,
        "prepare.verdict": verdict.variant.verdict,
        "prepare.not_shown": verdict.variant.not_shown,
        "prepare.override": verdict.override or "",
        "prepare.trust_remote_code": as_tag(evidence.trust_remote_code),
        **made_by,
    }


def find_candidate(
    run: RunReport, variant: VariantReport, store: Store, request: PromotionRequest
) -> Candidate:
    """Return a judged variant with its evidence."""
    recipe = variant.recipe
    judges = run.judges
    tried = sorted(run.attempted)
    if recipe not in judges or run.checkpoint is None:
        raise UsageError(
            f"run {run.run} did not judge '{recipe}', so there is no evidence to bundle",
            hint=f"judged were: {', '.join(judges) or 'none'}",
        )
    inputs = {name: Evidence.of_variant(store, key) for name, key in judges.items()}
    judged = inputs[recipe]
    if why := Deployable.of(judged).unfit:
        raise UsageError(
            f"{recipe} cannot be promoted: {why}",
            where=f"run {run.run}, --profile {run.resolved.profile}",
            hint="measure it with a profile whose rejection_sample_method is 'standard'",
        )
    judges_of_all = [evidence.judge for evidence in inputs.values()]
    roots = [stage.record for stage in (judged.checked_weights, *judges_of_all)]
    records = tuple(judged.collect(roots))
    outcomes = {v.recipe: v.verdict for v in run.variants}
    reports = []
    for record in tried:
        if record in inputs:
            size = inputs[record].weights.result.weights_bytes
            reports.append(report_judged(record, size, inputs[record].judge.result))
            continue
        outcome = outcomes.get(record, "skipped")
        unjudged = outcome if outcome in ("fail", "error") else "skipped"
        reports.append(report_unjudged(record, unjudged, "has no verdict by gates", None))
    verdict = BundleVerdict(
        run=run.run,
        recipe=recipe,
        override=request.override,
        registered_name=request.name or run.registered_name or run.resolved.name or recipe,
        profile=run.resolved.profile,
        policy=run.resolved.policy,
        command=run.request.line(public=True),
        signer=request.signer.fingerprint if request.signer else "",
        source=run.checkpoint.published(),
        attempted=tuple(tried),
        judges=judges,
        variants=tuple(reports),
    )
    # Another run that reused all of this is the same version.
    identity = digest_json(
        [
            verdict.model_dump(mode="json", exclude={"run", "command", "prepare_version"}),
            [[record.stage, record.key, record.result] for record in records],
        ]
    )
    return Candidate(variant, judged, verdict, records, identity, request.signer)


def make_version(candidate: Candidate, run: RunReport, store: Store) -> Path:
    """Make the folder of weights, card and evidence."""
    parent = store.root / VERSIONS
    with store.explain_errors(), _private_folder(store, parent) as partial:
        source = store.stage_folder(
            candidate.judged.weights.record.stage, candidate.judged.weights.record.key
        )
        _link_files(source / "output", partial)
        Card(candidate.heading, candidate.judged).write(partial)
        manifest = write_bundle(partial, candidate.heading, candidate.records, store)
        final = parent / digest_file(partial / BUNDLE / MANIFEST)
        if not final.exists():
            if candidate.signer is not None:
                sign_with_key(partial, candidate.signer.private_key)
            listed = {partial / entry.path: entry.sha256 for entry in manifest.model_files}
            if faults := check_bundle(partial, lambda file: listed[file]).faults:
                raise EvidenceError(
                    f"the evidence does not give the verdict of the record: {faults[0]}",
                    where=str(source / "output"),
                    hint=f"`{own_command('verify', run.run)}` names what differs in the "
                    "evidence; if the weights were changed, delete that stage's folder; then run "
                    "the model again",
                )
            if is_shared(store.root):
                share_with_group(partial)
            flush_to_disk(partial)
            partial.rename(final)
            flush_folder(parent)
            return final
    _check_unchanged(final)
    return final


@contextmanager
def _private_folder(store: Store, parent: Path) -> Iterator[Path]:
    """Yield a new folder; remove it unless it was renamed."""
    partial = parent / f".{uuid4().hex}.partial"
    with store.in_use():
        try:
            with private_umask(store.root):
                partial.mkdir(parents=True)
                yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _link_files(source: Path, output: Path) -> None:
    for path, file in plain_files(source):
        place = output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(file, place)


def _check_unchanged(folder: Path) -> None:
    """Raise EvidenceError for a changed, added or removed file."""
    bundle = folder / BUNDLE
    changes = find_changes(bundle, read_manifest(bundle), has_weights=True)
    if not (folder / ARCHIVE).exists():
        changes.append(f"{folder / ARCHIVE}: the file is missing")
    if digest_file(bundle / MANIFEST) != folder.name:
        changes.append(f"{bundle / MANIFEST}: the file was changed")
    if changes:
        raise EvidenceError(
            f"the folder is not as it was when it was judged: {changes[0]}",
            where=str(folder),
            hint="delete the folder, and promote the run again: it is made again",
        )
