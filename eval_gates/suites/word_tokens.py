"""Words of texts in any script, for scores that compare texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Scripts that put no spaces between words: each character is a token.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x109F),  # Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def words_of(text: str) -> list[str]:
    """Return the text's words in lower case; of scripts without spaces, its characters.

    Letters, marks and digits of all scripts count. For ASCII it is rouge-score's result without
    stemming.
    """
    words: list[str] = []
    is_open = takes_marks = False
    for character in unicodedata.normalize("NFKC", text).casefold():
        kind = unicodedata.category(character)[0]
        if kind == "M":
            if takes_marks:
                words[-1] += character
        elif kind not in "LN":
            is_joiner = character in "\u200c\u200d"
            is_open = is_open and is_joiner
            takes_marks = takes_marks and is_joiner
        elif is_open and not is_unspaced(character):
            words[-1] += character
        else:
            words.append(character)
            is_open = not is_unspaced(character)
            takes_marks = True
    return words


def is_unspaced(character: str) -> bool:
    """Return whether the character's script puts no spaces between words."""
    return _is_in(character, _UNSPACED)


def is_mostly_unspaced(texts: Iterable[str]) -> bool:
    """Return whether most letters are of scripts without spaces between words."""
    letters = _letters(texts)
    return 2 * sum(map(is_unspaced, letters)) > len(letters)


def bleu_tokenizer(references: Iterable[str]) -> str:
    """Return sacrebleu's name of the tokenizer that fits most letters of the references."""
    letters = _letters(references)
    if 2 * sum(map(str.isascii, letters)) >= len(letters):
        return "13a"  # as published for English
    unspaced = [letter for letter in letters if is_unspaced(letter)]
    if 2 * len(unspaced) <= len(letters):
        return "intl"
    # 'zh' splits Han alone; the packages of 'ja-mecab' and the like are not installed.
    return "zh" if all(_is_in(letter, _HAN) for letter in unspaced) else "char"


def _letters(texts: Iterable[str]) -> list[str]:
    return [letter for text in texts for letter in text if letter.isalpha()]


def _is_in(character: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)
