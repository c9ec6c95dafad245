"""Lays out one suite's questions: where they come from, which ones, and in which order.

Every variant, and the baseline, is asked exactly these, so that answers can be paired.
"""

from __future__ import annotations

from typing import Any

from pipeline.stages.context import StageContext

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Write questions.jsonl (and shots.jsonl, where the suite has examples)."""
    facts = context.run_worker(
        "questions",
        {
            "suite": context.parameters["suite"],
            "source": context.parameters["source"],
            "seed": context.parameters["seed"],
            "folder": context.runtime.get("folder"),
            "needs_hub": context.parameters["source"]["kind"] == "hub",
        },
    )
    if facts["dropped"]:
        context.note(f"{facts['dropped']} {facts['dropped_why']}")
    return facts
