"""`prepare sign`: signs a weights folder with its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipeline.cli.options import argument, option, parse_path, setting
from pipeline.core.errors import EvidenceError, UsageError


def sign(
    folder: Annotated[
        Path,
        argument("A folder that `prepare pull` made.", parser=parse_path, metavar="FOLDER"),
    ],
    private_key: Annotated[
        Path | None,
        setting(
            "--private-key",
            "Elliptic curve key, as PEM. Needs no network.",
            parser=parse_path,
            metavar="FILE",
        ),
    ] = None,
    keyless: Annotated[
        bool, option("--keyless", "Sign by a login (sigstore). Needs the network.")
    ] = False,
) -> None:
    """Sign the weights and the evidence next to them, in the file model.sig.

    The evidence is checked first: what does not verify is not signed.

    Examples

      prepare pull smollm2-135m@champion ./deploy

      prepare sign ./deploy --private-key signer.key

      prepare verify ./deploy --public-key signer.pub

    Exit codes: 0 signed, 1 error, 2 usage.
    """
    from artifacts.evidence.bundle_check import check_bundle, find_bundle
    from artifacts.evidence.signing import sign_keyless, sign_with_key

    if (private_key is not None) == keyless:
        raise UsageError(
            "say with what to sign: a key, or a login",
            where="prepare sign",
            hint="--private-key FILE, or --keyless",
        )
    if find_bundle(folder) == folder:
        raise UsageError(
            "this is the evidence alone; a signature is on the weights with their evidence",
            where=str(folder),
            hint=f"prepare sign {folder.parent}",
        )
    refuse_in_a_store(folder)
    check = check_bundle(folder)
    if not check.is_sound:
        problems = [*check.problems, *(d for each in check.variants for d in each.differences)]
        raise EvidenceError(
            f"the evidence does not verify, so it is not signed: {problems[0]}",
            where=str(folder),
            hint=f"`prepare verify {folder}` names every difference",
        )
    signature = sign_keyless(folder) if private_key is None else sign_with_key(folder, private_key)
    print(f"{check.recipe}: {check.files} files signed\n  {signature}")


def refuse_in_a_store(folder: Path) -> None:
    """Raise UsageError for a stage's folder: a finished stage's files do not change."""
    from pipeline.core.store import RECORD

    if (folder.resolve().parent / RECORD).is_file():
        raise UsageError(
            "a store's own folders are not changed afterwards",
            where=str(folder),
            hint="sign a copy: prepare pull NAME@ALIAS DEST, or cp -r",
        )
