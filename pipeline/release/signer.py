"""The key that signs a promotion, and the check of signed versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.evidence.bundle_check import find_bundle, read_verdict
from artifacts.evidence.signing import check_with_key, fingerprint_of
from artifacts.registry.registry import Version
from pipeline.core.errors import EvidenceError, UsageError
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


def check_signed(version: Version, folder: Path, public_key: Path | None) -> None:
    """Check that a version's folder is signed with a key, if one is named.

    Raises:
        EvidenceError: it is not signed, a file is not as it was signed, or it was signed as a
            version of another model.
        UsageError: the key cannot be used.
    """
    if public_key is None:
        return
    check_with_key(folder, public_key)
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            "the folder is signed, and has no evidence",
            where=str(folder),
            hint="promote its run again with --sign",
        )
    signed = read_verdict(bundle).registered_name
    # A repository of an OCI registry has a path, which no registered name is.
    if "/" not in version.name and signed != version.name:
        raise EvidenceError(
            f"the folder was signed as a version of '{signed}', not of '{version.name}'",
            where=str(folder),
            hint="do not use it: a user registered it under another name",
        )
