"""How suites are asked, as far as it depends on the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from eval_gates.suites.suite_kind import kind_of
from recipes.checkpoints.chat_template import SAMPLING, ModelGeneration
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.thinking import find_markers
from recipes.generation import Generation, Sampling
from recipes.policy import AnySuite, Policy
from recipes.schema import ServingProfile

SWITCH = "enable-auto-tool-choice"
PARSER = "tool-call-parser"


def resolve_generation(policy: Policy, model: ModelGeneration) -> Policy:
    """Return the policy with the model's settings, as far as valid."""
    suites = {}
    for name, suite in policy.suites.items():
        resolved: dict[str, Any] = {"prompt_format": form_of(suite, model)}
        if isinstance(suite, Generation):
            sampling = model_sampling(model) if suite.sampling == "model" else ""
            if isinstance(sampling, Sampling):
                resolved["sampling"] = sampling
            if suite.thinking in ("remove", "keep") and (markers := find_markers(model)):
                resolved["thinking"] = markers.model_copy(update={"keep": suite.thinking == "keep"})
        suites[name] = suite.model_copy(update=resolved)
    return policy.model_copy(update={"suites": suites})


def model_sampling(model: ModelGeneration) -> Sampling | str:
    """Return the model's sampling, or why there is none."""
    known = {key: model.sampling.get(key) for key in Sampling.model_fields}
    given = {key: value for key, value in known.items() if value is not None}
    if not given:
        return f"{SAMPLING} says nothing of it"
    if model.sampling.get("do_sample") is False or given.get("temperature") == 0:
        return f"{SAMPLING} is greedy"
    try:
        return Sampling.model_validate(given)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        return f"'{key}' of {SAMPLING} is out of range"


def form_of(suite: AnySuite, model: ModelGeneration) -> str:
    """Return the format in which the suite is asked: that of the suite, or the model's."""
    if suite.prompt_format != "auto":
        return suite.prompt_format
    return "chat" if model.has_template else "completion"


def max_length_of(profile: ServingProfile, checkpoint: Checkpoint) -> int:
    """Return the limit for prompt and answer in tokens."""
    limit = profile.engine_arguments.get("max-model-len")
    return limit if isinstance(limit, int) else checkpoint.max_position_embeddings


def with_lengths(policy: Policy, max_length: int, note: Callable[[str], None]) -> Policy:
    """Return the policy without questions of more than `max_length` tokens.

    `note` receives what was left out. UsageError: a suite has no shorter ones.
    """
    suites = {
        name: kind_of(suite).fit(name, suite, max_length, note)
        for name, suite in policy.suites.items()
    }
    return policy.model_copy(update={"suites": suites})
