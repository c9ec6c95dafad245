"""Policies: requirements on variants."""

from __future__ import annotations

import re
from abc import ABC
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from prepare.plugins import SUITES, load_class
from prepare.user_path import user_path
from recipes.accelerator import Accelerator
from recipes.config_model import ConfigModel, Name, Tier
from recipes.generation import Generation
from recipes.of_kind import OfKind
from recipes.schema import Family
from recipes.speed import SpeedGate, SpeedPolicy


class CostGate(ConfigModel):
    """Largest ratio of tokens per solved task, variant over baseline."""

    suites: list[Name] = Field(
        min_length=1, max_length=20, description="each is one gate, on its own answers"
    )
    max_ratio: dict[Family, Annotated[float, Field(ge=0.1, le=10)]] = Field(
        min_length=1,
        description="by recipe family; 1.05 is five per cent more tokens per solved task",
    )
    tier: Literal["supporting", "advisory"] = Field(
        "supporting",
        description="supporting: must not fail. advisory: never blocks. The interval is "
        "asymptotic, so it cannot be critical; it takes 500 problems",
    )

    def ratio_of(self, family: str) -> float | None:
        """Return the largest ratio for recipes of that family."""
        return next((ratio for name, ratio in self.max_ratio.items() if name == family), None)


Source = Literal["eval-data", "hub", "packages", "builtin"]
SOURCES = "in order; the first that has questions is used"


class Margin(ConfigModel):
    """Largest acceptable loss: `0.01` (one point), `{points: 0.01}` or `{recovery: 0.99}`."""

    points: float | None = Field(
        None,
        ge=1e-9,
        lt=1,
        description="largest acceptable drop of the mean score; 0.01 is a point",
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
    def half(self) -> Margin:
        """Half of the loss."""
        if self.points is not None:
            return Margin(points=self.points / 2)
        return Margin(recovery=1 - (1 - (self.recovery or 0)) / 2)

    @property
    def words(self) -> str:
        """Short form: `1 point`, `99 % recovery`."""
        if self.recovery is not None:
            return f"{100 * self.recovery:g} % recovery"
        points = 100 * (self.points or 0)
        return f"{points:g} point" + ("" if points == 1 else "s")


class EngineRule(ConfigModel):
    """What another engine under a promoted variant may change; `prepare recheck` decides by it."""

    margins: dict[Name, dict[Family, Margin]] = Field(
        min_length=1,
        description="by suite and recipe family, the largest acceptable loss against the variant's "
        "own recorded answers. Without one it is half of the suite's margin",
    )


class UsualChange(ConfigModel):
    """Effect of a usual good variant on a suite's scores."""

    flips: float = Field(ge=0, le=1, description="share of the scores that change")
    loss: float = Field(0.0, ge=0, lt=1, description="drop of the mean score; 0.01 is a point")


class EvalTask(ConfigModel):
    """Settings that a question's answer depends on."""

    kind: str
    prompt_format: str = Field("auto", description="format of the prompts")
    cluster_by: str | None = Field(
        None,
        min_length=1,
        description="a field of the questions that groups them, such as their passage. A cluster "
        "is always asked completely, and its mean counts as one value",
    )
    parts_by: str | None = Field(
        None,
        min_length=1,
        description="a field of the questions that splits them, such as their language. The gate "
        "fails if one of these parts is shown to lose the margin, even if the mean hides it. "
        "Evidence has the values",
    )

    @property
    def reads_fields(self) -> bool:
        """Whether a key names a field of the questions."""
        return self.cluster_by is not None or self.parts_by is not None


class Suite(EvalTask):
    """Settings of the decision only: after a change, the same answers are decided again."""

    sources: list[Source] = Field(default=["eval-data"], description=SOURCES)
    data: str | None = Field(
        None,
        min_length=1,
        description="file or folder with the suite's own questions, in the place of `sources`. A "
        "relative path starts from the policy's directory",
    )
    margins: dict[Family, Margin] = Field(
        description="largest acceptable loss by recipe family, in points or as a recovery"
    )
    tier: Tier = Field(
        "critical",
        description="critical: must pass. supporting: must not fail. advisory: never blocks. "
        "A missing result always blocks",
    )
    questions: int | None = Field(
        None, ge=1, le=10_000_000, description="largest number; all when absent"
    )
    max_gain: float | None = Field(
        None,
        gt=0,
        le=1,
        description="largest plausible gain of the mean score; the margin when absent. A variant "
        "that is shown to gain, and gains more, is undecided: both sides were not asked alike",
    )
    usual: dict[Family, UsualChange] = Field(
        default={},
        description="the usual good variant, by recipe family: `prepare plan` says how often it "
        "passes. It decides nothing",
    )
    assumed_baseline: float | None = Field(
        None,
        gt=0,
        le=1,
        description="mean score that `prepare plan` assumes of the baseline; the suite's own when "
        "absent. No verdict depends on it",
    )
    noise_floor_questions: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="questions that the baseline answers twice, to measure flips without "
        "quantization",
    )
    concurrency: int | None = Field(
        None, ge=1, le=10_000, description="requests in flight; without it the profile's"
    )

    # Not a key: records do not name local directories.
    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def has_paths(self) -> bool:
        """Whether a key names a file or folder."""
        return self.data is not None

    def find_in(self, folder: Path) -> Self:
        """Return the suite with paths relative to that directory."""
        if not self.has_paths:
            return self
        written = Path(self.data or "")
        if not written.is_absolute():
            placed = self.model_copy()
            placed._folder = folder
            return placed
        placed = self.model_copy(update={"data": written.name})
        placed._folder = written.parent
        return placed

    def with_paths_of(self, other: Suite) -> Self:
        """Return the suite with paths relative to the other's directory."""
        placed = self.model_copy()
        placed._folder = other._folder
        return placed

    def path_of(self, written: str, where: str) -> Path:
        """Return a path of the policy; UsageError if no file can have it."""
        return self._folder / user_path(written, where)


