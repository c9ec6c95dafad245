from __future__ import annotations

import gzip
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from listener import Listener

from prepare.errors import EvaluationDataError, StageError, UsageError
from recipes.dataset_commit import check_commit
from recipes.quantizers.calibration import ROWS, calibration_blocks, read_texts, run

MESSAGES = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
END = 0


class LetterTokenizer:
    """A token a letter, called as the real ones are.

    Args:
        eos_token_id: None for tokenizers that have no such token.
        chat_template: as in tokenizer_config.json; "" for base models.
    """

    def __init__(self, eos_token_id: int | None = END, chat_template: str = "") -> None:
        self.eos_token_id = eos_token_id
        self.chat_template = chat_template

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        begin = [1] if add_special_tokens else []
        return {"input_ids": [*begin, *map(ord, text)]}

    def apply_chat_template(self, messages: list[dict[str, str]], *, tokenize: bool) -> str:
        assert not tokenize
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def calibration(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "dataset": "builtin",
        "column": "text",
        "samples": 4,
        "max_tokens": 16,
        "seed": 7,
    }
    return settings | changes


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "texts.jsonl"


class TestReadTexts:
    def test_chat_messages(self, file: Path) -> None:
        name = jsonl(file, {"messages": MESSAGES}, {"messages": "as it is"})
        tokenizer = LetterTokenizer(chat_template="{{ messages }}")
        found = read_texts(calibration(column="messages"), name, tokenizer)
        assert found == ["<user>Hello?<assistant>Hello.", "as it is"]

    @pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
    def test_unicodes_line_separators_are_part_of_a_text(self, file: Path, separator: str) -> None:
        text = f"one{separator}text"
        assert read_texts(calibration(), jsonl(file, {"text": text}), LetterTokenizer()) == [text]
        plain = file.with_suffix(".txt")
        plain.write_text(f"{text}\nanother\n")
        assert read_texts(calibration(), str(plain), LetterTokenizer()) == [text, "another"]

    @pytest.mark.parametrize(
        "line",
        [
            '{"text": "cut off',
            '{"words": "another key"}',
            '["text"]',
            '"text"',
            "7",
            '{"text": 7}',
            '{"text": null}',
            '{"text": [{"role": "user"}]}',
        ],
    )
    def test_a_bad_line_is_named(self, file: Path, line: str) -> None:
        file.write_text(f'{{"text": "good"}}\n\n{line}\n{{"text": "good"}}\n')
        with pytest.raises(StageError, match="calibration row") as caught:
            read_texts(calibration(), str(file), LetterTokenizer())
        assert caught.value.where == f"{file}, line 3"
        assert "'text'" in caught.value.hint

    @pytest.mark.parametrize(
        ("name", "content", "found"),
        [
            ("a.csv", 'id,text\n1,"one, two\nthree"\n\n2,four\n', ["one, two\nthree", "four"]),
            ("a.tsv", "text\tid\none, two\t1\n", ["one, two"]),
            ("a.txt", "one\n\ntwo\n", ["one", "two"]),
            ("a.jsonl.gz", '{"text": "one"}\n', ["one"]),
            ("a.csv.gz", "text\none\n", ["one"]),
        ],
    )
    def test_a_file_is_read_as_what_it_is(
        self, tmp_path: Path, name: str, content: str, found: list[str]
    ) -> None:
        file, data = tmp_path / name, content.encode()
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert read_texts(calibration(), str(file), LetterTokenizer()) == found

    @pytest.mark.parametrize("lines", [1, 40])
    def test_json_under_the_name_of_a_text_is_refused(self, tmp_path: Path, lines: int) -> None:
        """Braces and keys would be calibrated on."""
        file = tmp_path / "a.txt"
        file.write_text('{"text": "one"}\n\n' * lines)
        with pytest.raises(StageError) as caught:
            read_texts(calibration(), str(file), LetterTokenizer())
        assert str(file) in caught.value.where
        file.write_text('{"text": "one"}\na text that quotes it\n')
        assert len(read_texts(calibration(), str(file), LetterTokenizer())) == 2

    @pytest.mark.parametrize(
        "content",
        ["id,words\n1,one\n", "text\none,two\n", "text,text\none,two\n", 'text\n"one" two\n'],
    )
    def test_a_damaged_table_is_refused(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "a.csv"
        file.write_text(content)
        with pytest.raises(StageError) as caught:
            read_texts(calibration(), str(file), LetterTokenizer())
        assert str(file) in caught.value.where

    def test_a_form_that_is_not_read_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "a.parquet"
        file.write_text("PAR1")
        with pytest.raises(UsageError):
            read_texts(calibration(), str(file), LetterTokenizer())

    @pytest.mark.parametrize(
        ("commit", "is_refused"), [("a" * 40, False), ("b" * 40, True), (None, False)]
    )
    def test_rows_of_another_commit_are_refused(self, commit: str | None, is_refused: bool) -> None:
        """The library reads the newest rows of its cache if the Hub is late."""
        checksums = {f"hf://datasets/org/name@{commit}/rows.parquet": {}} if commit else None
        rows = SimpleNamespace(info=SimpleNamespace(download_checksums=checksums))
        with pytest.raises(EvaluationDataError) if is_refused else nullcontext():
            check_commit(rows, "org/name", "a" * 40)

    def test_a_template_that_refuses_a_line(self, file: Path) -> None:
        class Refuses(LetterTokenizer):
            def apply_chat_template(self, *_: Any, **__: Any) -> str:
                raise RuntimeError("no role")  # as jinja2's errors, it is no ValueError

        name = jsonl(file, {"text": "good"}, {"text": MESSAGES})
        with pytest.raises(StageError, match="no role") as caught:
            read_texts(calibration(), name, Refuses(chat_template="{{ messages }}"))
        assert caught.value.where == f"{file}, line 2"

    def test_a_column_that_a_hub_dataset_lacks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Rows(list[Any]):
            info = SimpleNamespace(download_checksums=None)

            def shuffle(self, **_: Any) -> Rows:
                return self

            def select(self, numbers: range) -> Rows:
                return Rows(self[: len(numbers)])

        module = SimpleNamespace(
            load_dataset=lambda *_, **__: Rows([{"messages": MESSAGES}]),
            config=SimpleNamespace(HF_HUB_OFFLINE=False),
            load=SimpleNamespace(),
        )
        monkeypatch.setitem(sys.modules, "datasets", module)  # type: ignore[arg-type]
        asked = calibration(dataset="org/name", column="mesages", split="train", revision="1")
        assert run(asked, Listener(), tmp_path) == {}
        with pytest.raises(StageError, match="lacks the key 'mesages'; it has messages") as caught:
            read_texts(asked, str(tmp_path / ROWS), LetterTokenizer())
        assert "column" in caught.value.hint
        sound = {**asked, "column": "messages"}
        assert len(read_texts(sound, str(tmp_path / ROWS), LetterTokenizer())) == 1


ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class TestBlocks:
    def blocks(
        self, name: str, tokenizer: LetterTokenizer | None = None, **changes: Any
    ) -> tuple[list[list[int]], list[str]]:
        listener = Listener()
        tokenizer = tokenizer or LetterTokenizer()
        return calibration_blocks(calibration(**changes), name, tokenizer, listener), listener.notes

    @pytest.fixture
    def texts(self, file: Path) -> str:
        return jsonl(file, *({"text": letter * 10} for letter in ALPHABET[:20]))

    @pytest.mark.parametrize("samples", [1, 3, 13])
    def test_exactly_as_asked(self, texts: str, samples: int) -> None:
        blocks, notes = self.blocks(texts, samples=samples)
        assert [len(block) for block in blocks] == [16] * samples
        assert notes == []

    def test_texts_end_to_end_with_the_end_token_between(self, texts: str) -> None:
        blocks, _ = self.blocks(texts, samples=5)
        stream = [token for block in blocks for token in block]
        words = [words for words in "".join(map(chr, stream)).split(chr(END)) if words]
        assert {len(word) for word in words[:-1]} == {10}
        assert len(set(words)) == len(words)
        assert all(len(set(word)) == 1 for word in words)

    def test_fewer_than_asked_is_said_aloud(self, texts: str) -> None:
        """20 texts of 10 letters and an end token are 220 tokens: 13 blocks of 16, and a rest."""
        blocks, notes = self.blocks(texts, samples=14)
        assert [len(block) for block in blocks] == [16] * 13
        assert notes == [
            "calibrating with 13 blocks of 16 tokens instead of 14: the texts have only 220 tokens"
        ]
