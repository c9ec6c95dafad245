"""Lays out one suite's questions: where they come from, which ones, and in which order.

Every variant, and the baseline, is asked exactly these, so that answers can be paired.
"""

from __future__ import annotations

from typing import Any

from pipeline.digest import digest_bytes
from pipeline.stages.context import StageContext

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Write questions.jsonl; worked examples stand in each question's own row."""
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
    content = (context.folder / "questions.jsonl").read_bytes()
    return {**facts, "questions_digest": digest_bytes(content)}
