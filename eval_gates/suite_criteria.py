"""What a policy's verdict claims: all that decides whether a variant passes, and nothing else."""

from __future__ import annotations

from typing import Any

from recipes.policy import Policy, Suite

OF_THE_TEST = {*Suite.model_fields, "sources"}
DECIDES = ("tier", "test", "about")


def claim_of(policy: Policy, family: str) -> dict[str, Any]:
    """The error rate and what it bounds; of each critical suite the questions, margin and test.

    How many questions are asked at most belongs to it only where one look is taken at their end:
    a sequential gate continues with more of them and is the same. Its bet depends on the flips that
    it expects: guessing them again after each look would choose the bet by the answers.
    """
    suites = {}
    for name, suite in policy.suites.items():
        if suite.tier != "critical":
            continue
        settings = suite.model_dump(mode="json")
        plans = ("questions",) if suite.test == "fixed" else ("expected_flips",)
        suites[name] = {
            key: value
            for key, value in settings.items()
            if key not in OF_THE_TEST or key in (*DECIDES, *plans)
        } | {"margin": settings["margins"].get(family)}
    return {"alpha": policy.alpha, "attempts": policy.attempts, "suites": suites}
