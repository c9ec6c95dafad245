"""A dry plan of `prepare model`: sizes, power of the gates, refusals; cached stages and times.

Options, hardware, config and headers come first. The weights are hashed last, and only if that
takes seconds or is asked for: what is cached cannot be known before.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint
from pipeline.checkpoint.hub import bytes_to_download
from pipeline.checkpoint.weight_files import weight_files
from pipeline.core.errors import EvaluationDataError, ExitCode, HubError, PrepareError
from pipeline.core.events import Progress
from pipeline.core.hardware import Hardware, this_node
from pipeline.core.record import Record
from pipeline.core.stage import TypedStageRecord
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.definition import environments_for
from pipeline.environments.environment import Accelerator, EnvironmentStatus, status
from pipeline.environments.settings import Settings
from pipeline.plan.checkpoint_resolver import demo_stage, locate, locate_draft, locate_variants
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.gpu_fit import spread_over_gpus
from pipeline.plan.model_plan import find_data, make_plan
from pipeline.plan.power import GatePower, policy_power, speed_power
from pipeline.plan.preflight import (
    as_refusal,
    early_faults,
    late_faults,
    line,
    preflight_of,
    refusal,
    registry_faults,
)
from pipeline.plan.resolved_options import Choice, ModelRequest, choose
from pipeline.plan.serving_profile import draft_reference
from pipeline.serving.served_model import ServedModel
from pipeline.stages import known_of, stage_named
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsParameters
from pipeline.stages.evaluate.run import is_answered
from pipeline.stages.screen import ScreenResult
from pipeline.stages.speed import SpeedParameters
from recipes.engines import find_engine

Seen = dict[tuple[str, str], list[float]]
SERVED = ("screen", "evaluate", "speed")
NOT_MEASURED = "not measured here"
LIKE_SIZE = 0.2  # relative difference of two checkpoints' weights
HASHED_BYTES = 2 * 10**9  # at 250 MB/s and more, below 8 s
HASH_RATE = 250e6  # bytes a second


class NotHereError(Exception):
    """The checkpoint must be made, downloaded or hashed first, so later stages have no key yet."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage: whether it is done, and the usual duration here."""

    name: str
    variant: str
    cached: bool
    expected_seconds: float | None

    @property
    def row(self) -> list[str]:
        """Cells of a table: name, variant, state, expected time."""
        if self.cached:
            return [self.name, self.variant, "cached", "-"]
        seconds = self.expected_seconds
        expected = NOT_MEASURED if seconds is None else f"{seconds:.0f} s"
        return [self.name, self.variant, "to run", expected]


@dataclass(frozen=True)
class PlanReport:
    """All that `prepare plan` reports."""

    choices: Choice
    checkpoint: Checkpoint | None  # None: refused, or not here
    stages: tuple[PlannedStage, ...]
    power: tuple[GatePower, ...]  # suites, then speed gates
    environments: tuple[EnvironmentStatus, ...]
    weights_bytes: dict[str, int]  # by variant; empty if not known
    not_here: str  # why stages after it are not known
    source_bytes: int = 0  # of the checkpoint's weights
    forms: Mapping[str, str] = field(default_factory=dict)  # by suite, how it is asked
    faults: tuple[PrepareError, ...] = ()
    exit_code: ExitCode = ExitCode.SUCCESS  # of `prepare model`, where it would refuse to begin
    attempt: str = ""
    notes: tuple[str, ...] = ()  # what the preflight could not check

    def to_dict(self) -> dict[str, Any]:
        checkpoint = self.checkpoint
        return {
            "schema_version": 1,
            "options": self.choices.to_dict(),
            "checkpoint": checkpoint.model_dump(mode="json", exclude={"files"})
            if checkpoint
            else None,
            "estimated_weights_bytes": self.weights_bytes,
            "stages": [vars(stage) for stage in self.stages],
            "forms": dict(self.forms),
            "gates": [asdict(gate) for gate in self.power],
            "environments": [
                {"environment": env.key, "state": str(env.state), "size_bytes": env.size_bytes}
                for env in self.environments
            ],
            "expected_seconds": self.expected_seconds(),
            "refused": [fault.to_dict() for fault in self.faults],
            "not_here": self.not_here,
            "notes": list(self.notes),
        }

    def headline(self) -> str:
        if (c := self.checkpoint) is not None:
            return (
                f"{c.ref}: {c.architecture}, {c.parameters / 1e6:,.0f} M parameters, {c.dtype}, "
                f"{c.weights_bytes / 1e6:,.1f} MB, digest {c.digest[:12]}"
            )
        if self.faults:
            return f"{self.choices.reference.text}: refused"
        later = "what is cached of the later stages is known after that"
        return f"{self.choices.reference.text}: {self.not_here}; {later}"

    def lines(self) -> Iterator[str]:
        """Yield what follows the headline, without tables; the policy's power is not in it."""
        yield f"policy {self.choices.policy.name}, profile {self.choices.profile.name}"
        for name, size in self.weights_bytes.items():
            share = f"{100 * size / self.source_bytes:.0f} % of the source"
            yield f"{name}: {size / 1e6:,.1f} MB, {share}"

    def last_lines(self) -> Iterator[str]:
        """Yield attempts, missing environments, refusals, notes and the expected time."""
        if self.attempt:
            yield self.attempt
        if missing := [env.key for env in self.environments if env.state in ("missing", "broken")]:
            yield f"environments to build first: {', '.join(missing)}"
        yield from self.refusals()
        yield from (f"note: {note}" for note in self.notes)
        if self.faults:
            return
        to_run = sum(not stage.cached for stage in self.stages)
        seconds = self.expected_seconds()
        words = f"about {seconds / 60:.1f} minutes" if seconds is not None else NOT_MEASURED
        yield f"{to_run} stages to run, {len(self.stages) - to_run} cached; {words}"

    def expected_seconds(self) -> float | None:
        """Sum over stages to run; None if one of them was never measured here."""
        times = [stage.expected_seconds for stage in self.stages if not stage.cached]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None

    def refusals(self) -> list[str]:
        """Reasons why `prepare model` would refuse to begin, one per line."""
        return [f"would be refused: {line(fault)}" for fault in self.faults]


