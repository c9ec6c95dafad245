"""Untrusted text, escaped for each place where it is shown: one function per sink.

Names, reasons, licences and answers come from checkpoints, registries and models. Unescaped they
could move the cursor, turn a line's direction, begin a workflow command, become a heading, or read
as a line of the program's own.

| sink | function |
| --- | --- |
| terminal, log | :func:`log_text`; one value on a line of ours: :func:`log_line` |
| Markdown | :func:`markdown`, :func:`markdown_code`, :func:`markdown_link` |
| workflow command of GitHub Actions | :func:`annotation_text`, :func:`annotation_property` |
| JUnit XML | :func:`junit_text`, before the XML writer's own escapes |
| HTML | :func:`html_text`; templates escape markup themselves |
| outputs of a CI step | :func:`output_value` |
"""

from __future__ import annotations

import html
import re
import unicodedata
from urllib.parse import urlsplit

MAX_NAME_CHARACTERS = 200
"""Characters of a name, a path or a table's cell."""
MAX_REASON_CHARACTERS = 1000
# Controls, formats (bidi overrides and marks, tags), surrogates, line and paragraph separators, and
# what is no character at all. Joiners belong to the spelling of names.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Cn"})
_JOINERS = "\u200c\u200d"
# GitHub takes '::name' at a line's beginning, whatever blanks of Unicode are before it, and
# '##[name]' anywhere in it, for a command; Azure '##vso[name]', TeamCity '##teamcity[name]'.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_OLD_COMMAND = re.compile(r"##(?=[A-Za-z]*\[)")
# GitLab and Jenkins take '[[ATTACHMENT|path]]' in a test's output for a file to upload.
_ATTACHMENT = re.compile(r"\[(?=\[\s*ATTACHMENT)", re.IGNORECASE)
# What XML 1.0 cannot represent (section 2.2).
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN = re.compile(r"[\\`*_\[\]>|~#&!]")
# GitHub reads '$' as mathematics whether or not a backslash is before it; this is its own remedy.
_DOLLAR = "<span>$</span>"
# What would end a code span or a table's cell, or open HTML where a renderer is careless.
_IN_CODE = str.maketrans({"`": "'", "|": "/", "<": "\u2039"})


def make_visible(text: str) -> str:
    r"""The text with every character that acts or hides replaced by its escape, as in '\\u001b'.

    Line ends and tabs stay. The escapes are JSON's, so a JSON text keeps its value.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if _is_plain(letter) else _escape(letter) for letter in text)


def log_text(text: str) -> str:
    """As :func:`make_visible`, and a CI system takes no line of it for a command of its own."""
    return _without_logging_commands(_COMMAND.sub(r"\1\\u003a", make_visible(text)))


def log_line(text: str, max_characters: int = MAX_REASON_CHARACTERS) -> str:
    """One value as part of a line that the program prints: it begins no line of its own."""
    return log_text(clip(one_line(text), max_characters))


def one_line(text: str) -> str:
    """Blanks and line ends run together, and nothing in it acts or hides."""
    return make_visible(" ".join(text.split()))


def clip(text: str, max_characters: int) -> str:
    """The beginning of a text, marked where there is more."""
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def markdown(text: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """Text as Markdown that shows it as it is, on one line, also inside of a table's cell."""
    return _escape_markdown(clip(one_line(text), max_characters))


def markdown_with_code(text: str) -> str:
    """Text of ours on one line whose parts between backticks are commands, the rest as it is."""
    parts = clip(one_line(text), MAX_REASON_CHARACTERS).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other marks nothing
        return _escape_markdown("`".join(parts))
    return "`".join(
        part.translate(_IN_CODE) if number % 2 else _escape_markdown(part)
        for number, part in enumerate(parts)
    )


def markdown_code(text: str) -> str:
    """Text that may stand between backticks, also inside of a table's cell."""
    return clip(one_line(text), MAX_NAME_CHARACTERS).translate(_IN_CODE)


def markdown_link(text: str, target: str) -> str:
    """A link where the target is a web page, else the text and the target as they are."""
    try:
        parts = urlsplit(target)
        is_page = parts.scheme in ("http", "https") and bool(parts.netloc)
    except ValueError:
        is_page = False
    if (
        is_page
        and len(target) <= MAX_REASON_CHARACTERS
        and not re.search(r"[\s<>()\[\]\\|`\"]", target)
    ):
        return f"[{markdown(text)}]({make_visible(target)})"
    return f"{markdown(text)} ({markdown(target)})"


def annotation_text(text: str) -> str:
    """The message of a workflow command of GitHub Actions, on one line."""
    return _without_logging_commands(make_visible(text)).replace("%", "%25").replace("\n", "%0A")


def annotation_property(text: str) -> str:
    """A value of a workflow command's property."""
    return annotation_text(text).replace(":", "%3A").replace(",", "%2C")


def junit_text(text: str) -> str:
    """Text of a JUnit report: what XML cannot represent or what acts is replaced."""
    text = _NOT_IN_XML.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _ATTACHMENT.sub(r"\\u005b", log_text(text))


def html_text(text: str) -> str:
    """Text of an HTML page or of a figure's label; no attribute's value."""
    return html.escape(make_visible(text), quote=False)


def output_value(text: str, max_characters: int) -> str:
    """A value of a `name=value` line: without line ends and other control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:max_characters]


def _without_logging_commands(text: str) -> str:
    return _OLD_COMMAND.sub(r"#\\u0023", text)


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", text).replace("<", "&lt;").replace("$", _DOLLAR)


def _is_plain(letter: str) -> bool:
    return letter in "\n\t" or letter in _JOINERS or unicodedata.category(letter) not in _HIDDEN


def _escape(letter: str) -> str:
    number = ord(letter)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
