from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.core.user_path import user_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("~nobodyhere/x", "home folder"),
        ("a\0b", "NUL"),
        ("a/" + "b" * 256, "255 bytes"),
        ("a/" * 2100, "4,095 bytes"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_can_be_no_path_is_the_users_error_and_names_the_key(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        user_path(text, "file, key home")
    assert words in caught.value.message
    assert caught.value.where == "file, key home"
    assert len(caught.value.message) < 250


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x", "here") == tmp_path / "x"
    assert user_path(Path("a/../b"), "here") == Path("a/../b")


def test_a_name_that_is_not_utf8_is_a_path() -> None:
    assert user_path("x\udcff", "here").name == "x\udcff"  # how Python writes the byte 0xff


@given(st.text() | st.text("~/.\0ab", max_size=8))
def test_only_a_usage_error_comes_out(text: str) -> None:
    with contextlib.suppress(UsageError):
        user_path(text, "here").exists()
