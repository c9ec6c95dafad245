"""The shape of policies: what a variant must show, suite by suite, before it is promoted."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.plugins import SUITES, load_class
from recipes.alias_names import RULE, can_be_alias
from recipes.config_model import ConfigModel, Name, Tier
from recipes.of_kind import OfKind
from recipes.schema import Family
from recipes.speed import Accelerator, SpeedGate, SpeedPolicy

Source = Literal["eval-data", "hub", "packages", "builtin"]
Form = Annotated[
    Literal["auto", "completion", "chat"],
    Field(
        description="chat: with the chat template; base: text to go on from; auto: chat where the "
        "tokenizer has a template, else base"
    ),
]


class Margin(ConfigModel):
    """What a variant may lose: `0.01` (one point), `{points: 0.01}` or `{recovery: 0.99}`."""

    points: float | None = Field(
        None, gt=0, lt=1, description="largest acceptable drop of the mean score; 0.01 is a point"
    )
    recovery: float | None = Field(
        None, ge=0.01, lt=1, description="smallest acceptable share of the baseline's mean score"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_number_is_points(cls, value: Any) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {"points": value} if is_number else value

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Margin:
        if (self.points is None) == (self.recovery is None):
            raise ValueError(
                "give a number of points such as 0.01, or one of {points: 0.01} and "
                "{recovery: 0.99}"
            )
        return self

    @property
    def words(self) -> str:
        """For tables: `1 point`, `99 % recovery`."""
        if self.recovery is not None:
            return f"{100 * self.recovery:g} % recovery"
        points = 100 * (self.points or 0)
        return f"{points:g} point" + ("" if points == 1 else "s")


class EvalTask(ConfigModel):
    """What a question's answer depends on."""

    kind: str
    prompt_format: str = Field("auto", description="how it is asked")
    cluster_by: str | None = Field(
        None,
        min_length=1,
        description="a field of the questions that says which belong together, such as the passage "
        "that they are about: each such cluster is asked whole, and its mean is one value",
    )


class Suite(EvalTask):
    """What decides over the answers: a change here judges the same ones again."""

    sources: list[Source] = Field(default=["eval-data"], description="the first that has questions")
    margins: dict[Family, Margin] = Field(
        description="largest acceptable loss by family of recipe, in points or as a recovery"
    )
    tier: Tier = Field(
        "critical",
        description="critical: must pass. supporting: must not fail. advisory: never blocks. "
        "A missing result always blocks",
    )
    test: Literal["sequential", "fixed"] = Field(
        "sequential",
        description="sequential: stop as soon as it is decided, valid at any time (betting). "
        "fixed: ask all, then one bound (Gaffke)",
    )
    about: Literal["population", "benchmark"] = Field(
        "population",
        description="population: of all such questions. benchmark: of this finite list and the "
        "answers given to it alone: a count, decided by its end",
    )
    questions: int | None = Field(
        None, ge=1, le=10_000_000, description="how many at most; all when absent"
    )
    batch: int = Field(64, ge=1, le=1_000_000, description="questions asked between two looks")
    time_budget_minutes: float | None = Field(
        None,
        gt=0,
        le=43_200,
        description="time budget of each round's answers; what is open then stays open",
    )
    expected_flips: float = Field(
        0.04,
        ge=1e-6,
        le=1,
        description="share of answers expected to change; sizes the first round, and chooses the "
        "bet with half of a sequential test's stake",
    )
    noise_floor_questions: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="questions the baseline is asked twice: the flips of serving alone",
    )
    concurrency: int = Field(32, ge=1, le=10_000, description="requests in flight")

    @model_validator(mode="after")
    def _the_test_suits_the_claim(self) -> Suite:
        if self.test == "fixed" and self.about == "benchmark":
            raise ValueError(
                "'test: fixed' bounds the population that the questions come from; for a claim "
                "about the benchmark alone take 'test: sequential'"
            )
        if self.test == "fixed" and self.time_budget_minutes is not None:
            raise ValueError(
                "'test: fixed' asks all questions, so 'time_budget_minutes' cannot end it; remove "
                "'time_budget_minutes', "
                "or take 'test: sequential'"
            )
        return self


class SuiteModels(ABC):
    """Base of a kind of suite, as far as a policy needs it; a `SuiteKind` has the rest."""

    task: type[EvalTask]
    """What an answer depends on."""
    policy: type[Suite]
    """A subclass of `task` with what a policy decides."""


def _task_model(kind: str) -> type[EvalTask]:
    found: type[SuiteModels] = load_class(SUITES, kind, SuiteModels)
    return found.task


def _policy_model(kind: str) -> type[Suite]:
    found: type[SuiteModels] = load_class(SUITES, kind, SuiteModels)
    return found.policy


AnySuite = Annotated[Suite, OfKind(SUITES, _policy_model)]
AnyTask = Annotated[EvalTask, OfKind(SUITES, _task_model)]


class PromotionRule(ConfigModel):
    """Which alias moves, and which variant gets it when several pass."""

    alias: str = "champion"
    previous_alias: str = "previous"
    prefer: Literal["throughput", "smallest"] = Field(
        "throughput",
        description="throughput: the largest ratio of `speed.ratio`, by its first workload; the "
        "smallest where the policy has none",
    )

    @field_validator("alias", "previous_alias")
    @classmethod
    def _every_registry_has_it(cls, alias: str) -> str:
        if not can_be_alias(alias):
            raise ValueError(f"'{alias}' cannot be an alias: {RULE}")
        return alias

    @model_validator(mode="after")
    def _they_differ(self) -> PromotionRule:
        if self.alias == self.previous_alias:
            raise ValueError(
                f"alias and previous_alias are both '{self.alias}': the champion before would be "
                "the champion, and there would be no way back"
            )
        return self


# What a variant's other stages and gates are called: plans and verdicts have both by name.
RESERVED_SUITE_NAMES = (
    "quantize",
    "check_weights",
    "dry_run",
    "coherence",
    "judge",
    "speed",
)


Attempts = Literal["per_run", "spend"]


class Policy(ConfigModel):
    """What a variant must show before it is promoted."""

    name: Name
    summary: str
    alpha: float = Field(
        0.05, ge=1e-9, lt=0.5, description="chance that a variant worse than allowed is promoted"
    )
    attempts: Attempts = Field(
        "per_run",
        description="what alpha bounds; per_run: the chance that any variant of one run passes "
        "falsely; spend: that any of all runs against one baseline does: the first has half of "
        "alpha, run k has 0.5 / (k (k - 1)) of it",
    )
    suites: dict[Name, AnySuite] = Field(min_length=1, max_length=100)
    speed: SpeedPolicy | None = Field(
        None, description="claims on throughput and latency that have an error rate"
    )
    promotion: PromotionRule = PromotionRule()

    def claims_on(self, accelerator: Accelerator | None) -> tuple[SpeedGate, ...]:
        """The claims on speed that it makes there; None: of endpoints that someone else serves."""
        return self.speed.claims_on(accelerator) if self.speed is not None else ()

    @field_validator("suites")
    @classmethod
    def _names_are_free(cls, suites: dict[str, AnySuite]) -> dict[str, AnySuite]:
        for name in suites:
            if name in RESERVED_SUITE_NAMES or name.startswith("speed."):
                raise ValueError(f"a suite cannot be called '{name}', a stage or gate is")
        return suites

    @model_validator(mode="after")
    def _something_must_pass(self) -> Policy:
        if not any(suite.tier == "critical" for suite in self.suites.values()):
            raise ValueError("no suite is critical, so a variant need not show anything")
        return self
