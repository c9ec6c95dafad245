"""Known credentials, and their redaction in errors, tracebacks and output.

Standard library only, for workers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, TextIO
from urllib.parse import unquote

REDACTED = "***"
ADDRESSES_VARIABLE = "PREPARE_ADDRESSES"
_SECRET_NAME = r"pass|pwd|secret|token|key|sig|auth|cred"  # noqa: S105
SECRET_PARAMETER = re.compile(
    rf"([?&;#][^=&;#]*(?:{_SECRET_NAME})[^=&;#]*=)([^&#]*)", re.IGNORECASE
)
# The same in any text, such as the target of a redirect.
_IN_TEXT = re.compile(
    rf"([?&;#][\w.~%-]{{0,60}}?(?:{_SECRET_NAME})[\w.~%-]{{0,60}}=)[^&#\s'\"<>`]+", re.IGNORECASE
)
# A scheme has a limited length, so that long text is searched in linear time.
_USER = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,40}:/{1,2})[^/?#\s@'\"]+(?=@)")
# Headers that a server quotes, and the text of a key where its file's name should be.
_HEADER = re.compile(r"\b((?:Basic|Bearer)[ _])[\w.~+/=-]{16,}", re.IGNORECASE)
_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_VARIABLE = re.compile(r".*(TOKEN|PASSWORD|SECRET|SECRET_ACCESS_KEY|API_?KEY|_PASS)")
MIN_SECRET_CHARACTERS = 4  # shorter ones occur in ordinary words

# Redacted address to original address.
_given: dict[str, str] = {}


def remember_address(shown: str, given: str) -> str:
    """Store an original address; the first one for `shown` is valid."""
    return _given.setdefault(shown, given)


def given_addresses() -> dict[str, str]:
    """Return original addresses by redacted form, inherited ones too."""
    try:
        handed: dict[str, str] = json.loads(os.environ.get(ADDRESSES_VARIABLE, "{}"))
    except ValueError:
        handed = {}
    return {**handed, **_given}


def redact(text: str) -> str:
    """Redact credentials that are known or appear in URLs."""
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    for pattern in (_IN_TEXT, _HEADER, _KEY, _USER):
        text = pattern.sub(rf"\1{REDACTED}", text)
    return text


def _secrets() -> Iterator[str]:
    for address in given_addresses().values():
        _, _, rest = address.partition("://")
        user = re.split(r"[/?#]", rest)[0].rpartition("@")[0]
        secrets = [user, user.partition(":")[2]]
        secrets += [match[2] for match in SECRET_PARAMETER.finditer(rest)]
        basic = b64encode(unquote(user).encode()).decode()  # as in an Authorization header
        for secret in (*secrets, *map(unquote, secrets), basic):
            if len(secret) >= MIN_SECRET_CHARACTERS:
                yield secret
    for name, value in os.environ.items():
        if len(value) >= 2 * MIN_SECRET_CHARACTERS and _VARIABLE.fullmatch(name):
            yield value


class RedactingStream:
    """Text stream that redacts known credentials."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(redact(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def redact_streams() -> None:
    """Redact standard output and error from here on."""
    sys.stdout = RedactingStream(sys.stdout)
    sys.stderr = RedactingStream(sys.stderr)
