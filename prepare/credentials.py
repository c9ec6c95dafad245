"""Credentials in URLs: redacted on input, restored to connect.

A stage's process receives the originals in a variable. Standard library only, for workers.
"""

from __future__ import annotations

import json

from prepare.errors import UsageError
from prepare.redaction import (
    ADDRESSES_VARIABLE,
    REDACTED,
    SECRET_PARAMETER,
    given_addresses,
    remember_address,
)

# Schemes that use '@' in paths.
_AT_IN_PATHS = ("hf", "oci", "file")
_FILE_SCHEMES = ("sqlite",)


def strip_credentials(address: str) -> str:
    """Return the address without credentials, which are stored.

    UsageError: their end is ambiguous, or the address was given before with others.
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    end = min((rest.find(letter) for letter in "/?#" if letter in rest), default=len(rest))
    authority = rest[:end]
    tail = rest[end:]
    user, _, host = authority.rpartition("@")
    is_web = scheme.lower() in ("http", "https")
    if not user and "@" in tail and scheme.lower() not in _AT_IN_PATHS:
        raise _credentials_error(
            scheme, "write '/', '?', '#' and '@' of a password as %2F, %3F, %23, %40"
        )
    # A database user is not a secret; on the web the user field can be a token.
    shown_user = REDACTED + "@" if user and (is_web or ":" in user) else user and user + "@"
    shown = f"{scheme}://{shown_user}{host}" + SECRET_PARAMETER.sub(rf"\1{REDACTED}", tail)
    if shown == address:
        return address
    if scheme.lower().partition("+")[0] in _FILE_SCHEMES:
        raise _credentials_error(scheme, "remove them: a file needs none")
    parts = {shown: address}
    if REDACTED in shown_user:  # a client may drop parts of the path
        parts[f"{scheme}://{shown_user}{host}"] = f"{scheme}://{authority}"
    for part, given in parts.items():
        if remember_address(part, given) != given:
            raise _credentials_error(scheme, "use one pair of credentials for each address")
    return shown


def restore_credentials(shown: str) -> str:
    """Return the original address; UsageError if it is not stored."""
    if REDACTED not in shown:
        return shown
    known = given_addresses()
    restored = ""
    for part in sorted(known, key=len, reverse=True):
        rest = shown[len(part) :]
        # 'http://***@host.another' and 'http://***@host:9' are not 'http://***@host'.
        if shown.startswith(part) and REDACTED not in rest and rest[:1] in ("", *"/?#&"):
            restored = known[part] + rest
            break
    if not restored:
        raise UsageError(
            "the address had credentials, which are never stored",
            where=shown,
            hint="give the address with its credentials again: by its option, or by the option's "
            "environment variable, such as PREPARE_REGISTRY",
        )
    return restored


def credential_variables(told: str) -> dict[str, str]:
    """Return the variable with the originals in `told`."""
    known = {shown: given for shown, given in given_addresses().items() if shown in told}
    return {ADDRESSES_VARIABLE: json.dumps(known)} if known else {}


def _credentials_error(scheme: str, hint: str) -> UsageError:
    return UsageError(
        "the credentials in the address cannot be used", where=f"{scheme}://{REDACTED}", hint=hint
    )
