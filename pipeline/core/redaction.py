"""Credentials that are known, and texts without them.

Texts of libraries may quote what they were given, so every error's text and every traceback goes
through :func:`hide`. Standard library only: workers import this.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import unquote

REDACTED = "***"
ADDRESSES_VARIABLE = "PREPARE_ADDRESSES"
_SECRET_NAME = r"pass|pwd|secret|token|key|sig|auth|cred"  # noqa: S105
SECRET_PARAMETER = re.compile(
    rf"([?&;#][^=&;#]*(?:{_SECRET_NAME})[^=&;#]*=)([^&#]*)", re.IGNORECASE
)
# The same in any text, such as of an address that a server sent us on to, which nobody gave us.
_IN_TEXT = re.compile(
    rf"([?&;#][\w.~%-]{{0,60}}?(?:{_SECRET_NAME})[\w.~%-]{{0,60}}=)[^&#\s'\"<>`]+", re.IGNORECASE
)
# The beginning of a scheme, of a length that one has: a text of a million letters is searched once.
_USER = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,40}://)[^/?#\s@'\"]+@")
_VARIABLE = re.compile(r".*(TOKEN|PASSWORD|SECRET|SECRET_ACCESS_KEY|API_?KEY|_PASS)")
MIN_SECRET_CHARACTERS = 4  # a shorter one would be found in every other word

# As shown, and as given.
_given: dict[str, str] = {}


def remember_address(shown: str, given: str) -> str:
    """Keep an address as it was given; returns what was given first for the same one shown."""
    return _given.setdefault(shown, given)


def given_addresses() -> dict[str, str]:
    """Those with credentials, by what is shown of them: of this process, and handed to it."""
    try:
        handed: dict[str, str] = json.loads(os.environ.get(ADDRESSES_VARIABLE, "{}"))
    except ValueError:
        handed = {}
    return {**handed, **_given}


def redact(text: str) -> str:
    """The text without any credential that is known, or looks like one in an address."""
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _IN_TEXT.sub(rf"\1{REDACTED}", _USER.sub(rf"\1{REDACTED}@", text))


def _secrets() -> Iterator[str]:
    for address in given_addresses().values():
        _, _, rest = address.partition("://")
        user = re.split(r"[/?#]", rest)[0].rpartition("@")[0]
        found = [user, user.partition(":")[2]]
        found += [match[2] for match in SECRET_PARAMETER.finditer(rest)]
        basic = b64encode(unquote(user).encode()).decode()  # as a header has them
        for secret in (*found, *map(unquote, found), basic):
            if len(secret) >= MIN_SECRET_CHARACTERS:
                yield secret
    for name, value in os.environ.items():
        if len(value) >= 2 * MIN_SECRET_CHARACTERS and _VARIABLE.fullmatch(name):
            yield value
