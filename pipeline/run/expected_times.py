"""How long the stages of a plan take: medians of this store's records, else by the model's size."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.plan.choice import Choice
from pipeline.preflight.durations import Expected, add_up, assume
from pipeline.serving.served_model import ServedModel
from pipeline.stages import known_of, stage_named
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsParameters
from pipeline.stages.evaluate import is_answered
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.sanity import SanityResult
from pipeline.stages.speed import SpeedParameters
from pipeline.stages.verdict import JUDGE
from prepare.errors import PrepareError
from prepare.hardware import Hardware
from prepare.record import Record
from prepare.stage import StageSpec, TypedStageRecord
from prepare.store import Store
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.quantization import Quantization

Seen = dict[tuple[str, str], list[float]]
"""Seconds of finished stages, by stage and what its duration depends on most."""
SERVER = ("serve", "")
LIKE_SIZE = 0.2  # relative difference of two checkpoints' weights


@dataclass(frozen=True)
class PlannedStage:
    """A stage, and its usual duration here."""

    name: str
    variant: str
    cached: bool
    expected: Expected  # as measured here, else by the model's size

    @property
    def row(self) -> list[str]:
        low = self.expected.low
        high = self.expected.high
        seconds = f"{low:.0f} s" if low == high else f"{low:.0f} to {high:.0f} s, assumed"
        state = ["cached", "-"] if self.cached else ["to run", seconds]
        return [self.name, self.variant, *state]


def expected_run(
    specs: Sequence[StageSpec],
    store: Store,
    hardware: Hardware,
    checkpoint: Checkpoint,
    accelerator: str,
) -> Expected:
    """Return how long the stages take that the store does not have."""
    seen = seen_seconds(store, hardware, checkpoint)
    stages = planned_stages(specs, store, seen, checkpoint.parameters, accelerator)
    return add_up(stage.expected for stage in stages if not stage.cached)


def assume_whole_run(choices: Choice, parameters: int) -> Iterator[Expected]:
    """Yield what every stage of a run would take, by the model's size."""
    accelerator = choices.profile.accelerator
    arms = 1 + len(choices.recipes)
    policy = choices.policy
    names = [JUDGE.name] * len(choices.recipes)
    for recipe in choices.recipes:
        names += [_label_of_quantizing(recipe.quantization), "check_weights"]
    names += ["serve", "sanity"] * arms
    names += ["evaluate"] * (arms * len(policy.suites))
    names += ["speed"] * (len(choices.recipes) if policy.speed is not None else 0)
    for name in names:
        yield assume(name, parameters, accelerator)


def _label_of_quantizing(quantization: Quantization) -> str:
    return "quantize fp8" if quantization.is_streamed else "quantize"


def planned_stages(
    specs: Sequence[StageSpec], store: Store, seen: Seen, parameters: int, accelerator: str
) -> Iterator[PlannedStage]:
    """Yield the stages, with rows for server starts."""
    served: set[str] = set()
    for spec in specs:
        part = spec.runtime.get("suite") or spec.runtime.get("gate")
        kind = _kind_of(stage_named(spec.stage).parameters_of(spec))
        is_cached = store.find_current(spec.stage, spec.key) is not None
        is_served = spec.stage in ("sanity", "evaluate", "speed") and not is_cached
        if is_served and spec.variant not in served and not _is_answered(spec, store):
            served.add(spec.variant)
            start = _expected(median_seconds(seen, SERVER), "serve", parameters, accelerator)
            yield PlannedStage("serve", spec.variant, False, start)
        name = f"{spec.stage} {part}" if part else spec.stage
        label = spec.stage
        if spec.stage == QUANTIZE.name:
            label = _label_of_quantizing(QUANTIZE.parameters_of(spec).quantization)
        measured = median_seconds(seen, (spec.stage, kind))
        expected = _expected(measured, label, parameters, accelerator)
        yield PlannedStage(name, spec.variant, is_cached, expected)


def _expected(measured: float | None, label: str, parameters: int, accelerator: str) -> Expected:
    if measured is None:
        return assume(label, parameters, accelerator)
    return Expected(measured, measured)


def _is_answered(spec: StageSpec, store: Store) -> bool:
    try:
        inputs = all(
            store.find_current(reference.stage, reference.key) for reference in spec.inputs.values()
        )
        return bool(spec.stage == "evaluate" and inputs and is_answered(spec, store))
    except (PrepareError, OSError):
        return False  # damaged; `prepare model` says so when it needs it


def median_seconds(seen: Seen, stage: tuple[str, str]) -> float | None:
    """Return a stage's usual duration, or None."""
    return statistics.median(seen[stage]) if stage in seen else None


def _kind_of(parameters: Record) -> str:
    return str(getattr(parameters, "kind", ""))


def seen_seconds(store: Store, hardware: Hardware, checkpoint: Checkpoint | None) -> Seen:
    """Return durations of finished stages on this hardware, by stage and kind.

    Stages of a model count if size and serving hardware are alike.
    """
    seen: Seen = {}
    # `prepare model` reports a damaged record if it needs it.
    records = list(known_of(store.records(leave_out_damaged=True)))
    models = {} if checkpoint is None else _like_models(records, checkpoint)
    here = {p.checkpoint for p in map(_served_of, records) if p and p.hardware == hardware}
    for kept in records:
        served = _served_of(kept)
        if served is not None and served.hardware != hardware:
            continue
        model = served.checkpoint if served else getattr(kept.parameters, "checkpoint", None)
        if model is not None and (model not in models or not {model, models[model]} & here):
            continue
        stage = kept.record.stage, _kind_of(kept.parameters)
        seen.setdefault(stage, []).append(kept.record.seconds)
        if isinstance(kept.result, SanityResult):
            seen.setdefault(SERVER, []).append(kept.result.server.ready_seconds)
    return seen


def _served_of(kept: TypedStageRecord[Record, Record]) -> ServedModel | None:
    """Return the model that a stage queried, or None."""
    of = kept.parameters
    if isinstance(of, SpeedParameters):
        of = of.sides["candidate"]
    return of if isinstance(of, ServedModel) else None


def _like_models(
    records: Sequence[TypedStageRecord[Record, Record]], checkpoint: Checkpoint
) -> dict[str, str]:
    """Return digests of similar checkpoints, as quantized and served."""
    source = checkpoint.recipe_source.digest
    models = {checkpoint.digest: source, source: checkpoint.digest}
    for kept in records:
        if not isinstance(kept.parameters, CheckWeightsParameters):
            continue
        result = CHECK_WEIGHTS.result_of(kept.record)
        if result.weights_bytes and result.size_ratio:
            ratio = result.weights_bytes / result.size_ratio / checkpoint.weights_bytes
            if abs(ratio - 1) <= LIKE_SIZE:
                models.setdefault(kept.parameters.checkpoint, kept.parameters.checkpoint)
    return models
