"""`prepare model --screen`: serves each arm once, without gates.

With `--ablate` each variant's weights are served with the baseline's KV cache as well, and the
baseline's weights with the variant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from artifacts.run_record import ScreenedModel
from eval_gates.answer_log import read_answers
from eval_gates.clusters import group_by_cluster, means
from eval_gates.effect import measure_effect
from eval_gates.rows import Answer
from eval_gates.speed.load_run import LOADS, read_loads
from eval_gates.verdicts import check_paired
from pipeline.core.errors import ExitCode, PrepareError, ServingError
from pipeline.core.stage import StageSpec
from pipeline.plan.plan import MAKING, Arm, Plan
from pipeline.plan.screening import kv_dtype, screening_stages, with_kv_dtype
from pipeline.run.recorder import RunRecorder
from pipeline.run.serving import Serving
from pipeline.run.stage_run import StageRunner
from pipeline.stages.speed import ROLE, SPEED


class ScreeningRun:
    """Measurement of every arm."""

    def __init__(
        self,
        plan: Plan,
        stages: StageRunner,
        serving: Serving,
        log: RunRecorder,
        baseline_bytes: int | None = None,
        *,
        ablate: bool = False,
    ) -> None:
        self._plan = plan
        self._stages = stages
        self._serving = serving
        self._log = log
        self._baseline_bytes = baseline_bytes
        self._ablate = ablate
        (self._suite,) = plan.policy.suites

    def run(self) -> ExitCode:
        """Return 0 if a variant was measured; raise the baseline's error."""
        for spec in self._plan.shared.values():
            self._stages.run(spec)
        found = [self._measure(self._plan.baseline)]
        self._log.note_screened(found)
        arms = [*self._plan.variants, *(self._parts() if self._ablate else ())]
        for arm in arms:
            try:
                measured = self._measure(arm)
            except PrepareError as error:
                self._stages.progress.note(f"{arm.recipe.name}: {error}")
                failed = {"name": arm.recipe.name, "weights_bytes": self._weights(arm)}
                measured = ScreenedModel(**failed, reason=error.message)
            is_part = arm not in self._plan.variants
            found.append(measured.model_copy(update={"is_part": is_part}))
            self._log.note_screened(found)
        is_any = any(each.effect is not None for each in found[1:])
        return ExitCode.SUCCESS if is_any else ExitCode.EXPECTED_ERROR

    def _parts(self) -> list[Arm]:
        """Return each variant with the baseline's KV cache, and the baseline with each other."""
        baseline, parts = self._plan.baseline, {}
        for arm in self._plan.variants:
            before, after = kv_dtype(baseline), kv_dtype(arm)
            if before == after:
                self._stages.progress.note(
                    f"{arm.recipe.name}: its KV cache is of the baseline's type, {after}, so all "
                    "that it lost, it lost by its weights"
                )
                continue
            for origin, dtype in ((arm, before), (baseline, after)):
                part = with_kv_dtype(origin, dtype, arm.stages[self._suite], self._suite)
                parts[part.recipe.name] = part
        return list(parts.values())

    def _measure(self, arm: Arm) -> ScreenedModel:
        suite, is_part = self._suite, "screen" not in arm.stages
        stages = arm.stages if is_part else screening_stages(self._plan, arm)
        self._make(arm.making)
        served = {role: spec for role, spec in stages.items() if role not in MAKING}
        self._serving.hold(replace(arm, stages=served), list(served.values()))
        own, first = self._answers(stages[suite]), self._plan.baseline.stages[suite]
        before = own if arm is self._plan.baseline else self._answers(first)
        check_paired(suite, before, own)
        is_same = all(
            (a.score, a.nats) == (b.score, b.nats) for a, b in zip(own, before, strict=True)
        )
        if is_part and is_same and kv_dtype(arm) != kv_dtype(self._plan.baseline):
            # Some engines' prefill does not read the cache (MLA).
            raise ServingError(
                "not measured: the engine reads a prompt without its KV cache",
                where=arm.recipe.name,
            )
        sides = [group_by_cluster(rows) for rows in (before, own)]
        scores, nats = ([means(each, key) for each in sides] for key in ("score", "nats"))
        load = stages.get(f"{ROLE}screening")
        return ScreenedModel(
            name=arm.recipe.name,
            weights_bytes=self._weights(arm),
            effect=measure_effect(scores, nats, self._plan.policy.alpha),
            output_tokens_per_s=self._rate(load) if load else None,
            stages={role: spec.key for role, spec in stages.items()},
        )

    def _make(self, specs: Sequence[StageSpec]) -> None:
        needs, progress = self._stages.needs_to_make(specs), self._stages.progress
        with self._serving.node.take(needs, lambda who: progress.note(f"waiting for {who}")):
            for spec in specs:
                self._stages.run(spec)

    def _answers(self, spec: StageSpec) -> list[Answer]:
        return read_answers(self._stages.store.stage_folder(spec.stage, spec.key))

    def _rate(self, spec: StageSpec) -> float | None:
        loads = read_loads(self._stages.store.stage_folder(spec.stage, spec.key) / LOADS)
        return SPEED.parameters_of(spec).rule.evaluate(loads).estimate

    def _weights(self, arm: Arm) -> int | None:
        spec = arm.stages.get("quantize")
        return self._stages.weights_bytes(spec) if spec else self._baseline_bytes
