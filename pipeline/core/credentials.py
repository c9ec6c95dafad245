"""Credentials in addresses: taken out at the door, kept in memory, put back to connect.

What a user gives as `http://me:password@host` goes on as `http://***@host`: into plans, keys,
records, reports, logs and messages. Who connects asks for the address as it was given. A stage that
connects in a process of its own is handed it by a variable of that process alone.

Standard library only: workers import this.
"""

from __future__ import annotations

import json

from pipeline.core.errors import UsageError
from pipeline.core.redaction import (
    ADDRESSES_VARIABLE,
    REDACTED,
    SECRET_PARAMETER,
    given_addresses,
    remember_address,
)

# Addresses in whose paths an '@' has a meaning of its own.
_AT_IN_PATHS = ("hf", "oci", "file")
_FILE_SCHEMES = ("sqlite",)


def strip_credentials(address: str) -> str:
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
        raise _credentials_error(
            scheme, "write '/', '?', '#' and '@' of a password as %2F, %3F, %23, %40"
        )
    # A database's user is no secret, and a token may stand in a user's place on the web.
    shown_user = REDACTED + "@" if user and (is_web or ":" in user) else user and user + "@"
    shown = f"{scheme}://{shown_user}{host}" + SECRET_PARAMETER.sub(rf"\1{REDACTED}", tail)
    if shown == address:
        return address
    if scheme.lower().partition("+")[0] in _FILE_SCHEMES:
        raise _credentials_error(scheme, "a file asks for none: leave them out")
    parts = {shown: address}
    if REDACTED in shown_user:  # whoever connects may leave parts of the path out
        parts[f"{scheme}://{shown_user}{host}"] = f"{scheme}://{authority}"
    for part, given in parts.items():
        if remember_address(part, given) != given:
            raise _credentials_error(scheme, "give one pair of credentials for one address")
    return shown


def restore_credentials(shown: str) -> str:
    """The address as it was given, to connect with; raises UsageError where it is not known."""
    if REDACTED not in shown:
        return shown
    known = given_addresses()
    found = ""
    for part in sorted(known, key=len, reverse=True):
        rest = shown[len(part) :]
        # 'http://***@host.another' and 'http://***@host:9' are not 'http://***@host'.
        if shown.startswith(part) and REDACTED not in rest and rest[:1] in ("", *"/?#&"):
            found = known[part] + rest
            break
    if not found:
        raise UsageError(
            "the address had credentials, and these are never kept",
            where=shown,
            cure="give the address with its credentials again: by its option, or by the option's "
            "environment variable, such as PREPARE_REGISTRY",
        )
    return found


def credential_variables() -> dict[str, str]:
    """The variable that gives a process of ours the addresses as given; none without any."""
    known = given_addresses()
    return {ADDRESSES_VARIABLE: json.dumps(known)} if known else {}


def _credentials_error(scheme: str, cure: str) -> UsageError:
    return UsageError(
        "the address's credentials cannot be taken", where=f"{scheme}://{REDACTED}", cure=cure
    )