class SuiteModels(ABC):
    """Models of a kind of suite."""

    task: type[EvalTask]
    """Settings that an answer depends on."""
    policy: type[Suite]
    """Subclass of `task` with the settings of the decision."""


def _models(kind: str) -> type[SuiteModels]:
    models: type[SuiteModels] = load_class(SUITES, kind, SuiteModels)
    return models


def _is_generating(suite: Any) -> bool:
    """Return whether answers are generated."""
    if not isinstance(suite, dict):
        return False
    try:
        return issubclass(_models(str(suite.get("kind"))).policy, Generation)
    except LookupError:
        return False  # the suite has an error then


AnySuite = Annotated[Suite, OfKind(SUITES, lambda kind: _models(kind).policy)]
AnyTask = Annotated[EvalTask, OfKind(SUITES, lambda kind: _models(kind).task)]


# Valid as an OCI tag, a git ref and an MLflow alias. Registries name versions v1, v2, ..., and
# reserve the names below.
_ALIAS = re.compile(r"(?![vV]?\d+$)[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
_TAKEN = ("latest", "main", "HEAD", "prepare-history")


def find_alias_fault(alias: str) -> str:
    """Return why a registry cannot have such an alias, or ''."""
    if _ALIAS.fullmatch(alias) and alias not in _TAKEN:
        return ""
    return (
        f"'{alias}' cannot be an alias: letters, digits, '_' and '-' (not at the beginning), 128 "
        f"at most; not a version's number, and none of {', '.join(_TAKEN)}"
    )


class PromotionRule(ConfigModel):
    """Alias to move, and choice among several variants that pass."""

    alias: str = "champion"
    previous_alias: str = "previous"
    prefer: Literal["throughput", "smallest"] = Field(
        "throughput",
        description="throughput: the largest ratio of `speed.ratio` on its first workload, or the "
        "smallest variant if the policy has no ratio",
    )

    @field_validator("alias", "previous_alias")
    @classmethod
    def _every_registry_has_it(cls, alias: str) -> str:
        if fault := find_alias_fault(alias):
            raise ValueError(fault)
        return alias

    @model_validator(mode="after")
    def _they_differ(self) -> PromotionRule:
        if self.alias == self.previous_alias:
            raise ValueError(
                f"alias and previous_alias are both '{self.alias}': rollback would be impossible"
            )
        return self


# Names of roles, other stages and gates: plans and verdicts list them and suites by name.
RESERVED_SUITE_NAMES = (
    *("weights", "checked_weights", "first_texts", "quantize", "check_weights", "sanity"),
    *("judge", "speed", "cost"),
)


class Policy(ConfigModel):
    """Requirements that a variant must meet before promotion."""

    name: Name
    summary: str
    alpha: float = Field(
        0.05, ge=1e-9, lt=0.5, description="chance that a variant worse than allowed is promoted"
    )
    attempts: int | None = Field(
        None,
        ge=1,
        le=100,
        description="number of attempts against one baseline that share alpha; each has alpha / "
        "attempts, and more are refused until the baseline changes. When absent, each attempt has "
        "all of alpha, and attempts are counted and shown only",
    )
    generation: Generation | None = Field(
        None, description="each key fills what a suite of generated answers does not set itself"
    )
    suites: dict[Name, AnySuite] = Field(min_length=1, max_length=100)
    speed: SpeedPolicy | None = Field(
        None, description="gates on throughput and latency that have an error rate"
    )
    cost: CostGate | None = Field(
        None, description="gate on tokens per solved task, which has an error rate"
    )
    engine: EngineRule | None = Field(
        None, description="what another engine under a promoted variant may change"
    )
    undecided_supporting: Literal["pass", "hold"] = Field(
        "pass",
        description="pass: an undecided supporting gate blocks nothing, and the verdict names it. "
        "hold: it keeps the variant undecided",
    )
    broken: float = Field(
        1.0,
        gt=0,
        le=100,
        description="nats a token of its baseline's text that a model may lose; one that loses "
        "more is not asked anything",
    )
    promotion: PromotionRule = PromotionRule()

    def engine_margin(self, suite: str, family: Family) -> Margin | None:
        """Return the margin that `engine` names for another engine."""
        named = self.engine.margins.get(suite, {}) if self.engine is not None else {}
        return named.get(family)

    def gates_on(self, accelerator: Accelerator | None) -> tuple[SpeedGate, ...]:
        """Return speed gates; None for external endpoints."""
        return self.speed.gates_on(accelerator) if self.speed is not None else ()

    def file_keys(self) -> dict[str, Any]:
        """Return the file's keys, without those that `generation` fills."""
        keys = self.model_dump(mode="json", exclude_none=True)
        if self.generation is None:
            return keys
        block = self.generation.model_dump(
            exclude_none=True, include=self.generation.model_fields_set
        )
        for name, suite in self.suites.items():
            if isinstance(suite, Generation):
                dumped = keys["suites"][name]
                keys["suites"][name] = {
                    **{key: dumped[key] for key in dumped if dumped[key] != block.get(key)},
                    **{key: None for key in block if getattr(suite, key) is None},
                }
        return {**keys, "generation": block}

    @model_validator(mode="before")
    @classmethod
    def _fill_suites(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        block = data.get("generation")
        suites = data.get("suites")
        if not isinstance(block, dict) or not isinstance(suites, dict):
            return data
        filled = {
            name: {**block, **suite} if _is_generating(suite) else suite
            for name, suite in suites.items()
        }
        return {**data, "suites": filled}

    @field_validator("suites")
    @classmethod
    def _names_are_free(cls, suites: dict[str, AnySuite]) -> dict[str, AnySuite]:
        for name in suites:
            if name in RESERVED_SUITE_NAMES or name.startswith(("speed.", "cost.", "again.")):
                raise ValueError(f"'{name}' cannot name a suite: a stage or gate has this name")
        return suites

    @model_validator(mode="after")
    def _costs_are_of_complete_answers(self) -> Policy:
        for name in self.cost.suites if self.cost is not None else ():
            suite = self.suites.get(name)
            if suite is None:
                raise ValueError(f"cost.suites: the policy has no suite '{name}'")
            if not isinstance(suite, Generation):
                raise ValueError(
                    f"cost.suites: '{name}' generates no answers (kind: {suite.kind}), so it has "
                    "no tokens to count; name a suite such as gsm8k"
                )
            # lm-eval may ask a task several times, too.
            if (suite.samples > 1 or suite.kind == "lm_eval") and suite.thinking is None:
                raise ValueError(
                    f"cost.suites: '{name}' may draw several answers, and truncated ones may "
                    f"score; write 'thinking: keep' (or 'remove') to suites.{name}, so that they "
                    "count as unsolved"
                )
        return self

    @model_validator(mode="after")
    def _engine_margins_are_of_suites(self) -> Policy:
        for name in self.engine.margins if self.engine is not None else ():
            if name not in self.suites:
                raise ValueError(f"engine.margins: the policy has no suite '{name}'")
        return self

    @model_validator(mode="after")
    def _something_must_pass(self) -> Policy:
        if not any(suite.tier == "critical" for suite in self.suites.values()):
            raise ValueError("no suite is critical, so every variant would pass")
        return self
