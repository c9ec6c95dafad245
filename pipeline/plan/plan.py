"""A run as stages with their keys.

A key is the digest of name, revision, parameters and inputs' keys, so the plan is known in advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.plan.recorded_arm import RecordedArm
from pipeline.serving.served_model import ServedModel
from pipeline.stages import CHECKED_WEIGHTS, WEIGHTS
from pipeline.stages.attempts import Trial
from prepare.stage import StageSpec
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Recipe, ServingProfile

MAKING = (WEIGHTS, CHECKED_WEIGHTS)


@dataclass(frozen=True)
class Arm:
    """A baseline, variant or endpoint as it is served, with its stages in run order.

    `identity` is the model with its arguments, a part of keys. `folder` has the weights, or an
    endpoint's tokenizer. `max_length` is in tokens. Before the plan is built, `stages` make and
    check the weights. `served` has the roles that the server's first run answers. `profile` is as
    applied, if not the plan's. No server of one that is `recorded` starts.
    """

    recipe: Recipe
    identity: ServedModel
    folder: Path
    max_length: int
    stages: Mapping[str, StageSpec] = field(default_factory=dict)
    served: tuple[str, ...] = ()
    profile: ServingProfile | None = None
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0
    recorded: RecordedArm | None = None

    @property
    def is_ours(self) -> bool:
        """Whether prepare serves it; an endpoint is served elsewhere, and a record not at all."""
        return self.identity.endpoint is None and self.recorded is None

    @property
    def making(self) -> list[StageSpec]:
        """Stages that make and check the weights."""
        return [self.stages[role] for role in MAKING if role in self.stages]


@dataclass(frozen=True)
class Plan:
    """A run: shared stages by role, the baseline, then the variants.

    `profile` is as applied; None for endpoints. `run` is '' to look ahead only. If the trial is a
    descent, variants are in its order, and none is asked after the first that does not pass.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: Arm
    variants: tuple[Arm, ...]
    trial: Trial
    profile: ServingProfile | None = None
    run: str = ""

    @property
    def accelerator(self) -> AcceleratorName | Literal[""]:
        """The serving accelerator; '' if unknown."""
        return self.profile.accelerator if self.profile is not None else ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the variants."""
        return (self.baseline, *self.variants)
