"""The key that signs a promotion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.evidence.signing import fingerprint_of
from pipeline.core.errors import UsageError
from pipeline.environments.settings import Settings


@dataclass(frozen=True)
class Signer:
    """A private key."""

    private_key: Path
    fingerprint: str  # sha256 of its public key, in hexadecimal


def find_signer(settings: Settings, *, sign: bool) -> Signer | None:
    """Return the signer of a promotion; None if nothing is to be signed.

    Raises:
        UsageError: no key is named, it cannot be used, or versions must be signed by another key.
        EvidenceError: the library that signs is not installed.
    """
    keys = settings.signing
    if not sign:
        if keys.public_key is not None:
            raise UsageError(
                "a version must be signed here, and this promotion is not",
                where=f"public key {keys.public_key}",
                hint="add --sign",
            )
        return None
    if keys.private_key is None:
        raise UsageError(
            "--sign needs a private key",
            where="--sign",
            hint="PREPARE_PRIVATE_KEY=FILE, or the key signing.private_key of the settings file",
        )
    signer = Signer(keys.private_key, fingerprint_of(keys.private_key))
    if keys.public_key is not None and fingerprint_of(keys.public_key) != signer.fingerprint:
        raise UsageError(
            "the private key is not that of the public key which versions must be signed with",
            where=f"{keys.private_key}, {keys.public_key}",
            hint="name the two files of one key pair",
        )
    return signer
