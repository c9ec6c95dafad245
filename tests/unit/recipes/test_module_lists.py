from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.module_lists import check_patterns, is_listed, to_expression

NAME = "model.layers.10.self_attn.qkv_proj" + ".a" * 40


@pytest.mark.parametrize(
    "expression",
    [
        "(.*)*x(.*)*y$",
        "(.*)*x(.*)*y(.*)*z$",
        "(a|a)*$",
        "(.*a){40}!",
        "(.+)+!",
        "((.*)*)*!",
        "(.|.)*!",
        "([^!]*)*!",
        "(.*[.])*!",
        "(.?){60}" + "." * 90 + "!",
        "(model[.]?)*(.*)*qkv_proj(.*)*!$",
        "(.*?)*?!$",
        "(?:.*.*.*.*.*.*)*!",
        "(?i)(.*A)*!",
        "(?s)(.*)*!",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(x+x+)+y|(.*)*!",
        ".*.*.*.*.*.*.*.*.*.*!",
    ],
)
def test_an_expression_takes_time_linear_in_the_name(expression: str) -> None:
    started = time.process_time()
    check_patterns([f"re:{expression}"])
    for n in range(500):
        assert not is_listed(f"{n}{NAME}", [f"re:{expression}"])
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "word",
    [
        "re:(?=a)b",
        "re:(?!a)b",
        "re:(?<=a)b",
        "re:(?<!a)b",
        r"re:(a)\1",
        "re:(?P<a>x)(?P=a)",
        "re:(?>a)",
        "re:a*+",
        "re:(a)?(?(1)b|c)",
        "re:a{1000000000}",
        "re:((a{100}){100}){100}",
        "re:(((",
        "re:" + "(" * 3000,
        "re:[",
        "re:\udc80",
    ],
)
def test_what_re2_cannot_read_is_refused_by_name(word: str) -> None:
    with pytest.raises(ValueError, match="RE2") as caught:
        check_patterns(["lm_head", word])
    assert repr(word[3:83]) in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        [f"model.layers.{n}" for n in range(100_001)],
        [f"re:^(.*.*.*)*q{n}$" for n in range(1_001)],
        ["*a" * 20_000],
        ["re:" + "(a|b)" * 20_000],
    ],
    ids=["names", "expressions", "a long pattern", "a long expression"],
)
def test_more_than_can_be_compared_with_every_module_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="are the most"):
        check_patterns(words)


@pytest.mark.parametrize(
    "words",
    [
        [f"re:^(.*.*.*)*q{n}$" for n in range(1_000)],
        ["re:" + "(" * 24_000 + ")" * 24_000],
        ["re:" + "(a|b)" * 9_999],
    ],
    ids=["many", "nested", "long"],
)
def test_what_is_taken_is_compared_in_seconds(words: list[str]) -> None:
    started = time.process_time()
    check_patterns(words)
    for n in range(200):
        is_listed(f"{n}{NAME}", words)
    assert time.process_time() - started < 10


def test_a_name_that_is_no_text_has_no_expression() -> None:
    assert not is_listed("a\udc80", ["re:b.*"])
    assert is_listed("a\udc80", ["a\udc80"])


@given(
    st.text("ab.[]!^-*?\\0", max_size=8).filter(lambda text: any(c in text for c in "*?[")),
    st.text("ab.[]!^-\\0", max_size=6),
)
def test_shell_patterns_mean_what_fnmatch_says(pattern: str, name: str) -> None:
    try:
        expected = re.compile(fnmatch.translate(pattern)).match(name) is not None
        check_patterns([pattern])
    except (re.error, ValueError):
        return
    assert is_listed(name, [pattern]) == expected
    assert re.compile(to_expression(pattern) or "").match(name) is not None or not expected


def test_names_patterns_and_expressions_mean_what_they_did() -> None:
    ignore = ["lm_head", "*.gate", "re:.*[.]down_proj$", "a[0]"]
    assert is_listed("lm_head", ignore)
    assert not is_listed("model.lm_head", ignore)
    assert is_listed("model.layers.0.gate", ignore)
    assert not is_listed("model.layers.0.gate_proj", ignore)
    assert is_listed("x.down_proj", ignore)
    assert is_listed("a0", ignore)
