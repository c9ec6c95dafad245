"""Questions about images: a folder's files, their digests, answers that name a choice, PNG."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listener import Listener

from eval_gates.suites import images
from eval_gates.suites.completions_model import without_images
from eval_gates.suites.generated_text import GeneratedText
from eval_gates.suites.images import Images, ImagesTask, chosen, png
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from pipeline.core.errors import EvaluationDataError
from pipeline.core.file_digests import FileDigests
from pipeline.plan.data_sources import SourceResolver
from recipes.policy import Policy

TASK = ImagesTask(prompt_format="chat")
ASKED = {"image": "cat.png", "question": "Which animal?", "choices": ["dog", "cat"]}
CAT = png([[0, 255], [128, 3]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    (made / "cat.png").write_bytes(CAT)
    return write(made, {**ASKED, "answer": "cat"})


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "images_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    source = QuestionSource(kind="folder", digest="d")
    return Images().read(TASK, QuestionOrder(source, folder, Path(), Listener()))


def identity(folder: Path) -> str:
    """Digest of the source, as a plan has it."""
    policy = Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"seen": {"kind": "images", "margins": {"fp8": 0.1}}},
        }
    )
    resolver = SourceResolver(folder, "e", FileDigests(folder.parent / "digests"), Listener())
    return str(resolver.suite("seen", policy.suites["seen"]).identity.digest)


def test_a_folders_images_travel_with_their_questions(folder: Path) -> None:
    (row,), facts = read(folder)
    assert row["id"] == "image/0"
    begin, content = row["image"].split(",")
    assert begin == "data:image/png;base64"
    assert b64decode(content) == CAT
    assert row["question"].startswith("Which animal?\n")
    assert "dog, cat" in row["question"]
    assert facts["choices"] == {"image/0": [("dog", 0.0), ("cat", 1.0)]}
    image, text = images._chat_request(row)["messages"][0]["content"]
    assert image == {"type": "image_url", "image_url": {"url": row["image"]}}
    assert text == {"type": "text", "text": row["question"]}


@pytest.mark.parametrize(
    "change",
    [
        {"image": "dog.png"},
        {"image": "../cat.png"},
        {"image": "/etc/passwd"},
        {"image": "images_test.jsonl"},
        {"image": "a\0b.png"},
        {"image": "."},
        {"question": ""},
        {"choices": ["cat"]},
        {"choices": ["cat", "CAT"]},
        {"choices": ["cat", 3]},
        {"choices": "cat"},
        {"answer": "cow"},
        {"answer": None},
    ],
)
def test_malformed_rows_are_named(folder: Path, change: dict[str, Any]) -> None:
    (folder.parent / "cat.png").write_bytes(CAT)
    write(folder, {**ASKED, "answer": "cat", **change})
    with pytest.raises(EvaluationDataError) as caught:
        read(folder)
    assert "line 1" in str(caught.value.where)


def test_an_image_that_is_too_large_is_named(folder: Path) -> None:
    with (folder / "cat.png").open("r+b") as file:
        file.truncate(images.MAX_BYTES + 1)
    with pytest.raises(EvaluationDataError) as caught:
        read(folder)
    assert "cat.png" in str(caught.value.where)


def test_another_image_under_the_same_name_is_another_source(folder: Path) -> None:
    first = identity(folder)
    assert identity(folder) == first
    (folder / "cat.png").write_bytes(png([[9]]))
    assert identity(folder) != first
    (folder / "cat.png").unlink()  # before anything is served
    with pytest.raises(EvaluationDataError):
        identity(folder)


def test_an_answer_names_one_choice() -> None:
    digits = [str(n) for n in range(10)]
    for answer, found in {
        "7": "7",
        "The digit is 7.": "7",
        "**7**": "7",
        "77": None,
        "7 or 1": None,
        "7, surely 7": "7",
        "seven": None,
        "": None,
    }.items():
        assert chosen(answer, digits) == found
    assert chosen("A Dark Red one", ["red", "dark red"]) == "dark red"
    assert chosen("red, not dark red", ["red", "dark red"]) is None
    assert chosen("C++!", ["C", "C++"]) == "C++"


WORDS = st.text("abZ09 +.-", min_size=1, max_size=6).filter(str.strip)


@given(st.lists(WORDS, min_size=2, unique_by=str.casefold), st.data())
def test_a_choice_by_itself_is_that_choice(choices: list[str], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(choices))
    assert chosen(answer.upper(), choices) == answer
    assert chosen("", choices) is None


def test_rows_have_the_share_of_right_samples() -> None:
    question = {"id": "1", "question": "Which?", "choices": ["dog", "cat"], "answer": "cat"}
    texts = [[GeneratedText("a cat", 2)], [GeneratedText("a dog", 2)]]
    sample = {"doc_id": 0, "arguments": [("Which?", {})], "resps": texts}
    (row,) = images.answer_rows(TASK, [question], [sample], Listener())
    assert row["score"] == 0.5
    assert row["answer"] == ["a cat", "a dog"]


@given(
    st.integers(1, 9).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 255), min_size=width, max_size=width), min_size=1, max_size=9
        )
    )
)
def test_png(pixels: list[list[int]]) -> None:
    """Its chunks, by the specification."""
    content = png(pixels)
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        end = at + 12 + length
        assert struct.unpack(">I", content[end - 4 : end]) == (zlib.crc32(name + data),)
        chunks[name], at = data, end
    width = len(pixels[0])
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (width, len(pixels), 8, 0, 0, 0, 0)
    lines = zlib.decompress(chunks[b"IDAT"])
    assert [list(lines[n + 1 : n + 1 + width]) for n in range(0, len(lines), width + 1)] == pixels


@pytest.mark.parametrize("given", [{"prompt_format": "completion"}, {"max_tokens": "model"}])
def test_what_cannot_be_asked(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        ImagesTask(**given)


def test_prompts_are_measured_by_their_texts() -> None:
    message = {"role": "user", "content": "Hi"}
    assert without_images(message) == message
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "Hi"}]
    assert without_images({"role": "user", "content": parts}) == message
