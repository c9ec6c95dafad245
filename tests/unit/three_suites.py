"""The demo's policy with MMLU in the place of its quiz, as everybody else's has it."""

from __future__ import annotations

from recipes.catalog import load_policy
from recipes.policy import Policy


def three_suites() -> Policy:
    """Suites mmlu (supporting, from packages), humaneval and rouge."""
    demo = load_policy("demo")
    mmlu = {"sources": ["eval-data", "packages"], "tier": "supporting"}
    suites = {
        "mmlu" if name == "quiz" else name: suite.model_copy(
            update=mmlu if name == "quiz" else {"tier": "critical"}
        )
        for name, suite in demo.suites.items()
        if name != "conversations"
    }
    return demo.model_copy(update={"suites": suites})