def forecast(
    request: ModelRequest, settings: Settings, progress: Progress, *, hash_all: bool = False
) -> PlanReport:
    """Plan the request and look up what is cached; no stage is run.

    Args:
        hash_all: hash the weights, however long it takes.

    Raises:
        PrepareError: as `prepare model` would, for bad options or a damaged checkpoint.
    """
    choices = spread_over_gpus(choose(request, settings, this_node()), settings)
    store, profile = settings.open_store(), choices.profile
    faults: list[PrepareError] = []
    sources = None
    try:
        sources = find_data(choices, settings, progress)
    except EvaluationDataError as error:
        faults.append(as_refusal(error))
    preflight = preflight_of(choices, settings)
    if preflight is not None:
        faults += early_faults(preflight, choices)
    faults += registry_faults(choices, settings)
    policy = choices.policy
    if preflight is not None:
        policy = resolve_generation(policy, preflight.source.generation)
    checkpoint: Checkpoint | None = None
    not_here, attempt, specs = "", "", list[StageSpec]()
    level: float | None = None
    hardware = choices.node.hardware(profile.accelerator)

    def find_made(spec: StageSpec) -> Path:
        if store.find(spec.stage, spec.key) is None:
            raise NotHereError("to be made first")
        return store.stage_folder(spec.stage, spec.key) / "output"

    try:
        if not faults and sources is not None:  # else a run ends here, before it reads any weights
            check_here(choices, settings, hash_all=hash_all)
            trusted = choices.trust_remote_code
            checkpoint = locate(choices, settings, find_made, progress)
            adopted = locate_variants(choices, checkpoint, settings, progress)
            draft = locate_draft(profile, settings, find_made, progress, trust_remote_code=trusted)
            plan = make_plan(choices, checkpoint, settings, sources, draft=draft, adopted=adopted)
            assert plan.trial is not None
            policy = plan.policy
            attempt, level = AttemptLedger(store).history(plan.trial).words, plan.trial.level
            specs = plan.stages(lambda spec: store.find_current(spec.stage, spec.key))
            if preflight is not None:
                faults += late_faults(
                    preflight, plan, lambda spec: store.find_current(spec.stage, spec.key)
                )
    except (NotHereError, HubError) as reason:
        not_here = reason.message if isinstance(reason, HubError) else str(reason)
        specs = [demo_stage(choices, settings)] if choices.reference.kind == "demo" else []
    seen = seen_seconds(store, hardware, checkpoint)
    tried = choices.recipes
    counts = sources.counts(policy) if sources else {}
    refused = refusal(faults)
    return PlanReport(
        choices=choices,
        checkpoint=checkpoint,
        not_here=not_here,
        stages=tuple(with_servers(specs, store, seen)),
        power=(
            *(policy_power(policy, tried, counts, level) if sources else ()),
            *speed_power(choices.policy, len(tried), profile, level, start_seconds(seen)),
        ),
        attempt=attempt,
        notes=tuple(preflight.notes()) if preflight is not None else (),
        forms={name: suite.prompt_format for name, suite in policy.suites.items()},
        weights_bytes={each.name: preflight.weights[each.name].bytes for each in tried}
        if preflight and not faults
        else {},
        source_bytes=preflight.source.weights_bytes if preflight else 0,
        environments=tuple(
            status(name, Accelerator(profile.accelerator), settings)
            for name in environments_for(
                [
                    *(recipe.quantization.environment for recipe in tried),
                    find_engine(profile.engine).environment,
                ]
            )
        ),
        faults=tuple(faults),
        exit_code=refused.exit_code if refused is not None else ExitCode.SUCCESS,
    )


