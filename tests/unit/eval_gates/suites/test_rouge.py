"""ROUGE: documents read from a folder or carried, and the task that asks for summaries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites import rouge
from prepare.errors import EvaluationDataError


@pytest.mark.parametrize(
    ("given", "references"),
    [
        ({"summary": "Cat sits."}, ["Cat sits."]),
        ({"summary": "Cat sits.", "references": ["It sat.", "Cat sat."]}, ["It sat.", "Cat sat."]),
    ],
)
def test_references_win_over_the_one_summary(given: Any, references: list[str]) -> None:
    found = rouge._document({"document": "A cat sat.", **given}, "here")
    assert found["references"] == references


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It sat. It slept! Did it?", ["It sat.", "It slept!", "Did it?"]),
        ('He said "No." Then left.', ['He said "No."', "Then left."]),
        ("It grew (3 %.) It fell.", ["It grew (3 %.)", "It fell."]),
        ("A 3.5 % rise, e.g. of prices.", ["A 3.5 % rise, e.g. of prices."]),
        ("One line\nand another. 7 more", ["One line", "and another.", "7 more"]),
        ("  no sentence at all  ", ["no sentence at all"]),
        ("", [""]),
        ("Она спит. Он бежит!", ["Она спит.", "Он бежит!"]),
        ("他睡了。她跑了！", ["他睡了。", "她跑了！"]),
        ("ካፌው ተዘጋ። ዝናብ ነበረ።", ["ካፌው ተዘጋ።", "ዝናብ ነበረ።"]),
        ("Փակվեց։ Անձրև էր։", ["Փակվեց։", "Անձրև էր։"]),
    ],
)
def test_sentences_get_lines_of_their_own(text: str, lines: list[str]) -> None:
    assert rouge.a_sentence_a_line(text).split("\n") == lines


@given(st.text(alphabet="aB3 .!?\"')(\n", max_size=80))
def test_splitting_sentences_changes_no_word(text: str) -> None:
    split = rouge.a_sentence_a_line(text)
    assert split.split() == text.split()
    assert rouge.a_sentence_a_line(split) == split


def test_a_reference_without_words_is_refused() -> None:
    with pytest.raises(EvaluationDataError) as caught:
        rouge._document({"document": "A text.", "summary": "!?"}, "here, line 2")
    assert caught.value.where == "here, line 2"
