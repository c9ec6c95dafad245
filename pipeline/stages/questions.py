"""Lays out one suite's questions: where they come from, which ones, and in which order.

Every variant, and the baseline, is asked exactly these, so that answers can be paired.
"""

from __future__ import annotations

from typing import Any

from eval_gates.answers import QUESTIONS
from pipeline.core.digest import digest_bytes
from pipeline.core.process_environment import Need
from pipeline.stages.context import StageContext


def run(context: StageContext) -> dict[str, Any]:
    """Write questions.jsonl; worked examples stand in each question's own row."""
    source = context.parameters["source"]
    facts = context.run_worker(
        "questions",
        {
            "suite": context.parameters["suite"],
            "source": source,
            "seed": context.parameters["seed"],
            "folder": context.runtime.get("folder"),
        },
        needs=[Need.HUB] if source["kind"] == "hub" or source.get("dataset") else [],
    )
    if facts["dropped"]:
        context.note(f"{facts['dropped']} {facts['dropped_why']}")
    content = (context.folder / QUESTIONS).read_bytes()
    return {**facts, "questions_digest": digest_bytes(content)}
