"""The check of a version whose folder must be signed."""

from __future__ import annotations

from pathlib import Path

from artifacts.evidence.bundle_check import find_bundle, read_verdict
from artifacts.evidence.signing import check_with_key
from artifacts.registry.registry import Version
from pipeline.core.errors import EvidenceError


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
