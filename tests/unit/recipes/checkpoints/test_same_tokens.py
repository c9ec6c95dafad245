"""What reads a checkpoint's text otherwise than its tokenizer.json, by the real library.

A class of transformers is a wrapper of the same library; the real ones are compared end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from prepare.errors import StageError
from recipes.checkpoints.same_tokens import (
    SCRIPTS,
    SENTENCES,
    check_same_tokens,
    marked_text,
)

SPACE = "\u0120"  # a space, as ByteLevel writes it
MARKS = ("<|im_start|>", "<|im_end|>")


class ReadBy:
    """A class over a tokenizer, with the methods that transformers' classes have."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return SimpleNamespace(input_ids=found.ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def byte_level(merges: list[tuple[str, str]] | None = None) -> Tokenizer:
    """A vocabulary of all bytes, a few merges of them, and two special tokens."""
    chosen = [("t", "h"), ("th", "e"), (SPACE, "the")] if merges is None else merges
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(left + right for left, right in chosen)]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=chosen))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return made


def same(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer


def with_prefix_space(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def without_spaces(tokenizer: Tokenizer) -> Tokenizer:
    """As a class for SentencePiece over a byte-level file."""
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def with_other_decoder(tokenizer: Tokenizer) -> Tokenizer:
    """The ids are the same, and the answers read 'The\u0120text'."""
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def lower(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def without_merges(_: Tokenizer) -> Tokenizer:
    return byte_level([])


def without_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The special tokens are read as letters."""
    tokenizer.add_special_tokens([])
    bare = byte_level()
    text = bare.to_str()
    for mark in MARKS:
        text = text.replace(f'"content":"{mark}"', f'"content":"{mark[::-1]}"')
    return Tokenizer.from_str(text)


def with_one_other_script(tokenizer: Tokenizer) -> Tokenizer:
    """Only what is not English is read otherwise."""
    tokenizer.normalizer = normalizers.Replace("\u041f\u0440\u0438\u0432\u0435\u0442", "?")
    return tokenizer


def uncased() -> Tokenizer:
    """It gives small letters back, as models without capitals do."""
    return lower(byte_level())


def with_a_small_vocabulary() -> Tokenizer:
    """It gives most words back as unknown."""
    words = {"<unk>": 0, "the": 1, "of": 2}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def of_a_whole_vocabulary() -> Tokenizer:
    """It parts full stops from words, and alters no letter."""
    texts = [*SENTENCES, *SCRIPTS, marked_text([])]
    split = pre_tokenizers.Whitespace()
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text)})
    vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = split
    return made


@pytest.mark.parametrize("make", [uncased, with_a_small_vocabulary, of_a_whole_vocabulary])
def test_a_vocabulary_that_alters_letters_itself_is_accepted(
    tmp_path: Path, make: Callable[[], Tokenizer]
) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    check_same_tokens(ReadBy(make()), tmp_path)


def with_sentencepiece_decoder(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def with_accents(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Replace("e", "\u00e9")
    return tokenizer


@pytest.mark.parametrize("change", [without_spaces, with_other_decoder, with_sentencepiece_decoder])
def test_a_file_that_loses_spaces_itself_is_refused(
    tmp_path: Path, change: Callable[[Tokenizer], Tokenizer]
) -> None:
    """As one that such a class has saved."""
    file = tmp_path / "tokenizer.json"
    change(byte_level()).save(str(file))
    with pytest.raises(StageError, match="turns"):
        check_same_tokens(ReadBy(change(byte_level())), tmp_path)


def test_a_class_loses_spaces_of_a_file_that_alters_letters(tmp_path: Path) -> None:
    with_accents(byte_level()).save(str(tmp_path / "tokenizer.json"))
    check_same_tokens(ReadBy(with_accents(byte_level())), tmp_path)
    with pytest.raises(StageError, match="turns"):
        check_same_tokens(ReadBy(with_other_decoder(with_accents(byte_level()))), tmp_path)


@pytest.mark.parametrize("change", [same, with_prefix_space])
def test_what_reads_alike_is_accepted(
    tmp_path: Path, change: Callable[[Tokenizer], Tokenizer]
) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    check_same_tokens(ReadBy(change(byte_level())), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        without_spaces,
        with_other_decoder,
        lower,
        without_merges,
        without_marks,
        with_one_other_script,
    ],
)
def test_what_reads_otherwise_is_refused_by_file_and_class(
    tmp_path: Path, change: Callable[[Tokenizer], Tokenizer]
) -> None:
    file = tmp_path / "tokenizer.json"
    byte_level().save(str(file))
    with pytest.raises(StageError) as caught:
        check_same_tokens(ReadBy(change(byte_level())), tmp_path)
    assert "key tokenizer_class" in caught.value.where
    assert str(file) in caught.value.where
    assert "ReadBy" in caught.value.message
    assert caught.value.hint


def test_a_file_that_the_library_does_not_load(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_level().to_str().replace('"type":"BPE"', '"type":"Unheard"'))
    with pytest.raises(StageError) as caught:
        check_same_tokens(ReadBy(byte_level()), tmp_path)
    assert caught.value.where == str(file)


def test_a_folder_without_the_file_is_not_compared(tmp_path: Path) -> None:
    check_same_tokens(None, tmp_path)
