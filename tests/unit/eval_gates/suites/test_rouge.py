"""ROUGE: documents read from a folder or carried, and the task that asks for summaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites import rouge
from pipeline.core.errors import EvaluationDataError

ROW = {"id": "7", "title": "Cats", "document": "A cat sat.", "references": ["Cat sits.", "It sat."]}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "summarization_test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_references_win_over_the_one_summary(tmp_path: Path) -> None:
    assert rouge.read_folder(write(tmp_path, {**ROW, "summary": "Cat sits."})) == [ROW]


def test_a_summary_is_the_only_reference(tmp_path: Path) -> None:
    write(tmp_path, {"document": "A cat sat.", "summary": "Cat sits."})

    assert rouge.read_folder(tmp_path) == [
        {"id": "", "title": "", "document": "A cat sat.", "references": ["Cat sits."]}
    ]


def test_an_empty_folder_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        rouge.read_folder(tmp_path)
    assert caught.value.where == str(tmp_path)

    assert "summarization_test.jsonl" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": " "}, "'document'"),
        ({"references": []}, "'references'"),
        ({"references": "one text"}, "'references'"),
        ({"references": ["good", ""]}, "'references'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, ROW, {**ROW, **change})

    with pytest.raises(EvaluationDataError, match=message) as caught:
        rouge.read_folder(tmp_path)

    assert caught.value.where.endswith("summarization_test.jsonl, line 2")


def test_neither_summary_nor_references(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError, match="'summary'"):
        rouge.read_folder(write(tmp_path, {"document": "A cat sat."}))


def test_the_carried_documents_are_enough_and_distinct() -> None:
    documents = rouge.read_builtin()

    assert len(documents) >= 24
    assert len({document["document"] for document in documents}) == len(documents)
    assert all(
        len(reference) < len(document["document"]) / 2
        for document in documents
        for reference in document["references"]
    )


def test_a_summary_without_a_reference_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="reference"):
        rouge.score("a summary", [])


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
    ],
)
def test_sentences_get_lines_of_their_own(text: str, lines: list[str]) -> None:
    assert rouge.a_sentence_a_line(text).split("\n") == lines


@given(st.text(alphabet="aB3 .!?\"')(\n", max_size=80))
def test_splitting_sentences_changes_no_word(text: str) -> None:
    split = rouge.a_sentence_a_line(text)
    assert split.split() == text.split()
    assert rouge.a_sentence_a_line(split) == split
