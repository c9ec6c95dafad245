"""Credentials in addresses: taken out at the door, kept in memory, put back to connect.

What a user gives as `http://me:password@host` goes on as `http://***@host`: into plans, keys,
records, reports, logs and messages. Who connects asks for the address as it was given. A stage that
connects in a process of its own is handed it by a variable of that process alone.

Texts of libraries may still quote what they were given, so every error's text and every traceback
goes through :func:`hide`. Standard library only: workers import this.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import unquote

HIDDEN = "***"
HANDED_ON = "PREPARE_ADDRESSES"
# Addresses in whose paths an '@' has a meaning of its own.
_AT_IN_PATHS = ("hf", "oci", "file")
_OF_A_FILE = ("sqlite",)
_SECRET_NAME = r"pass|pwd|secret|token|key|sig|auth|cred"  # noqa: S105
_PARAMETER = re.compile(rf"([?&;#][^=&;#]*(?:{_SECRET_NAME})[^=&;#]*=)([^&#]*)", re.IGNORECASE)
# The same in any text, such as of an address that a server sent us on to, which nobody gave us.
_IN_TEXT = re.compile(
    rf"([?&;#][\w.~%-]{{0,60}}?(?:{_SECRET_NAME})[\w.~%-]{{0,60}}=)[^&#\s'\"<>`]+", re.IGNORECASE
)
# The beginning of a scheme, of a length that one has: a text of a million letters is searched once.
_USER = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,40}://)[^/?#\s@'\"]+@")
_VARIABLE = re.compile(r".*(TOKEN|PASSWORD|SECRET|SECRET_ACCESS_KEY|API_?KEY|_PASS)")
SHORTEST_SECRET = 4  # a shorter one would be found in every other word

# As shown, and as given.
_given: dict[str, str] = {}


def take_out(address: str) -> str:
    """The address without its credentials, which are kept for :func:`put_back`.

    Text that is no address, or has no credentials, comes back as it is.

    Raises:
        UsageError: it is unclear where the credentials end, or another with other
            credentials was given before.
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    end = min((rest.find(letter) for letter in "/?#" if letter in rest), default=len(rest))
    authority, tail = rest[:end], rest[end:]
    user, _, host = authority.rpartition("@")
    is_web = scheme.lower() in ("http", "https")
    if not user and "@" in tail and scheme.lower() not in _AT_IN_PATHS:
        raise _refusal(scheme, "write '/', '?', '#' and '@' of a password as %2F, %3F, %23, %40")
    # A database's user is no secret, and a token may stand in a user's place on the web.
    shown_user = HIDDEN + "@" if user and (is_web or ":" in user) else user and user + "@"
    shown = f"{scheme}://{shown_user}{host}" + _PARAMETER.sub(rf"\1{HIDDEN}", tail)
    if shown == address:
        return address
    if scheme.lower().partition("+")[0] in _OF_A_FILE:
        raise _refusal(scheme, "a file asks for none: leave them out")
    parts = {shown: address}
    if HIDDEN in shown_user:  # whoever connects may leave parts of the path out
        parts[f"{scheme}://{shown_user}{host}"] = f"{scheme}://{authority}"
    for part, given in parts.items():
        if _given.setdefault(part, given) != given:
            raise _refusal(scheme, "give one pair of credentials for one address")
    return shown


def put_back(shown: str) -> str:
    """The address as it was given, to connect with; raises UsageError where it is not known."""
    if HIDDEN not in shown:
        return shown
    known = _read_known()
    found = ""
    for part in sorted(known, key=len, reverse=True):
        rest = shown[len(part) :]
        # 'http://***@host.another' and 'http://***@host:9' are not 'http://***@host'.
        if shown.startswith(part) and HIDDEN not in rest and rest[:1] in ("", *"/?#&"):
            found = known[part] + rest
            break
    if not found:
        from pipeline.core.errors import UsageError

        raise UsageError(
            "the address had credentials, and these are never kept",
            where=shown,
            cure="give the address with its credentials again: by its option, or by the option's "
            "environment variable, such as PREPARE_REGISTRY",
        )
    return found


def hand_on() -> dict[str, str]:
    """The variable that gives a process of ours the addresses as given; none without any."""
    known = _read_known()
    return {HANDED_ON: json.dumps(known)} if known else {}


def hide(text: str) -> str:
    """The text without any credential that is known, or looks like one in an address."""
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _IN_TEXT.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def _read_known() -> dict[str, str]:
    try:
        handed: dict[str, str] = json.loads(os.environ.get(HANDED_ON, "{}"))
    except ValueError:
        handed = {}
    return {**handed, **_given}


def _secrets() -> Iterator[str]:
    for address in _read_known().values():
        _, _, rest = address.partition("://")
        user = re.split(r"[/?#]", rest)[0].rpartition("@")[0]
        found = [user, user.partition(":")[2]]
        found += [match[2] for match in _PARAMETER.finditer(rest)]
        basic = b64encode(unquote(user).encode()).decode()  # as a header has them
        for secret in (*found, *map(unquote, found), basic):
            if len(secret) >= SHORTEST_SECRET:
                yield secret
    for name, value in os.environ.items():
        if len(value) >= 2 * SHORTEST_SECRET and _VARIABLE.fullmatch(name):
            yield value


def _refusal(scheme: str, cure: str) -> Exception:
    from pipeline.core.errors import UsageError

    return UsageError(
        "the address's credentials cannot be taken", where=f"{scheme}://{HIDDEN}", cure=cure
    )
