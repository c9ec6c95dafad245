"""Registers the variants that passed, and moves the alias to the one the policy prefers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from artifacts.registry.mlflow_registry import TUPLE_TAG, MlflowRegistry, still_has
from pipeline.digest import digest_json
from pipeline.records import StageRecord
from pipeline.stages.context import StageContext
from recipes.policy import Policy

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Register each passing candidate, then move the alias to one of them.

    Raises:
        RegistryError: the registry refused or cannot be reached; nothing else was changed.
    """
    policy = Policy.model_validate(context.parameters["policy"]).promotion
    candidates: list[dict[str, Any]] = context.parameters["candidates"]
    registry = MlflowRegistry(context.parameters["registry"])
    name = context.parameters["name"]
    versions = {
        candidate["recipe"]: registry.register(
            name, weights_folder(context, candidate["recipe"]), tags(context, candidate)
        )
        for candidate in candidates
    }
    chosen = max(candidates, key=lambda candidate: preference(candidate, policy.prefer))
    registry.move_alias(name, policy.alias, policy.previous_alias, versions[str(chosen["recipe"])])
    return {
        "name": name,
        "versions": versions,
        "champion": chosen["recipe"],
        "alias": policy.alias,
        "registry": context.parameters["registry"],
    }


def still_holds(record: StageRecord) -> bool:
    """Whether the registry still has what this record says; someone may have deleted it.

    Or moved the alias on: who asks again for this promotion gets it again.
    """
    result = record.result
    return still_has(
        result["registry"],
        result["name"],
        result["versions"].values(),
        {result["alias"]: result["versions"][result["champion"]]},
    )


def preference(candidate: dict[str, Any], prefer: str) -> float:
    """Larger is better: by measured throughput ratio, or by small weights."""
    if prefer == "throughput":
        return float(candidate["throughput_ratio"])
    return -float(candidate["weights_bytes"])


def weights_folder(context: StageContext, recipe: str) -> Path:
    """The checkpoint folder that a registered version points to."""
    return context.input_folder(f"weights.{recipe}") / "output"


def tags(context: StageContext, candidate: dict[str, Any]) -> dict[str, str]:
    """The deployable tuple and where it comes from, as text tags of the version."""
    deployable: dict[str, Any] = candidate["deployable"]
    return {
        TUPLE_TAG: digest_json(deployable),
        "prepare.recipe": str(candidate["recipe"]),
        "prepare.verdict": "pass",
        "prepare.policy": context.parameters["policy"]["name"],
        "prepare.policy.digest": digest_json(context.parameters["policy"]),
        "prepare.verdict.stage": context.spec.inputs[f"judge.{candidate['recipe']}"].key,
        **{f"prepare.{key}": as_tag(value) for key, value in deployable.items()},
        **{f"prepare.source.{key}": as_tag(v) for key, v in context.parameters["source"].items()},
    }


def as_tag(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
