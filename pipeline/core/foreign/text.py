"""Text that others wrote, made fit to be shown: in a terminal, a log, Markdown.

Names, reasons, licences and answers come from checkpoints, registries and models. Shown as they
are, they could move the cursor, turn a line's direction, begin a workflow command or become a
heading. HTML is jinja's to escape, XML the writer's.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import urlsplit

LONGEST_NAME = 200
"""Characters of a name, a path or a table's cell."""
LONGEST_REASON = 1000
# Controls, formats (bidi overrides and marks, tags), surrogates, line and paragraph separators, and
# what is no character at all. Joiners belong to the spelling of names.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Cn"})
_JOINERS = "\u200c\u200d"
# GitHub takes '::name' at a line's beginning, whatever blanks of Unicode are before it, and
# '##[name]' anywhere in it, for a command.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_OLD_COMMAND = re.compile(r"##(?=\[)")
_MARKDOWN = re.compile(r"[\\`*_\[\]>|~#&$!]")
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
    return _OLD_COMMAND.sub(r"#\\u0023", _COMMAND.sub(r"\1\\u003a", make_visible(text)))


def one_line(text: str) -> str:
    """Blanks and line ends run together, and nothing in it acts or hides."""
    return make_visible(" ".join(text.split()))


def clip(text: str, longest: int) -> str:
    """The beginning of a text, marked where there is more."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def markdown(text: str, longest: int = LONGEST_NAME) -> str:
    """Text as Markdown that shows it as it is, on one line, also inside of a table's cell."""
    return _escape_markdown(clip(one_line(text), longest))


def markdown_with_code(text: str) -> str:
    """Text of ours on one line whose parts between backticks are commands, the rest as it is."""
    parts = clip(one_line(text), LONGEST_REASON).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other marks nothing
        return _escape_markdown("`".join(parts))
    return "`".join(
        part.translate(_IN_CODE) if number % 2 else _escape_markdown(part)
        for number, part in enumerate(parts)
    )


def markdown_code(text: str) -> str:
    """Text that may stand between backticks, also inside of a table's cell."""
    return clip(one_line(text), LONGEST_NAME).translate(_IN_CODE)


def markdown_link(text: str, target: str) -> str:
    """A link where the target is a web page, else the text and the target as they are."""
    try:
        parts = urlsplit(target)
        is_page = parts.scheme in ("http", "https") and bool(parts.netloc)
    except ValueError:
        is_page = False
    if is_page and len(target) <= LONGEST_REASON and not re.search(r"[\s<>()\[\]\\|`\"]", target):
        return f"[{markdown(text)}]({make_visible(target)})"
    return f"{markdown(text)} ({markdown(target)})"


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", text).replace("<", "&lt;")


def _is_plain(letter: str) -> bool:
    return letter in "\n\t" or letter in _JOINERS or unicodedata.category(letter) not in _HIDDEN


def _escape(letter: str) -> str:
    number = ord(letter)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
