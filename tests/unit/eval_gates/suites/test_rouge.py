"""ROUGE: sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites import rouge


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
