"""Words of texts in any script."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.needles import share_found
from eval_gates.suites.word_tokens import bleu_form, bleu_tokenizer, is_mostly_unspaced, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop, 7_8!", ["don", "t", "stop", "7", "8"]),
        ("Größe café", ["grösse", "café"]),
        ("Он не пришёл.", ["он", "не", "пришёл"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("他没来abc7岁", ["他", "没", "来", "abc7", "岁"]),
        ("ｶﾞ", ["ガ"]),
        ("ไปไหน", ["ไ", "ป", "ไ", "ห", "น"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("!? \U0001f600", []),
        ("Do\u00adnau محمـــد", ["donau", "محمد"]),
        ("ꆈꌠ ㄅㄆ", ["ꆈ", "ꌠ", "ㄅ", "ㄆ"]),
    ],
)
def test_words_of_each_script(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_is_split_as_rouge_score_does(text: str) -> None:
    assert words_of(text) == re.sub(r"[^a-z0-9]+", " ", text.lower()).split()


@given(st.text())
def test_no_word_is_empty(text: str) -> None:
    assert all(words_of(text))


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("The café closed.", "13a"),
        ("Кафе закрылось.", "intl"),
        ("咖啡馆关门了。", "zh"),
        ("カフェが閉まった。", "char"),
        ("ร้านกาแฟปิด", "char"),
        ("7 %", "13a"),
        ("Apple公司推出iPhone手机新品Pro", "zh"),  # no space: one word of 13a
        ("LINEとYahooが統合しLINEYahooになった", "char"),
        ("The film is called 千と千尋 in the original language", "13a"),
        ("ﾆｭｰｽ", "char"),
    ],
)
def test_bleu_takes_the_tokenizer_of_most_letters(reference: str, name: str) -> None:
    assert bleu_tokenizer([reference]) == name


@pytest.mark.parametrize(
    ("text", "is_mostly"), [("ร้านกาแฟปิด", True), ("咖啡馆 a", True), ("Кафе", False), ("", False)]
)
def test_scripts_without_spaces(text: str, is_mostly: bool) -> None:
    assert is_mostly_unspaced([text]) is is_mostly


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    "text", ["Le café fermé", "카페가 닫았다", "ガラスが閉まった", "أُغلق", "น้ำ"]
)
def test_the_form_of_characters_makes_no_other_text(form: Any, text: str) -> None:
    other = unicodedata.normalize(form, text)
    name = bleu_tokenizer([text])
    assert bleu_form(other, name) == bleu_form(text, name)
    assert words_of(other) == words_of(text)


@pytest.mark.parametrize("answer", ["1234567", "１２３４５６７", "١٢٣٤٥٦٧", "1,234,567"])
def test_needles_are_found_in_digits_of_any_script(answer: str) -> None:
    assert share_found(answer, ["1234567"]) == 1
