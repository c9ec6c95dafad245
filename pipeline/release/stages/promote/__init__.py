"""The stage that registers variants and moves an alias."""

from __future__ import annotations

from pydantic import Field

from artifacts.deployable import Deployable
from pipeline.core.record import Record
from pipeline.core.stage import Stage
from recipes.policy import Policy


class PromotionCandidate(Record, serialize_by_alias=True):
    """A variant to register."""

    recipe: str
    weights_bytes: int
    throughput_ratio: float | None = Field(description="of the policy's first; None without one")
    verdict: str
    trust_remote_code: bool
    made_by: str = Field("", description="who made the weights; '' if a recipe did")
    deployable: Deployable


class PromotedSource(Record):
    """The variants' source checkpoint."""

    checkpoint: str
    ref: str
    revision: str


class PromoteParameters(Record, serialize_by_alias=True):
    """What goes where."""

    policy: Policy
    candidates: list[PromotionCandidate] = Field(fail_fast=True)
    name: str
    registry: str
    alias: str
    previous_alias: str | None
    override: str | None
    source: PromotedSource


class PromoteRuntime(Record):
    """The user who promotes, and the alias' expected target."""

    explicit: bool = Field(description="asked for by name, and not the end of a run")
    since: str | None = Field(None, description="what it pointed to then")
    replaces: str | None = Field(None, description="this version")
    run: str
    who: str
    reasons: dict[str, str]


class PromoteResult(Record):
    """What is registered now."""

    name: str
    versions: dict[str, str]
    champion: str
    alias: str
    registry: str
    replaced: str | None
    moved: bool


PROMOTE = Stage("promote", 1, PromoteParameters, PromoteRuntime, PromoteResult)
