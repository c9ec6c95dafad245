"""IFEval: prompts in the authors' form; lm-eval's checkers are an end-to-end test."""

from __future__ import annotations

from typing import Any

import pytest

from eval_gates.suites.ifeval import METRICS, Ifeval, IfevalTask
from pipeline.core.errors import EvaluationDataError

ROW = {
    "key": 1000,
    "prompt": "Describe a cat without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
    "kwargs": [{}, {"num_sentences": 30, "relation": "at least"}],
}


def test_a_prompt_is_read_as_it_is() -> None:
    assert Ifeval().document({**ROW, "other": 1}, "here") == ROW


def test_a_key_is_not_needed() -> None:
    row = {name: value for name, value in ROW.items() if name != "key"}
    assert Ifeval().document(row, "here")["key"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ""}, "'prompt'"),
        ({"instruction_id_list": []}, "'instruction_id_list'"),
        ({"instruction_id_list": "punctuation:no_comma"}, "'instruction_id_list'"),
        ({"instruction_id_list": [1, 2]}, "'instruction_id_list'"),
        ({"kwargs": None}, "'kwargs'"),
        ({"kwargs": [{}, None]}, "'kwargs'"),
        ({"kwargs": [{}]}, "'kwargs' has 1 entries for 2 instructions"),
    ],
)
def test_a_malformed_line_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationDataError, match=message) as caught:
        Ifeval().document({**ROW, **change}, "ifeval.jsonl, line 2")
    assert caught.value.where == "ifeval.jsonl, line 2"


def test_an_instructions_score_is_the_share_that_was_followed() -> None:
    results = {
        "prompt_level_strict_acc": False,
        "inst_level_strict_acc": [True, False, False],
        "prompt_level_loose_acc": True,
        "inst_level_loose_acc": [True, True, True],
    }
    scores = {
        metric: Ifeval().value(IfevalTask(kind="ifeval", metric=metric), results)
        for metric in METRICS
    }
    assert scores == {
        "prompt_strict": 0.0,
        "prompt_loose": 1.0,
        "inst_strict": pytest.approx(1 / 3),
        "inst_loose": 1.0,
    }
