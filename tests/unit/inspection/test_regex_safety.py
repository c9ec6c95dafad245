from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from pipeline.core.errors import UsageError
from pipeline.inspection.regex_safety import WALL_TIMEOUT_S, check_expressions
from recipes.ignored_modules import is_ignored
from recipes.quantizers.preset import PresetQuantization

MODULES = [f"model.layers.{n}.self_attn.q_proj" for n in range(2000)]


def test_an_expression_without_an_end_is_refused_and_named() -> None:
    started = time.monotonic()
    with pytest.raises(UsageError) as caught:
        check_expressions(["lm_head", "re:.*q_proj", "re:(.*)*x(.*)*y(.*)*z$"], MODULES)
    assert "'(.*)*x(.*)*y(.*)*z$'" in caught.value.message
    assert "quantization.ignore" in caught.value.where
    assert time.monotonic() - started < WALL_TIMEOUT_S


def test_ordinary_expressions_are_taken() -> None:
    check_expressions(["lm_head", "re:.*(q|k)_proj$", "*.experts.[0-9]*"], MODULES)


@pytest.mark.parametrize("word", ["re:(((", "re:a{99999999999999999999}", "re:" + "(" * 3000])
def test_what_is_no_expression_is_the_recipes_fault(word: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PresetQuantization.model_validate(
            {"kind": "preset", "scheme": "FP8_DYNAMIC", "ignore": [word]}
        )
    assert caught.value.errors()[0]["loc"] == ("ignore",)


def test_names_patterns_and_expressions_mean_what_they_did() -> None:
    ignore = ["lm_head", "*.gate", "re:.*[.]down_proj$", "a[0]"]
    assert is_ignored("lm_head", ignore)
    assert not is_ignored("model.lm_head", ignore)
    assert is_ignored("model.layers.0.gate", ignore)
    assert not is_ignored("model.layers.0.gate_proj", ignore)
    assert is_ignored("x.down_proj", ignore)
    assert is_ignored("a0", ignore)
