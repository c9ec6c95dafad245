"""The shape of policies: margins in points or as recovery, suites by kind, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from eval_gates.suites.humaneval import HumanEval
from eval_gates.suites.lm_eval_suite import LmEval
from eval_gates.suites.mbpp import Mbpp
from eval_gates.suites.mmlu import Mmlu
from eval_gates.suites.rouge import Rouge
from eval_gates.suites.sources import QuestionSource
from pipeline.stages.questions import QuestionsParameters
from recipes.policy import (
    RESERVED_SUITE_NAMES,
    AnySuite,
    EvalTask,
    Margin,
    Policy,
    Suite,
)

MARGINS = {"fp8": 0.01, "int4": {"recovery": 0.98}}
suites: TypeAdapter[Any] = TypeAdapter(AnySuite)
KINDS = {
    "mmlu": Mmlu.policy,
    "humaneval": HumanEval.policy,
    "mbpp": Mbpp.policy,
    "rouge": Rouge.policy,
}


def policy(**suites: Any) -> Policy:
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": suites,
        }
    )


class TestMargin:
    @given(st.sampled_from(["points", "recovery"]), st.floats(allow_nan=True))
    def test_the_long_forms(self, key: str, number: float) -> None:
        least = 0.01 if key == "recovery" else 1e-9  # the power of less divides by zero
        if least <= number < 1:
            margin = Margin.model_validate({key: number})
            assert margin.model_dump()[key] == number
            assert sum(value is None for value in margin.model_dump().values()) == 1
            assert Margin.model_validate(margin.model_dump()) == margin  # as policies are kept
        else:
            with pytest.raises(ValidationError):
                Margin.model_validate({key: number})

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"points": 0.1, "recovery": 0.9},
            {"points": None},
            {"point": 0.1},
            True,
            False,
            None,
            "x",
            [0.1],
            math.nan,
        ],
    )
    def test_neither_both_or_something_else_is_refused(self, given: Any) -> None:
        with pytest.raises(ValidationError):
            Margin.model_validate(given)


class TestSuites:
    def test_what_decides_is_no_part_of_what_is_asked(self) -> None:
        """A stage's record has of a suite what an answer depends on, and nothing else."""
        for kind, model in {**KINDS, "lm_eval": LmEval.policy}.items():
            task = {"task": "x"} if kind == "lm_eval" else {}
            suite = model.model_validate({"margins": MARGINS, **task})
            asked = QuestionsParameters(suite=suite, source=QuestionSource(kind="builtin"), seed=1)
            kept = asked.model_dump(mode="json")
            decides = set(Suite.model_fields) - set(EvalTask.model_fields)
            decides |= {"if_no_sandbox"} & set(model.model_fields)
            assert not set(kept["suite"]) & decides
            assert set(kept["suite"]) | decides == set(model.model_fields)
            assert QuestionsParameters.model_validate(kept).model_dump(mode="json") == kept


class TestPolicy:
    @pytest.mark.parametrize("tier", ["advisory", "supporting"])
    def test_one_without_a_critical_suite_is_none(self, tier: str) -> None:
        suite = {"kind": "rouge", "margins": MARGINS}
        with pytest.raises(ValidationError, match="critical"):
            policy(one={**suite, "tier": tier}, other={**suite, "tier": "advisory"})
        assert policy(one={**suite, "tier": tier}, other=suite).suites

    @pytest.mark.parametrize(
        ("named", "suite", "words"),
        [
            ("code", {"samples": 2, "sampling": {"temperature": 1}}, "thinking: keep"),
            ("other", {}, "no suite 'other'"),
            ("code", {"kind": "mmlu"}, "generates no answers"),
        ],
    )
    def test_a_cost_is_of_complete_generated_answers(
        self, named: str, suite: dict[str, Any], words: str
    ) -> None:
        code = {"kind": "humaneval", "margins": {"fp8": 0.05}, **suite}
        with pytest.raises(ValidationError, match=words):
            Policy.model_validate(
                {
                    **{"name": "p", "summary": "s", "suites": {"code": code}},
                    "cost": {"suites": [named], "max_ratio": {"fp8": 1.05}},
                }
            )

    @pytest.mark.parametrize("name", RESERVED_SUITE_NAMES)
    def test_a_suite_does_not_take_a_stages_name(self, name: str) -> None:
        with pytest.raises(ValidationError, match=f"'{name}'"):
            policy(**{name: {"kind": "rouge", "margins": MARGINS}})
