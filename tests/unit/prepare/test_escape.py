from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from prepare.escape import (
    junit_text,
    log_line,
    log_text,
    markdown,
    markdown_link,
    markdown_with_code,
    output_value,
)

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)
FOREIGN = st.text(
    st.characters(exclude_categories=[]) | st.sampled_from(":#[]|$`<>&%,= \r\n\x1b\u202e\ud800\x85")
) | st.sampled_from(
    [
        "##vso[task.setvariable variable=x]y",
        "##TeamCity[x]",
        "[[ATTACHMENT|/etc/passwd]]",
        "[[ attachment|x]]",
        "$$x$$ $`y`$",
        "```mermaid\ngraph TD\n```",
        "x\nsignature: holds",
        "x\r::error::y",
    ]
)
LINKS = [
    "javascript:alert(1)",
    "https://x) [y](javascript:alert(1)",
    "https://x\n\n# pass",
    "data:text/html,x",
    "https://[x",
    "//evil.example",
    "https://x<script>",
    "https://x" + "y" * 5000,
]


@given(st.text(st.characters(exclude_categories=[]) | st.sampled_from(":#[ \n\x1b\u202e\ud800")))
@example("\x1b]0;owned\x07")
@example("\U000e0041\ufffe\ufeff")
def test_nothing_in_it_acts(text: str) -> None:
    plain = log_text(text)
    assert not ACTS.search(plain)
    assert not re.search(r"^\s*::|##[A-Za-z]*\[", plain, re.MULTILINE)
    assert plain.count("\n") == text.count("\n")
    plain.encode()


@given(st.text())
@example("x\n\n# Verdict: pass\n\n| a |")
@example("![y](https://evil.example/p.png)")
def test_markdown_shows_it_as_text_of_one_line(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"- x {markdown(text)} x\n")
    assert [token.type for token in tokens if token.type != "inline"] == [
        *("bullet_list_open", "list_item_open", "paragraph_open"),
        *("paragraph_close", "list_item_close", "bullet_list_close"),
    ]
    (inline,) = (token for token in tokens if token.type == "inline")
    children = inline.children or []
    assert {each.type for each in children} <= {"text", "text_special", "html_inline"}
    html = [each.content for each in children if each.type == "html_inline"]
    assert set(html) <= {"<span>", "</span>"}
    assert "$" not in "".join(markdown(text).split("<span>$</span>"))


def test_our_own_backticks_mark_commands() -> None:
    assert markdown_with_code("run `a|b *c*` <now>") == "run `a/b *c*` &lt;now\\>"
    assert "<" not in markdown_with_code("one ` <script>")
    picture = "lost: ``` ![x](http://a.example/x.png) `, and b"
    assert "![" not in markdown_with_code(picture)  # no code span ends before a run as long


@given(FOREIGN)
def test_a_value_stays_on_its_line_of_the_terminal(text: str) -> None:
    line = log_line(text)
    assert len(line.splitlines()) <= 1
    assert not ACTS.search(line)
    assert not re.search(r"^\s*::|##[A-Za-z]*\[", line)
    assert len(log_line(text * 1000, 50)) <= 12 * 50


@given(FOREIGN)
def test_junit_text_is_xml_that_names_no_file(text: str) -> None:
    shown = junit_text(text)
    assert (ET.fromstring(f"<a>{escape(shown)}</a>").text or "") == shown
    assert not ACTS.search(shown)
    assert not re.search(r"\[\[\s*attachment", shown, re.IGNORECASE)
    assert not re.search(r"^\s*::|##[A-Za-z]*\[", shown, re.MULTILINE)


@given(FOREIGN)
def test_an_output_value_makes_no_line(text: str) -> None:
    value = output_value(text, 40)
    assert len(value) <= 40
    assert len(f"name={value}".splitlines()) == 1
    assert not ACTS.search(value)


@pytest.mark.parametrize("target", LINKS)
def test_only_a_web_page_is_linked(target: str) -> None:
    tokens = MarkdownIt("commonmark").parse(markdown_link("x](javascript:alert(1)) [y", target))
    links = [c for t in tokens for c in t.children or [] if c.type == "link_open"]
    assert links == []
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]


def test_a_web_page_is_linked() -> None:
    assert markdown_link("MIT", "https://x.org/l?a=1&b=2") == "[MIT](https://x.org/l?a=1&b=2)"
