"""A dry plan of `prepare model`.

It has cached stages, sizes, expected times, and the power of the gates with the available
questions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint
from pipeline.checkpoint.hub import bytes_to_download
from pipeline.core.errors import ExitCode, PrepareError
from pipeline.core.events import Progress
from pipeline.core.hardware import Hardware, this_node
from pipeline.core.record import Record
from pipeline.core.stage import TypedStageRecord
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import Store
from pipeline.environments.definition import environments_for
from pipeline.environments.environment import Accelerator, EnvironmentStatus, status
from pipeline.environments.settings import Settings
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import demo_stage, locate, locate_draft, locate_variants
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.gpu_fit import spread_over_gpus
from pipeline.plan.power import GatePower, policy_power, speed_power
from pipeline.plan.preflight import (
    early_faults,
    late_faults,
    line,
    preflight_of,
    refusal,
    registry_faults,
)
from pipeline.plan.resolved_options import ModelRequest, ResolvedOptions, choose
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


class _RefusedEarlyError(Exception):
    """The run would be refused by what headers and options show."""


class CheckpointNotLocalError(Exception):
    """The checkpoint must be made or downloaded first, so later stages have no key yet."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage: whether it is done, and the usual duration here."""

    name: str
    variant: str
    cached: bool
    expected_seconds: float | None


@dataclass(frozen=True)
class PlanReport:
    """All that `prepare plan` reports."""

    choices: ResolvedOptions
    checkpoint: Checkpoint | None
    stages: tuple[PlannedStage, ...]
    power: tuple[GatePower, ...]  # suites, then speed gates
    environments: tuple[EnvironmentStatus, ...]
    weights_bytes: dict[str, int]
    not_here: str
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
            "notes": list(self.notes),
        }

    def headline(self) -> str:
        if self.checkpoint is None and not self.not_here:
            return f"{self.choices.reference.text}: refused"
        if self.checkpoint is None:
            return (
                f"{self.choices.reference.text}: {self.not_here}; "
                "what is cached of the later stages is known after that"
            )
        c = self.checkpoint
        return (
            f"{c.ref}: {c.architecture}, {c.parameters / 1e6:,.0f} M parameters, {c.dtype}, "
            f"{c.weights_bytes / 1e6:,.1f} MB, digest {c.digest[:12]}"
        )

    def stage_rows(self) -> list[list[str]]:
        return [[s.name, s.variant, describe_state(s), describe_expected(s)] for s in self.stages]

    def size_rows(self) -> list[list[str]]:
        """Rows of the variants' table; empty without a checkpoint to estimate from."""
        if self.checkpoint is None:
            return []
        source = self.checkpoint.weights_bytes
        return [
            [recipe, f"{size / 1e6:,.1f} MB", f"{100 * size / source:.0f} % of the source"]
            for recipe, size in self.weights_bytes.items()
        ]

    def environment_rows(self) -> list[list[str]]:
        return [
            [env.key, str(env.state), f"{env.size_bytes / 1e9:.1f} GB" if env.size_bytes else "-"]
            for env in self.environments
        ]

    def environment_line(self) -> str:
        """Name the environments that a run would build; empty if there are none."""
        missing = [env.key for env in self.environments if str(env.state) in ("missing", "broken")]
        return f"environments to build first: {', '.join(missing)}" if missing else ""

    def expected_seconds(self) -> float | None:
        """Sum over stages to run; None if one of them was never measured here."""
        times = [stage.expected_seconds for stage in self.stages if not stage.cached]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None

    def form_line(self) -> str:
        return "asked as: " + ", ".join(f"{name} {form}" for name, form in self.forms.items())

    def options_line(self) -> str:
        """Name what decides the gates and how models are served."""
        return f"policy {self.choices.policy.name}, profile {self.choices.profile.name}"

    def refusals(self) -> list[str]:
        """Reasons why `prepare model` would refuse to begin, one per line."""
        return [f"would be refused: {line(fault)}" for fault in self.faults]

    def total(self) -> str:
        to_run = sum(not stage.cached for stage in self.stages)
        seconds = self.expected_seconds()
        words = f"about {seconds / 60:.1f} minutes" if seconds is not None else NOT_MEASURED
        return "; ".join(
            [
                f"{to_run} stages to run, {len(self.stages) - to_run} cached",
                words,
            ]
        )


def describe_state(stage: PlannedStage) -> str:
    """Describe what a run would do with it."""
    return "cached" if stage.cached else "to run"


def describe_expected(stage: PlannedStage) -> str:
    """Describe the expected time."""
    if stage.cached:
        return "-"
    if stage.expected_seconds is None:
        return NOT_MEASURED
    return f"{stage.expected_seconds:.0f} s"


