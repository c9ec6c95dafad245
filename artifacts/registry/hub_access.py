"""Write access of the Hub's token to a namespace, as far as the Hub reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from artifacts.registry.hub_errors import WRITE_TOKEN, status_of, token_error
from pipeline.checkpoint.hub import LOG_IN
from pipeline.core.errors import RegistryError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

UNKNOWN_TOKEN = 401


def check_token(api: HfApi, namespace: str, where: str) -> None:
    """Refuse a token that the Hub reports as unable to write to the namespace.

    Only a write shows it for fine-grained tokens, tokens without a user, and Hubs that do not name
    the owner.

    Raises:
        RegistryError: there is no token, it is read-only, or its user is not in the namespace.
        HfHubHTTPError: the Hub rejects the token.
        OIDCError: a CI system should provide the token, and does not.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        raise token_error(where)
    try:
        owner = api.whoami()
    except HfHubHTTPError as error:
        if status_of(error) == UNKNOWN_TOKEN:
            raise
        return  # a Hub that does not say whose the token is may well take what it writes
    if owner.get("type") != "user" or not isinstance(owner.get("orgs"), list):
        return
    role = ((owner.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise _refusal("the token may only read", where)
    if role == "write" and namespace.lower() not in _namespaces(owner):
        raise _refusal(
            f"the token is of '{owner.get('name')}', who does not belong to '{namespace}'", where
        )


def _namespaces(owner: dict[str, Any]) -> set[str]:
    named = [owner, *owner["orgs"]]
    return {str((each or {}).get("name")).lower() for each in named}


def _refusal(what: str, where: str) -> RegistryError:
    return RegistryError(
        what,
        where=where,
        hint=f"{LOG_IN}, {WRITE_TOKEN}, or name another namespace in --registry",
    )
