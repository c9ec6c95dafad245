"""Takes a page apart as a browser does, for tests: scripts, attributes, text, the policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

FETCHING = ("src", "srcset", "poster", "data", "action", "formaction", "background")


class PageParts(HTMLParser):
    """What a page is made of.

    Attributes:
        scripts: (attributes, text) of each script element.
        attributes: (element, name, value) of every attribute.
        elements: how often each occurs.
        text: all text outside of scripts and style.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.elements: dict[str, int] = {}
        self.text = ""
        self._inside: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag if tag in ("script", "style") else None
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None
        if tag in ("td", "th", "li", "dt", "dd", "div", "summary"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside is None:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def figures(self) -> dict[str, Any]:
        """What the plots are drawn from; any constant that JSON lacks is refused."""
        (text,) = [t for attributes, t in self.scripts if attributes.get("id") == "figures"]
        found: dict[str, Any] = json.loads(text, parse_constant=refused)
        return found

    @property
    def running(self) -> list[str]:
        return [text for attributes, text in self.scripts if not attributes]

    @property
    def policy(self) -> dict[str, str]:
        """The content security policy, by directive."""
        (content,) = [v for t, n, v in self.attributes if n == "content" and "default-src" in v]
        return dict(rule.strip().split(" ", 1) for rule in content.split(";"))

    def may_run(self, script: str) -> bool:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return f"'sha256-{digest}'" in self.policy["script-src"].split()

    def addresses(self) -> list[str]:
        return [
            value
            for tag, name, value in self.attributes
            if name in FETCHING or (name in ("href", "xlink:href") and not value.startswith("#"))
            if not re.fullmatch(r"data:,", value)
        ]

    def handlers(self) -> list[str]:
        return [name for _, name, _ in self.attributes if name.startswith("on")]


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
