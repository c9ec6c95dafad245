"""Promotion: registers judged variants, and moves the alias to the preferred one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from artifacts.candidate import Candidate, PromotionRequest, find_candidate
from artifacts.deployable import Deployable
from artifacts.evidence.verify import check_run, find_missing
from artifacts.registrations import Registration, note_registration
from artifacts.registry import (
    EVIDENCE_TAG,
    TUPLE_TAG,
    Cause,
    Move,
    Registered,
    Registry,
    check_alias,
    check_name,
    who_am_i,
)
from artifacts.run_record import RunReport, VariantReport
from artifacts.version_folder import has_files, make_version
from prepare.errors import RegistryError, StoreError, UsageError, did_you_mean
from prepare.events import Progress
from prepare.own_command import own_command
from prepare.record import Record
from prepare.store import Store


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


def promote_run(
    run: RunReport, store: Store, request: PromotionRequest, progress: Progress
) -> Promoted:
    """Promote from a finished run, after checking its evidence.

    `prepare gc` waits, or the files could go before the alias names them.
    """
    if request.name is not None:
        check_name(request.name)
    if request.alias is not None:
        check_alias(request.alias)
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
        if version is not None and has_files(version):
            versions[candidate.recipe] = version.version
    return versions


def _register(
    candidates: Sequence[Candidate], registry: Registry, name: str, run: RunReport, store: Store
) -> dict[str, str]:
    """Register the candidates; return their versions by recipe."""
    begun = Registration(registry=registry.uri, name=name, run=run.run, registered=False)
    note_registration(store, begun)
    versions = {}
    for candidate in candidates:
        folder = make_version(candidate, run, store)
        tags = candidate.tags(run, folder.name)
        versions[candidate.recipe] = registry.register(name, folder, tags, has_files)
    note_registration(store, begun.model_copy(update={"registered": True}))
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
