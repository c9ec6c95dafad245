"""Suites within the length that a model or its server takes."""

from __future__ import annotations

from collections.abc import Callable

from eval_gates.suites.suite_kind import kind_of
from pipeline.checkpoint.folder import Checkpoint
from recipes.policy import Policy
from recipes.schema import ServingProfile


def max_length_of(profile: ServingProfile, checkpoint: Checkpoint) -> int:
    """Return the maximum tokens of prompt and answer: the engine's limit, or the model's."""
    limit = profile.engine_arguments.get("max-model-len")
    return limit if isinstance(limit, int) else checkpoint.max_position_embeddings


def with_lengths(policy: Policy, max_length: int, note: Callable[[str], None]) -> Policy:
    """Return the policy without the questions that are longer than that many tokens.

    Args:
        note: receives what was left out.

    Raises:
        UsageError: a suite has no shorter ones.
    """
    suites = {
        name: kind_of(suite).fit(name, suite, max_length, note)
        for name, suite in policy.suites.items()
    }
    return policy.model_copy(update={"suites": suites})
