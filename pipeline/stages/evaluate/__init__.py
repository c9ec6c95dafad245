"""The stage that asks a side a suite's questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from eval_gates.gate_rule import GateRule
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.suites.suite_kind import kind_of
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import Stage, StageSpec
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.attempts import Counted
from recipes.policy import AnyTask


class EvaluateParameters(ServedModel):
    """The model, and the questions."""

    suite: AnyTask = Field(description="of the policy")
    environment: str = Field(description="identity of the one that asks")
    max_length: int = Field(description="tokens that a prompt and its answer may have together")
    max_questions: int | None = Field(None, description="questions at most")
    rule: GateRule | None = Field(None, description="None of the baseline")
    repeat_id: int = Field(0, description="1 where the baseline is asked again")
    measurement: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        return f"{self.suite.kind}{' again' if self.repeat_id else ''}"


class EvaluateRuntime(ServerRuntime):
    """How they are asked."""

    suite: str = Field("", description="its name in the policy")
    tokenizer: str = Field("", description="folder")
    concurrency: int = 1
    halved: bool = Field(
        False, description="an engine ended over the suite's scored_tokens: half of them are read"
    )
    counted: Counted | None = Field(
        None, description="None of the baseline, and of answers that no gate depends on"
    )


class EvaluateResult(Record):
    """Facts of the answers."""

    metric: str
    n: int = Field(description="questions answered")
    answers_digest: str
    available: int | None = None
    score: float | None = Field(None, description="mean")
    state: str = Field("open", description="pass, fail or open")
    requests: dict[str, int] = Field({}, description="by the way that they were asked")
    spec_decode: SpecDecodeStats | None = Field(
        None, description="by its last worker, where the engine drafts and counts that"
    )


EVALUATE = Stage("evaluate", 8, EvaluateParameters, EvaluateRuntime, EvaluateResult)

# Limits and opponents, on which a question's answer does not depend.
NOT_OF_THE_ANSWER = ("max_questions", "rule")
NOT_OF_THE_MODEL = ("baseline", "screen")
# Unknown for adopted weights, which are compared with the version's own digests.
NOT_ALWAYS_KNOWN = ("auxiliary_files_digest",)


def log_key(spec: StageSpec, result_of: Callable[[str], dict[str, Any]]) -> str:
    """Return the digest of all that an answer depends on.

    `result_of` returns a stage's result by role.
    """
    results = {role: result_of(role) for role in spec.inputs if role not in NOT_OF_THE_MODEL}
    known = {
        role: digest_json({k: v for k, v in result.items() if k not in NOT_ALWAYS_KNOWN})
        for role, result in results.items()
    }
    suite = EVALUATE.parameters_of(spec).suite
    if kind_of(suite).reads_baseline and "baseline" in spec.inputs:
        known["baseline"] = result_of("baseline")["answers_digest"]
    asked = {key: value for key, value in spec.parameters.items() if key not in NOT_OF_THE_ANSWER}
    return digest_json(
        {"stage": spec.stage, "revision": EVALUATE.revision, **asked, "inputs": known}
    )
