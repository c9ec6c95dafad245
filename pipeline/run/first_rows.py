"""Asks endpoints each suite's first question, before thousands are asked."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval_gates.suites.suite_kind import for_worker
from pipeline.plan.progress import PlanProgress
from pipeline.run.run import Run
from pipeline.run.servers import facts_of
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import worker_spec
from prepare.process_environment import NetworkAccess


def ask_first_rows(state: PlanProgress, run: Run) -> None:
    """Ask each suite's first question; store nothing."""
    rows = []
    for name in state.plan.policy.suites:
        sides = [(arm.stages[name], facts_of(arm.identity.endpoint)) for arm in state.plan.arms]
        if not state.is_done(spec for spec, _ in sides):
            rows.append([run.with_runtime(spec, facts) for spec, facts in sides])
    if not rows:
        return
    spec = rows[0][0]
    asked = [[worker_spec(each, run.store) for each in sides] for sides in rows]
    with TemporaryDirectory() as folder:
        context = StageContext[Any, Any](spec, Path(folder), run.store, run.progress)
        context.run_worker(
            "eval_gates.evaluate_worker",
            {"first_rows": asked},
            plugins=[for_worker(suite) for suite in state.plan.policy.suites.values()],
            needs=[NetworkAccess.ENDPOINT],
        )