def forecast(request: ModelRequest, settings: Settings, progress: Progress) -> PlanReport:
    """Plan the request and look up what is cached; no stage is run.

    Raises:
        PrepareError: as `prepare model` would, for bad options or a bad checkpoint.
    """
    node = this_node()
    choices = spread_over_gpus(choose(request, settings, node), settings)
    store = settings.open_store()
    accelerator = Accelerator(choices.profile.accelerator)

    def find_demo(spec: StageSpec) -> Path:
        if store.find(spec.stage, spec.key) is None:
            raise CheckpointNotLocalError("to be made first")
        return store.stage_folder(spec.stage, spec.key) / "output"

    def find(spec: StageSpec) -> StageRecord | None:
        return find_finished(spec, store)

    sources = find_data(choices, settings, progress)
    checkpoint: Checkpoint | None = None
    not_here, attempt = "", ""
    hardware = choices.node.hardware(choices.profile.accelerator)
    seen = seen_seconds(store, hardware, None)
    level: float | None = None
    profile = choices.profile
    preflight = preflight_of(choices, settings)
    early = early_faults(preflight, choices) if preflight is not None else []
    early += registry_faults(choices, settings)
    late: list[PrepareError] = []
    policy = choices.policy
    if preflight is not None:
        policy = resolve_generation(policy, preflight.source.generation)
    try:
        if early:  # a run would end here, before it reads any weights
            raise _RefusedEarlyError
        check_downloaded(choices)
        checkpoint = locate(choices, settings, find_demo, progress)
        adopted = locate_variants(choices, checkpoint, settings, progress)
        draft = locate_draft(
            choices.profile,
            settings,
            find_demo,
            progress,
            trust_remote_code=choices.trust_remote_code,
        )
        plan = make_plan(choices, checkpoint, settings, sources, draft=draft, adopted=adopted)
        assert plan.trial is not None
        policy = plan.policy
        attempt, level = AttemptLedger(store).history(plan.trial).words, plan.trial.level
        specs = plan.stages(find)
        seen = seen_seconds(store, hardware, checkpoint)
        late = late_faults(preflight, plan, find) if preflight is not None else []
    except CheckpointNotLocalError as reason:
        not_here = str(reason)
        specs = [demo_stage(choices, settings)] if choices.reference.kind == "demo" else []
    except _RefusedEarlyError:
        specs = []
    # A run ends with the first group of them that has any.
    refused = refusal(early) or refusal(late)
    return PlanReport(
        choices=choices,
        checkpoint=checkpoint,
        not_here=not_here,
        stages=tuple(with_servers(specs, store, seen)),
        power=(
            *policy_power(policy, choices.recipes, sources.counts(policy), level),
            *speed_power(choices.policy, len(choices.recipes), profile, level, start_seconds(seen)),
        ),
        attempt=attempt,
        notes=tuple(preflight.notes()) if preflight is not None else (),
        forms={name: suite.prompt_format for name, suite in policy.suites.items()},
        weights_bytes={
            recipe.name: preflight.weights[recipe.name].bytes for recipe in choices.recipes
        }
        if checkpoint and preflight
        else {},
        environments=tuple(
            status(name, accelerator, settings)
            for name in environments_for(
                [
                    *(recipe.quantization.environment for recipe in choices.recipes),
                    find_engine(profile.engine).environment,
                ]
            )
        ),
        faults=(*early, *late),
        exit_code=refused.exit_code if refused is not None else ExitCode.SUCCESS,
    )


def check_downloaded(choices: ResolvedOptions) -> None:
    """Raise CheckpointNotLocalError for Hub checkpoints that are not completely cached."""
    variants = (each.reference for each in choices.adopted)
    references = (choices.reference, draft_reference(choices.profile), *variants)
    missing = sum(
        bytes_to_download(each.name, each.revision)
        for each in references
        if each is not None and each.kind == "hub"
    )
    if missing:
        raise CheckpointNotLocalError(f"{missing / 1e9:,.2f} GB to download first")


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
        return not (
            spec.stage == "evaluate" and has_inputs(spec, store) and is_answered(spec, store)
        )
    except (PrepareError, OSError):
        return True  # damaged; `prepare model` says so when it needs it


def has_inputs(spec: StageSpec, store: Store) -> bool:
    """Return whether all inputs of the stage exist."""
    return all(store.find_current(each.stage, each.key) for each in spec.inputs.values())


def find_finished(spec: StageSpec, store: Store) -> StageRecord | None:
    """Return the record that a run would reuse."""
    return store.find_current(spec.stage, spec.key)


def plan_stage(spec: StageSpec, store: Store, seen: Seen) -> PlannedStage:
    """Return one stage with the store's facts on such stages."""
    kind = kind_of(stage_named(spec.stage).parameters_of(spec))
    times = seen.get((spec.stage, kind))
    part = spec.runtime.get("suite") or spec.runtime.get("claim")
    return PlannedStage(
        name=f"{spec.stage} {part}" if part else spec.stage,
        variant=spec.variant,
        cached=find_finished(spec, store) is not None,
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
