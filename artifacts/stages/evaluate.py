"""The stage that asks one side one suite's questions: a round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from artifacts.served_model import ServedModel, ServerRuntime
from eval_gates.drafted import Drafted
from pipeline.core.record import Record
from pipeline.core.stage import Stage
from recipes.policy import AnyAsked, Margin


class Rule(Record):
    """What decides a gate, and so ends the asking."""

    margin: Margin
    alpha: float
    planned_bet: float | None = None
    about: Literal["population", "benchmark"]
    minutes: float | None = None
    cap: int | None = Field(
        None, description="what a time budget left open, a higher cap continues"
    )


class EvaluateParameters(ServedModel):
    """Who is asked what, and how far."""

    suite: AnyAsked = Field(description="of the policy")
    environment: str = Field(description="identity of the one that asks")
    max_length: int = Field(description="tokens that a prompt and its answer may have together")
    upto: int | None = Field(None, description="questions at most")
    batch: int = Field(description="questions between two looks")
    rule: Rule | None = Field(None, description="None where nothing ends it before")
    repeat: int = Field(0, description="1 where the baseline is asked again")

    @property
    def kind(self) -> str:
        """What its duration depends on most."""
        return f"{self.suite.kind}{' again' if self.repeat else ''}"


class EvaluateRuntime(ServerRuntime):
    """How they are asked."""

    suite: str = Field("", description="its name in the policy, and the round")
    tokenizer: str = Field("", description="folder")
    concurrency: int = 1


class EvaluateResult(Record):
    """What came of the round."""

    metric: str
    n: int = Field(description="questions answered")
    answers_digest: str
    available: int | None = None
    score: float | None = Field(None, description="mean")
    state: str = Field("open", description="pass, fail, blind or open")
    more: bool = Field(False, description="open, and another round could ask more")
    ended_by: str = Field("", description="decided, asked or time")
    requests: dict[str, int] = Field({}, description="by the way that they were asked")
    drafted: Drafted | None = Field(
        None, description="by its last worker, where the engine drafts and counts that"
    )


EVALUATE = Stage("evaluate", 5, EvaluateParameters, EvaluateRuntime, EvaluateResult)
