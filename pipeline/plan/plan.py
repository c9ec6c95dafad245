"""A run as stages with their keys.

A stage's key is the digest of its name, revision, parameters and inputs' keys, so the plan and its
finished stages are known in advance. Only verdicts and promotion depend on answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.core.stage import StageSpec
from pipeline.serving.served_model import ExternalEndpoint, ServedModel, ServingSpec
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.attempts import Trial
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Recipe, ServingProfile

MAKING = ("quantize", "check_weights")


@dataclass(frozen=True)
class Arm:
    """A baseline or variant as it is served, or an endpoint, with its stages in run order.

    Args:
        identity: the model and its serving arguments; part of the keys.
        folder: of the served weights, or of an endpoint's tokenizer.
        max_length: maximum tokens of prompt and answer together.
        stages: by role; before the plan is built, those that make and check the weights.
        served: roles that the first run of the arm's server answers.
        arguments: None for an external endpoint.
        profile: as it is applied, if this arm has another than the plan's.
        draft: directory of the draft checkpoint, if any.
    """

    recipe: Recipe
    identity: ServedModel
    folder: Path
    max_length: int
    stages: Mapping[str, StageSpec] = field(default_factory=dict)
    served: tuple[str, ...] = ()
    arguments: ServingArguments | None = None
    endpoint: ExternalEndpoint | None = None
    profile: ServingProfile | None = None
    trust_remote_code: bool = False
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0

    @property
    def making(self) -> list[StageSpec]:
        """Stages that make and check the weights; none of a baseline or an endpoint."""
        return [self.stages[role] for role in MAKING if role in self.stages]

    @property
    def to_serve(self) -> ServingSpec:
        return ServingSpec(
            name=self.recipe.name,
            folder=str(self.folder),
            arguments=self.arguments,
            ready_timeout_seconds=self.ready_timeout_seconds,
            trust_remote_code=self.trust_remote_code,
            draft=str(self.draft) if self.draft else None,
            endpoint=self.endpoint,
        )


@dataclass(frozen=True)
class Plan:
    """A full run: shared stages by role, the baseline, then the variants.

    Args:
        profile: as it is applied; None for endpoints.
        run: id of the run; '' to look ahead only.
        until_pass: gate one variant after another, and none after the first that passes.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: Arm
    variants: tuple[Arm, ...]
    trial: Trial
    profile: ServingProfile | None = None
    run: str = ""
    until_pass: bool = False

    @property
    def accelerator(self) -> AcceleratorName | Literal[""]:
        """The serving accelerator; '' if unknown."""
        return self.profile.accelerator if self.profile is not None else ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the variants."""
        return (self.baseline, *self.variants)


def repeat_role(suite: str) -> str:
    """Return the role of the stage that repeats a suite's first questions."""
    return f"{suite} again"
