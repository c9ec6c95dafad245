"""Criteria of a policy's verdict: everything that decides whether a variant passes."""

from __future__ import annotations

from typing import Any

from recipes.policy import Policy, Suite

OF_THE_TEST = {*Suite.model_fields, "sources"}
DECIDES = ("tier", "test", "about")


def claim_of(policy: Policy, family: str) -> dict[str, Any]:
    """Return the error rate with its scope, and each critical gate's test settings.

    Only a fixed test includes the maximum number of questions; a sequential gate can continue. The
    expected flips fix its planned bet in advance.
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
    criteria: dict[str, Any] = {
        "alpha": policy.alpha,
        "attempts": policy.attempts,
        "suites": suites,
    }
    cost = policy.cost
    if cost is not None and cost.tier == "critical":
        criteria["cost"] = {"suites": cost.suites, "max_ratio": cost.ratio_of(family)}
    return criteria