def check_here(choices: Choice, settings: Settings, *, hash_all: bool) -> None:
    """Raise NotHereError for what must be downloaded first, or takes long to hash."""
    variants = (each.reference for each in choices.adopted)
    references = [choices.reference, draft_reference(choices.profile), *variants]
    missing = sum(
        bytes_to_download(each.name, each.revision)
        for each in references
        if each is not None and each.kind == "hub"
    )
    if missing:
        raise NotHereError(f"{missing / 1e9:,.2f} GB to download first")
    folders = [
        Path(each.name).expanduser() for each in references if each and each.kind == "folder"
    ]
    files = [file for folder in folders for file in weight_files(folder)]
    size = settings.digests.bytes_to_hash(files)
    if size > HASHED_BYTES and not hash_all:
        raise NotHereError(
            f"{size / 1e9:,.1f} GB to hash first, in about {size / HASH_RATE / 60:.0f} minutes "
            "(--verbose hashes them now)"
        )


def with_servers(specs: list[StageSpec], store: Store, seen: Seen) -> Iterator[PlannedStage]:
    """Yield the stages, with a row for the server's start before the first that needs it."""
    served: set[str] = set()
    for spec in specs:
        stage = plan_stage(spec, store, seen)
        if needs_server(spec, stage, store) and spec.variant not in served:
            served.add(spec.variant)
            expected = start_seconds(seen)
            yield PlannedStage("serve", spec.variant, cached=False, expected_seconds=expected)
        yield stage


def start_seconds(seen: Seen) -> float | None:
    """Return a server's usual start time here; None if none was started."""
    times = seen.get(("serve", ""))
    return statistics.median(times) if times else None


def needs_server(spec: StageSpec, stage: PlannedStage, store: Store) -> bool:
    """Return whether it needs a server: not if the kept answers suffice."""
    if spec.stage not in SERVED or stage.cached:
        return False
    try:
        inputs = all(store.find_current(each.stage, each.key) for each in spec.inputs.values())
        return not (spec.stage == "evaluate" and inputs and is_answered(spec, store))
    except (PrepareError, OSError):
        return True  # damaged; `prepare model` says so when it needs it


def plan_stage(spec: StageSpec, store: Store, seen: Seen) -> PlannedStage:
    """Return one stage with the store's facts on such stages."""
    kind = kind_of(stage_named(spec.stage).parameters_of(spec))
    times = seen.get((spec.stage, kind))
    part = spec.runtime.get("suite") or spec.runtime.get("claim")
    return PlannedStage(
        name=f"{spec.stage} {part}" if part else spec.stage,
        variant=spec.variant,
        cached=store.find_current(spec.stage, spec.key) is not None,
        expected_seconds=statistics.median(times) if times else None,
    )


def kind_of(parameters: Record) -> str:
    """Return what a stage's duration depends on most."""
    return str(getattr(parameters, "kind", ""))


def seen_seconds(store: Store, hardware: Hardware, checkpoint: Checkpoint | None) -> Seen:
    """Return durations of the store's finished stages on this hardware, by stage and kind.

    Stages of a model count if the model has a like size and was served on such hardware.
    """
    seen: Seen = {}
    # `prepare model` reports a damaged record if it needs it.
    records = list(known_of(store.records(leave_out_damaged=True)))
    models = {} if checkpoint is None else like_models(records, checkpoint)
    here = {p.checkpoint for p in map(served_of, records) if p and p.hardware == hardware}
    for kept in records:
        served = served_of(kept)
        if served is not None and served.hardware != hardware:
            continue
        model = served.checkpoint if served else getattr(kept.parameters, "checkpoint", None)
        if model is not None and (model not in models or not {model, models[model]} & here):
            continue
        stage = kept.record.stage, kind_of(kept.parameters)
        seen.setdefault(stage, []).append(kept.record.seconds)
        if isinstance(kept.result, ScreenResult):
            seen.setdefault(("serve", ""), []).append(kept.result.server.ready_seconds)
    return seen


def served_of(kept: TypedStageRecord[Record, Record]) -> ServedModel | None:
    """Return the model that a stage queried; None for other stages."""
    of = kept.parameters
    if isinstance(of, SpeedParameters):
        of = of.sides["candidate"]
    return of if isinstance(of, ServedModel) else None


def like_models(
    records: Iterable[TypedStageRecord[Record, Record]], checkpoint: Checkpoint
) -> dict[str, str]:
    """Return checkpoints of a like size: digests of what recipes start from, and as served."""
    source = checkpoint.recipe_source.digest
    found = {checkpoint.digest: source, source: checkpoint.digest}
    for kept in records:
        if not isinstance(kept.parameters, CheckWeightsParameters):
            continue
        result = CHECK_WEIGHTS.result_of(kept.record)
        if result.weights_bytes and result.size_ratio:
            ratio = result.weights_bytes / result.size_ratio / checkpoint.weights_bytes
            if abs(ratio - 1) <= LIKE_SIZE:
                found.setdefault(kept.parameters.checkpoint, kept.parameters.checkpoint)
    return found
