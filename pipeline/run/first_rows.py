"""Compares prompts, and asks endpoints each suite's first question, before thousands are asked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eval_gates.answer_log import ANSWERS
from eval_gates.suites.suite_kind import for_worker, kind_of
from pipeline.plan.plan import PlanProgress
from pipeline.run.run import Run
from pipeline.run.servers import facts_of
from pipeline.stages.evaluate import EVALUATE, TEXTS, folder_of, worker_spec
from prepare.process_environment import NetworkAccess
from prepare.stage import StageSpec


def ask_first_rows(state: PlanProgress, run: Run) -> None:
    """Ask each suite's first question; store nothing."""
    rows = []
    for name in state.plan.policy.suites:
        living = [arm for arm in state.plan.arms if arm.recorded is None]
        sides = [(arm.stages[name], facts_of(arm.identity.endpoint)) for arm in living]
        if not state.is_done(spec for spec, _ in sides):
            rows.append([run.with_runtime(spec, facts) for spec, facts in sides])
    asked = [[_asked(side_spec, state, run) for side_spec in sides] for sides in rows]
    if rows:
        _work(rows[0][0], state, run, {"first_rows": asked}, [NetworkAccess.ENDPOINT])


def compare_prompts(state: PlanProgress, run: Run) -> None:
    """Compare the prompts of a recorded arm with those that would be asked now.

    StageError: the first that differs.
    """
    (arm,) = state.plan.variants
    specs = [arm.stages[name] for name in state.plan.policy.suites]
    ready = [run.with_runtime(spec, {}) for spec in specs if state.find_current(spec) is None]
    if ready:
        asked = [_asked(spec, state, run) for spec in ready]
        _work(ready[0], state, run, {"recorded_prompts": asked}, [])


def _asked(spec: StageSpec, state: PlanProgress, run: Run) -> dict[str, Any]:
    """Return the worker's input, with the answers of a recorded arm to the same suite."""
    asked = worker_spec(spec, run.store)
    baseline = state.plan.baseline
    if baseline.recorded is None:
        return asked
    before = folder_of(spec, run.store, "baseline")
    files = [before / name for name in (ANSWERS, TEXTS)]
    reads_baseline = kind_of(EVALUATE.parameters_of(spec).suite).reads_baseline
    return {
        **asked,
        # That of the record: the variant's weights are not taken over yet.
        "tokenizer": str(baseline.folder),
        "recorded": str(before / ANSWERS),
        "baseline": [str(file) for file in files if reads_baseline and file.exists()],
    }


def _work(
    spec: StageSpec,
    state: PlanProgress,
    run: Run,
    asked: dict[str, Any],
    needs: Collection[NetworkAccess],
) -> None:
    plugins = [for_worker(suite) for suite in state.plan.policy.suites.values()]
    run.try_worker(spec, asked, plugins, needs)
