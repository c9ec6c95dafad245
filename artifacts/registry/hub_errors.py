"""The Hub's errors, with hints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.checkpoint.hub import LOG_IN, transport_error
from pipeline.core.errors import RegistryError

WRITE_TOKEN = "with a token that may write there (https://huggingface.co/settings/tokens)"  # noqa: S105
# Another process has moved the branch, or has made what was to be made.
CONFLICTS = (409, 412)
MISSING = 404


def status_of(error: Exception) -> int:
    """Return the HTTP status of a huggingface_hub error, or 0."""
    response = getattr(error, "response", None)
    return int(response.status_code) if response is not None else 0


@contextmanager
def explain_hub_errors(where: str) -> Iterator[None]:
    """Convert known errors of the library to a RegistryError with a hint."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise _offline_error(where) from error
    except errors.LocalEntryNotFoundError as error:
        raise (
            _offline_error(where)
            if constants.HF_HUB_OFFLINE
            else _unreachable_error(endpoint, where, error)
        ) from error
    except errors.HFValidationError as error:
        raise RegistryError(
            f"the Hub does not accept this name: {_first_line(error)}",
            where=where,
            hint="give a name (--name) of letters, digits, '-', '_' and '.'",
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refusal(endpoint, where, error) from error
    except getattr(errors, "OIDCError", ()) as error:  # which older versions do not have
        raise RegistryError(
            f"no token is available from the CI system: {_first_line(error)}",
            where=where,
            hint="give the job the right to ask for an ID token (on GitHub `permissions: id-token: "
            f"write`), or put one into HF_OIDC_ID_TOKEN; or unset HF_OIDC_RESOURCE and {LOG_IN}",
        ) from error
    except transport_error() as error:
        raise _unreachable_error(endpoint, where, error) from error
    except RuntimeError as error:  # of an upload; what went wrong is its cause
        reason = error.__cause__ or error
        raise RegistryError(
            f"the upload broke off: {_first_line(reason)}",
            where=where,
            hint="run the command again; files that are there already are not sent again",
        ) from error
    except OSError as error:
        raise RegistryError(
            f"a file cannot be read or written: {error.strerror or error}",
            where=str(error.filename or where),
            hint="name a folder on a disk with room that you may write",
        ) from error
    except (ValueError, KeyError) as error:
        if isinstance(error.__cause__, errors.BadRequestError):  # it looked at the README.md
            raise RegistryError(
                f"the Hub refuses the card: {' '.join(str(error).split())[:300]}",
                where=where,
                hint="report it; the card's front matter has a value that the Hub does not know",
            ) from error
        raise RegistryError(
            f"{endpoint} does not answer as a Hub: {_first_line(error)}",
            where=where,
            hint="check HF_ENDPOINT, and whether a proxy is in between",
        ) from error


def token_error(where: str) -> RegistryError:
    """Return the error for a repository that is not visible without a token."""
    return RegistryError(
        "the Hub has no such repository, or does not show it, and we have no token",
        where=where,
        hint=f"{LOG_IN}, {WRITE_TOKEN}",
    )


def _refusal(endpoint: str, where: str, error: Exception) -> RegistryError:
    from huggingface_hub import errors, get_token

    if isinstance(error, errors.GatedRepoError):
        hint = f"accept the model's terms on its page at {endpoint}, then {LOG_IN}"
        return RegistryError("the repository is gated", where=where, hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        if get_token() is None:
            return token_error(where)
        return RegistryError(
            f"{endpoint} has no such repository, or does not show it to the token's owner",
            where=where,
            hint=f"check the namespace in --registry; {LOG_IN}, {WRITE_TOKEN}",
        )
    status = status_of(error)
    said = getattr(error, "server_message", None)
    what = f"{endpoint} answered with status {status}" + (f": {said}" if said else "")
    if status == 401:
        return RegistryError(
            "the Hub does not know the token", where=where, hint=f"{LOG_IN}, {WRITE_TOKEN}"
        )
    if status == 403:
        return RegistryError(
            f"the token may not do this{f': {said}' if said else ''}",
            where=where,
            hint=f"{LOG_IN}, {WRITE_TOKEN}, or name another namespace in --registry",
        )
    if status == 429:
        return RegistryError(what, where=where, hint="it wants fewer requests: wait some minutes")
    hint = "try again in a while" if status >= 500 else "check --registry and HF_ENDPOINT"
    return RegistryError(what, where=where, hint=hint)


def _offline_error(where: str) -> RegistryError:
    return RegistryError(
        "HF_HUB_OFFLINE is set, and what a registry on the Hub holds is known only there",
        where=where,
        hint="unset HF_HUB_OFFLINE, or name a registry on this machine",
    )


def _unreachable_error(endpoint: str, where: str, error: Exception) -> RegistryError:
    return RegistryError(
        f"{endpoint} cannot be reached: {_first_line(error)}",
        where=where,
        hint="check the network (HF_ENDPOINT names a mirror), then run the command again",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
