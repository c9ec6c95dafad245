"""The shape of policies: what a variant must show, suite by suite, before it is promoted."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from recipes.alias_names import RULE, can_be_alias
from recipes.config_model import ConfigModel, Name, Tier
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

    cluster_by: str | None = Field(
        None,
        min_length=1,
        description="a field of the questions that says which belong together, such as the passage "
        "that they are about: each such cluster is asked whole, and its mean is one value",
    )


class Suite(ConfigModel):
    """What decides over the answers: a change here judges the same ones again."""

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


class MmluTask(EvalTask):
    """Questions with four choices."""

    kind: Literal["mmlu"] = "mmlu"
    prompt_format: Literal["letter", "cloze"] = Field(
        "letter", description="letter: answer A-D; cloze: the answer's text (for small models)"
    )
    num_fewshot: int = Field(5, ge=0, le=5)


class MmluSuite(MmluTask, Suite):
    """Multiple choice over 57 subjects, scored by log-likelihood through lm-eval."""

    sources: list[Source] = Field(default=["eval-data", "hub", "packages"])


class CodeTask(EvalTask):
    """Functions to write, how many of each, and how their tests are run."""

    prompt_format: Form = "auto"
    max_tokens: int = Field(512, ge=16, le=1_000_000)
    k: int = Field(1, ge=1, le=1_000, description="the metric is pass@k, by the unbiased estimator")
    samples: int = Field(
        1, ge=1, le=1_000, description="answers drawn for each problem; greedy when 1"
    )
    temperature: float = Field(
        0.8, ge=0.01, le=10, description="of the samples, when there are several"
    )
    seconds_per_problem: float = Field(10, ge=0.1, le=3_600)
    memory_mb_per_problem: int = Field(1024, ge=64, le=1_048_576)
    sandbox: Literal["auto", "bubblewrap", "namespaces", "none"] = Field(
        "auto", description="how model-written code is kept in; none: limits alone, no isolation"
    )
    problems: list[str] = Field(
        default=[], max_length=10_000, description="task ids; all when empty"
    )

    @model_validator(mode="after")
    def _samples_suffice(self) -> CodeTask:
        if self.k > self.samples:
            raise ValueError(f"pass@{self.k} needs at least {self.k} samples, not {self.samples}")
        return self

    @field_validator("problems")
    @classmethod
    def _problems_differ(cls, problems: list[str]) -> list[str]:
        for name, times in Counter(problems).items():
            if times > 1:
                raise ValueError(f"'{name}' occurs twice, and would count as two problems")
        return problems


class HumanEvalTask(CodeTask):
    """HumanEval's problems."""

    kind: Literal["humaneval"] = "humaneval"
    problems: list[str] = Field(
        default=[], max_length=10_000, description="task ids; all 164 when empty"
    )


class MbppTask(CodeTask):
    """MBPP+'s problems."""

    kind: Literal["mbpp"] = "mbpp"
    humaneval: bool = Field(
        False,
        description="ask HumanEval's 164 problems in the same gate, which then has 542: enough for "
        "3 points",
    )


class CodeSuite(CodeTask, Suite):
    """Functions that a model writes, judged by running their tests in a sandbox."""

    batch: int = Field(32, ge=1, le=1_000_000, description="problems asked between two looks")

    @model_validator(mode="after")
    def _samples_suit_the_claim(self) -> CodeSuite:
        if self.samples > 1 and self.about == "benchmark":
            raise ValueError(
                "'samples' draws answers by chance, and 'about: benchmark' takes each for the only "
                "one there could be: take 'about: population'"
            )
        return self


class HumanEvalSuite(HumanEvalTask, CodeSuite):
    """Python functions from their docstrings, judged by running their tests in a sandbox."""

    sources: list[Source] = Field(default=["packages"])


class MbppSuite(MbppTask, CodeSuite):
    """MBPP+: Python functions from a sentence and an assert, judged as HumanEval's are."""

    # Its tests are code that runs outside the sandbox: from the Hub only where a policy says so.
    sources: list[Source] = Field(default=["eval-data"])


class RougeTask(EvalTask):
    """Texts to summarize."""

    kind: Literal["rouge"] = "rouge"
    metric: Literal["rouge1", "rouge2", "rougeL", "rougeLsum", "bleu"] = "rougeL"
    prompt_format: Form = "auto"
    max_tokens: int = Field(96, ge=8, le=1_000_000)


class RougeSuite(RougeTask, Suite):
    """Summaries against references, scored by rouge-score or sacrebleu through lm-eval."""

    batch: int = Field(32, ge=1, le=1_000_000, description="documents asked between two looks")
    expected_flips: float = Field(
        0.5,
        ge=1e-6,
        le=1,
        description="share of scores expected to change; sizes the first round, and chooses the "
        "bet with half of a sequential test's stake",
    )
    sources: list[Source] = Field(default=["eval-data", "hub", "builtin"])


class LmEvalTask(EvalTask):
    """The documents of a task."""

    kind: Literal["lm_eval"] = "lm_eval"
    task: str = Field(min_length=1, description="lm-eval's name of one task, or a task's YAML file")
    metric: str | None = Field(None, description="one of the task's own; its first when absent")
    num_fewshot: int | None = Field(
        None, ge=0, le=1_000, description="few-shot examples; the task's own if absent"
    )
    prompt_format: Form = "auto"
    max_tokens: int = Field(
        256, ge=1, le=1_000_000, description="of a generated answer, unless the task says"
    )


class LmEvalSuite(LmEvalTask, Suite):
    """Any task that lm-eval knows by name, or describes in a YAML file."""

    sources: list[Source] = Field(default=["hub"])


AnySuite = Annotated[
    MmluSuite | HumanEvalSuite | MbppSuite | RougeSuite | LmEvalSuite, Field(discriminator="kind")
]

AnyAsked = Annotated[
    MmluTask | HumanEvalTask | MbppTask | RougeTask | LmEvalTask, Field(discriminator="kind")
]


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
