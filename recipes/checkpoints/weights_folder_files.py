"""Files of a weights folder, and those that may be added later."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.digest import digest_file, digest_json
from pipeline.core.errors import EvidenceError
from recipes.checkpoints.weight_files import weight_files

BUNDLE = "prepare-evidence"
ARCHIVE = f"{BUNDLE}/stages.tar.gz"
CARD = "README.md"
RESULTS = ".eval_results/prepare.yaml"
SIGNATURE = "model.sig"
# A signature, and the file that the Hub adds to every repository. Any other unlisted file, such as
# one in `.git/hooks`, is refused.
ADDED_LATER = (SIGNATURE, ".gitattributes")


def plain_files(folder: Path, leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """Yield (relative path, file) of every file below the folder, sorted.

    `leave_out` has relative paths of files and folders. Raises EvidenceError for links and devices.
    """
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        mode = file.lstat().st_mode
        if any(_is_part_of(path, mode, each) for each in leave_out):
            continue
        if stat.S_ISREG(mode):
            yield path, file
        elif not stat.S_ISDIR(mode):
            raise EvidenceError(
                "there is something that is neither a file nor a folder",
                where=str(file),
                hint="replace links by the files; the Hub's cache has links, `hf download "
                "--local-dir` makes files",
            )


def _is_part_of(path: str, mode: int, left_out: str) -> bool:
    if left_out in ADDED_LATER:
        return path == left_out and stat.S_ISREG(mode)
    return path == left_out or path.startswith(f"{left_out}/")


def digest_of_other_files(folder: Path, added: tuple[str, ...] = ADDED_LATER) -> str:
    """Digest names and contents of all files except the weights and those `added` later.

    A `*.safetensors` file that is not part of the weights is included.

    Raises:
        CheckpointError: the folder has no weights.
        EvidenceError: there is something that is neither a file nor a folder.
    """
    weights = set(weight_files(folder))
    return digest_json(
        [
            [path, digest_file(file)]
            for path, file in plain_files(folder, added)
            if file not in weights
        ]
    )


def digest_auxiliary_files(folder: Path) -> str:
    """Digest config, tokenizer, template and code; raises as `digest_of_other_files`."""
    return digest_of_other_files(folder, (BUNDLE, CARD, RESULTS, *ADDED_LATER))
