"""Escaping of untrusted text: one function for each sink.

Unescaped, text could move the cursor, start a workflow command or imitate prepare's output. HTML
templates escape markup themselves; JUnit's XML writer escapes after `junit_text`.
"""

from __future__ import annotations

import html
import re
import unicodedata
from urllib.parse import urlsplit

MAX_NAME_CHARACTERS = 200
MAX_REASON_CHARACTERS = 1000
# Controls, formats (bidi overrides and marks, tags), surrogates, separators and unassigned code
# points. Joiners are part of names.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Cn"})
_JOINERS = "\u200c\u200d"
# GitHub runs '::name' at the start of a line, after any Unicode space, and '##[name]' anywhere;
# Azure runs '##vso[name]' and TeamCity '##teamcity[name]'.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_OLD_COMMAND = re.compile(r"##(?=[A-Za-z]*\[)")
# GitLab and Jenkins upload the file in '[[ATTACHMENT|path]]' of a test's output.
_ATTACHMENT = re.compile(r"\[(?=\[\s*ATTACHMENT)", re.IGNORECASE)
# Characters that XML 1.0 cannot represent (section 2.2).
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN = re.compile(r"[\\`*_\[\]>|~#&!]")
# GitHub reads even an escaped '$' as mathematics; this is its documented workaround.
_DOLLAR = "<span>$</span>"
# Characters that end a code span or a table cell, or open HTML in a lax renderer.
_IN_CODE = str.maketrans({"`": "'", "|": "/", "<": "\u2039"})


def make_visible(text: str) -> str:
    r"""Replace active or invisible characters except line ends and tabs."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if _is_plain(letter) else _escape(letter) for letter in text)


def log_text(text: str) -> str:
    """Escape text for a log, so that no line is a CI command."""
    return _OLD_COMMAND.sub(r"#\\u0023", _COMMAND.sub(r"\1\\u003a", make_visible(text)))


def log_line(text: str, max_characters: int = MAX_REASON_CHARACTERS) -> str:
    """Escape one value within a line."""
    return log_text(clip(one_line(text), max_characters))


def one_line(text: str) -> str:
    """Join lines and spaces, all visible."""
    return make_visible(" ".join(text.split()))


def whole_text(text: str) -> str:
    """Write halves of surrogate pairs, which UTF-8 lacks, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, max_characters: int) -> str:
    """Truncate the text to end in '…'."""
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def markdown(text: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """Escape a line of Markdown or a table cell."""
    return _escape_markdown(clip(one_line(text), max_characters))


def markdown_with_code(text: str) -> str:
    """Escape prepare's own text, in which backticks mark commands."""
    parts = clip(one_line(text), MAX_REASON_CHARACTERS).split("`")
    # An unmatched backtick, or a run of several, which needs as many to end it.
    if len(parts) % 2 == 0 or "" in parts[1:-1]:
        return _escape_markdown("`".join(parts))
    return "`".join(
        part.translate(_IN_CODE) if number % 2 else _escape_markdown(part)
        for number, part in enumerate(parts)
    )


def markdown_code(text: str) -> str:
    """Escape text between backticks."""
    return clip(one_line(text), MAX_NAME_CHARACTERS).translate(_IN_CODE)


def markdown_link(text: str, target: str) -> str:
    """Return a link to a web page, or escaped text."""
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


def junit_text(text: str) -> str:
    """Replace characters that XML cannot represent, and active ones."""
    text = _NOT_IN_XML.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _ATTACHMENT.sub(r"\\u005b", log_text(text))


def html_text(text: str) -> str:
    """Escape text of an HTML page; not for attribute values."""
    return html.escape(make_visible(text), quote=False)


def output_value(text: str, max_characters: int) -> str:
    """Remove control characters from a `name=value` line's value."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:max_characters]


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
