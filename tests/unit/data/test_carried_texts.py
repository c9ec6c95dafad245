"""The texts that the project carries keep what their READMEs promise.

Evaluation has documents with reference summaries and requests; quantization has calibration texts.
They must stay apart, or the evaluation would score what the quantizer has already seen.
"""

import json
import re
from importlib.resources import files
from itertools import combinations

import pytest

Record = dict[str, str]
Sequence8 = tuple[str, ...]

SHARED_WORDS = 8
CJK_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


def read_records(package: str, *path: str) -> list[Record]:
    """Parse a carried JSON-lines file exactly as it is shipped: one object on every line."""
    text = files(package).joinpath(*path).read_text(encoding="utf-8")
    assert text.endswith("\n")
    # Not splitlines(): it would also cut at Unicode line separators inside a text.
    return [json.loads(line) for line in text[:-1].split("\n")]


@pytest.fixture(scope="module")
def summaries() -> list[Record]:
    return read_records("eval_gates", "data", "summaries.jsonl")


@pytest.fixture(scope="module")
def requests() -> dict[str, str]:
    """Texts of the carried conversations by id; each has one message of a user."""
    texts = {}
    for row in read_records("eval_gates", "data", "conversations.jsonl"):
        ((message),) = row["messages"]
        assert isinstance(message, dict)
        assert message["role"] == "user"
        texts[row["id"]] = message["content"]
    return texts


@pytest.fixture(scope="module")
def calibration() -> list[Record]:
    return read_records("recipes", "calibration", "general.jsonl")


def text_length(text: str) -> int:
    """Words between blanks; two characters count as a word where a script writes no blanks."""
    characters = len(CJK_CHARACTER.findall(text))
    return characters // 2 if characters > len(text) // 2 else len(text.split())


def split_text(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def sequences(text: str) -> set[Sequence8]:
    """Every run of eight words, with anything between them."""
    words = split_text(text)
    return {
        tuple(words[start : start + SHARED_WORDS]) for start in range(len(words) - SHARED_WORDS + 1)
    }


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def test_sequences_find_a_shared_run_across_case_and_punctuation() -> None:
    first = sequences("Yesterday one two, three four five six seven eight.")
    second = sequences("ONE two three four five six - seven eight nine!")
    assert first & second == {("one", "two", "three", "four", "five", "six", "seven", "eight")}
    assert sequences("only seven words stand in this text") == set()


def test_length_counts_pairs_of_characters_without_blanks() -> None:
    assert text_length("one two three") == 3
    assert text_length("竹林の朝の霧") == 3


def test_summaries_have_their_fields_and_ids(summaries: list[Record]) -> None:
    assert [record["id"] for record in summaries] == [f"s{n:02d}" for n in range(1, 65)]
    for record in summaries:
        assert list(record) == ["id", "title", "document", "summary"]
        assert all(value == value.strip() and value for value in record.values()), record["id"]
    assert len({record["title"] for record in summaries}) == len(summaries)


def test_calibration_has_its_fields_and_ids(calibration: list[Record]) -> None:
    assert [record["id"] for record in calibration] == [f"c{n:02d}" for n in range(1, 49)]
    for record in calibration:
        assert list(record) == ["id", "kind", "text"]
        assert all(value == value.strip() and value for value in record.values()), record["id"]


def test_lengths_stay_within_their_limits(
    summaries: list[Record], calibration: list[Record]
) -> None:
    lengths = {
        **{f"{r['id']} document": (80, text_length(r["document"]), 170) for r in summaries},
        **{f"{r['id']} summary": (20, text_length(r["summary"]), 40) for r in summaries},
        **{f"{r['id']} text": (120, text_length(r["text"]), 220) for r in calibration},
    }
    outside = {
        name: length
        for name, (least, length, most) in lengths.items()
        if not least <= length <= most
    }
    assert outside == {}


def test_a_summary_is_one_or_two_sentences_and_about_a_third_of_its_document(
    summaries: list[Record],
) -> None:
    for record in summaries:
        assert len(sentences(record["summary"])) in (1, 2), record["id"]
        assert 2.7 * text_length(record["summary"]) < text_length(record["document"])


def test_a_summary_paraphrases_its_document(summaries: list[Record]) -> None:
    """It shares terms (ROUGE needs them) but copies neither a sentence nor eight words in a row."""
    for record in summaries:
        document, summary = record["document"], record["summary"]
        assert all(sentence not in document for sentence in sentences(summary)), record["id"]
        assert sequences(document).isdisjoint(sequences(summary)), record["id"]
        terms = {word for word in split_text(summary) if len(word) >= 5}
        assert len(terms & set(split_text(document))) >= len(terms) / 2, record["id"]


def test_requests_are_different_and_short(requests: dict[str, str]) -> None:
    assert list(requests) == [f"c{n:03d}" for n in range(1, 161)]
    assert len({" ".join(split_text(text)) for text in requests.values()}) == len(requests)
    assert max(map(text_length, requests.values())) <= 30


def test_no_two_texts_share_eight_words_in_a_row(
    summaries: list[Record], calibration: list[Record], requests: dict[str, str]
) -> None:
    """Across the sets that would leak the evaluation; within one it would be a template."""
    texts = {record["id"]: sequences(record["text"]) for record in calibration}
    texts |= {id_: sequences(text) for id_, text in requests.items()}
    texts |= {r["id"]: sequences(r["document"]) | sequences(r["summary"]) for r in summaries}
    shared = {
        (one, other): texts[one] & texts[other]
        for one, other in combinations(texts, 2)
        if not texts[one].isdisjoint(texts[other])
    }
    assert shared == {}


def test_calibration_is_diverse(calibration: list[Record]) -> None:
    kinds = {record["kind"] for record in calibration}
    assert len(kinds) >= 30
    for language in ("French", "German", "Spanish", "Chinese", "Japanese"):
        assert any(kind.startswith(language) for kind in kinds), language
    assert {"python", "sql", "json", "shell", "c", "javascript", "mathematics", "chat"} <= kinds


def test_calibration_code_is_well_formed(calibration: list[Record]) -> None:
    """Broken code would calibrate on text that no model is asked to write."""
    for record in calibration:
        if record["kind"] == "python":
            compile(record["text"], record["id"], "exec")
        elif record["kind"] == "json":
            json.loads(record["text"])
