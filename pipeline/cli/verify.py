"""`prepare verify`: computes verdicts again from kept answers, of a run or of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    JsonOption,
    PublicKeyOption,
    RegistryOption,
    StoreOption,
    parse_path,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json, print_table
from prepare.errors import ExitCode, UsageError
from prepare.escape import MAX_NAME_CHARACTERS, log_line

if TYPE_CHECKING:
    from artifacts.evidence.differences import VariantCheck
    from artifacts.evidence.verify import BundleCheck

MAX_LINES = 50  # of one list


def verify(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="A folder with evidence, a registered NAME@ALIAS, or a run: its id, the beginning "
            "of one, or 'latest'.",
        ),
    ] = "latest",
    public_key: PublicKeyOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute verdicts again, from kept answers alone.

    No server and no network: the digests of the evidence are checked, each gate
    is judged again, and every difference is named. REF is a run of the store, a
    folder of weights with prepare-evidence/ in it, or that folder alone, or a
    registered version whose files are on this machine.

    Examples

      prepare verify

      prepare verify 20261121-0915 --json

      prepare verify ./deploy --public-key signer.pub

      prepare verify smollm2-135m@champion

    Exit codes: 0 everything as kept, 1 something differs, 2 usage, 5 a copy without the
    recorded answers: its digests are right, and it cannot be judged again.
    """
    parse_path(reference)
    if is_version(reference):
        folder, public_key = registered_folder(reference, registry, store, public_key)
        reference = str(folder)
    if is_folder(reference):
        if not Path(reference).is_dir():
            raise UsageError(
                "there is no such folder", where=reference, hint="check the path for a typo"
            )
        same = verify_folder(Path(reference), public_key, as_json=as_json)
        if same is None:
            raise typer.Exit(ExitCode.UNDECIDED)
    else:
        # A key in the environment is for folders and versions, and no fault of a run.
        origin = context.get_parameter_source("public_key")
        if origin is not None and origin.name == "COMMANDLINE":
            raise UsageError(
                "a run in the store is not signed; folders are",
                where=reference,
                hint="name a folder: one that `prepare pull` made, or was published",
            )
        same = verify_run(reference, store, as_json=as_json)
    raise typer.Exit(ExitCode.SUCCESS if same else ExitCode.EXPECTED_ERROR)


def is_folder(reference: str) -> bool:
    """Return whether this looks like a path."""
    return "/" in reference or Path(reference).is_dir()


def is_version(reference: str) -> bool:
    """Return whether this looks like NAME@ALIAS."""
    return "@" in reference and not is_folder(reference)


def registered_folder(
    reference: str, registry: str | None, store: Path | None, public_key: Path | None
) -> tuple[Path, Path | None]:
    """Return a version's checked folder and its required public key.

    UsageError: no such version. RegistryError: files are not on this machine, or differ.
    """
    from artifacts.deploy.registered import checked_folder
    from pipeline.environments.settings import load_settings

    settings = load_settings(store, public_key=public_key)
    _, version = find_asked(reference, registry, settings)
    # Remembered digests suffice: the check of the bundle reads all weights.
    folder = checked_folder(version, None, settings, "verify")
    return folder, settings.signing.public_key


def verify_run(run: str, store: Path | None, *, as_json: bool) -> bool:
    """Check a run; return whether all is as recorded."""
    from artifacts.evidence.verify import check_run
    from artifacts.run_record import find_run
    from pipeline.environments.settings import load_settings

    opened = load_settings(store).open_store()
    report = find_run(opened, run, judged=True)
    checks = check_run(report, opened)
    same = not any(check.differences for check in checks)
    if as_json:
        variants = [asdict(check) for check in checks]
        print_json({"schema_version": 1, "run": report.run, "same": same, "variants": variants})
    else:
        print_checks(checks)
    return same


def verify_folder(folder: Path, public_key: Path | None, *, as_json: bool) -> bool | None:
    """Check a folder with evidence, and a required signature.

    Returns whether all is as recorded; None without answers. EvidenceError: no evidence, or an
    invalid signature.
    """
    from artifacts.evidence.signing import check_with_key
    from artifacts.evidence.verify import check_bundle
    from recipes.checkpoints.weight_files import SIGNATURE

    if public_key is not None:
        check_with_key(folder, public_key)
        signature = "holds"
    else:
        signature = "unchecked" if (folder / SIGNATURE).exists() else "none"
    check = check_bundle(folder)
    if as_json:
        print_json({"schema_version": 1, "signature": signature, **check.to_dict()})
    else:
        print_folder(folder, check, signature)
    return None if check.is_sound and check.answers_withheld else check.is_sound


def print_folder(folder: Path, check: BundleCheck, signature: str) -> None:
    """Print a folder's check for people."""
    print_clipped([f"evidence: {log_line(problem)}" for problem in check.problems])
    print_checks(check.variants)
    verdict = check.verdict
    words = {
        "holds": "signature: holds",
        "unchecked": "signature: there, and not checked; name its signer's key with --public-key",
        "none": "signature: none, so this shows that everything is consistent, not who made it",
    }
    weights = "with the weights" if check.weights_checked else "without weights"
    print(
        f"{folder}: {value(verdict.recipe)}, run {value(verdict.run)}; "
        f"{check.files} files {weights}, "
        + ("all as listed" if not check.problems else f"{len(check.problems)} problems")
    )
    if check.answers_withheld:
        print("the recorded answers are not in this copy: digests were checked, nothing was judged")
    if check.made_by:
        print(f"weights made by: {value(check.made_by)}")
    if verdict.override:
        kept = verdict.variant.verdict
        print(f"promoted in spite of its verdict ({kept}): {log_line(verdict.override)}")
    if verdict.variant.not_shown:
        print(f"its pass is {log_line(verdict.variant.not_shown)}")
    print(words[signature])


def print_checks(checks: Sequence[VariantCheck]) -> None:
    """Print a table of variants, then every difference."""
    rows = [
        [
            *(c.recipe, c.kept, c.computed or "cannot be computed", f"{c.answers:,}"),
            "differs" if c.differences else "the same",
        ]
        for c in checks[:MAX_LINES]
    ]
    print_table(["variant", "verdict kept", "computed again", "answers read", ""], rows)
    for check in checks:
        print_clipped(
            [f"{value(check.recipe)}: {log_line(difference)}" for difference in check.differences]
        )


def print_clipped(lines: Sequence[str]) -> None:
    """Print the first lines, and count others."""
    for line in lines[:MAX_LINES]:
        print(line)
    if len(lines) > MAX_LINES:
        print(f"{len(lines) - MAX_LINES} more like these: --json has all")


def value(text: str) -> str:
    """Return an untrusted name as part of a line."""
    return log_line(text, MAX_NAME_CHARACTERS)
