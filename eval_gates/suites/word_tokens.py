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
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xA980, 0xA9DF),  # Javanese
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # Katakana of half the width
    (0x20000, 0x3FFFF),
)
_INVISIBLE = "\u00ad\u0640\u2060\ufeff"  # within a word: soft hyphen, Arabic's tatweel, joiners
_JOINERS = "\u200c\u200d"
# So many letters without spaces make whole sentences one word of sacrebleu's `13a` and `intl`.
_UNSPACED_SHARE = 0.1
_HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def words_of(text: str) -> list[str]:
    """Return the text's words in lower case; of scripts without spaces, its characters.

    Letters, marks and digits of all scripts count. For ASCII it is rouge-score's result without
    stemming.
    """
    words: list[str] = []
    is_open = takes_marks = False
    for character in _without_invisible(unicodedata.normalize("NFKC", text)).casefold():
        kind = unicodedata.category(character)[0]
        if kind == "M":
            if takes_marks:
                words[-1] += character
        elif kind not in "LN":
            is_joiner = character in _JOINERS
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
    """Return sacrebleu's name of the tokenizer that fits the letters of the references."""
    letters = _letters(references)
    unspaced = [letter for letter in letters if is_unspaced(letter)]
    if len(unspaced) <= _UNSPACED_SHARE * len(letters):
        is_latin = 2 * sum(map(str.isascii, letters)) >= len(letters)
        return "13a" if is_latin else "intl"  # 13a: as published for English
    # 'zh' splits Han alone; the packages of 'ja-mecab' and the like are not installed.
    return "zh" if all(_is_in(letter, _HAN) for letter in unspaced) else "char"


def bleu_form(text: str, tokenizer: str) -> str:
    """Return the text with one form for each character, which sacrebleu does not make.

    Compatible characters are the same where the tokenizer is not the published one.
    """
    form = unicodedata.normalize("NFC" if tokenizer == "13a" else "NFKC", text)
    return _without_invisible(form)


def _without_invisible(text: str) -> str:
    return "".join(character for character in text if character not in _INVISIBLE)


def _letters(texts: Iterable[str]) -> list[str]:
    return [letter for text in texts for letter in text if letter.isalpha()]


def _is_in(character: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)
