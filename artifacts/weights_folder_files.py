"""Files of a folder of weights, whatever was put beside them after they were listed."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import EvidenceError

SIGNATURE = "model.sig"
# What may come to a folder after its files were listed: a signature, and the file that the Hub
# puts into every repository. All else that no list has, such as `.git/hooks`, is refused.
ADDED_LATER = (SIGNATURE, ".gitattributes")


def plain_files(folder: Path, leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """(relative path, file) of every file below, sorted; links and devices are no plain files.

    What is left out is named by relative paths of files, or of folders with all that is in them.

    Raises:
        EvidenceError: there is a link or a device.
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
                hint="copy what links point to in their place; a copy from the Hub's cache is made "
                "of links, one by `hf download --local-dir` is not",
            )


def _is_part_of(path: str, mode: int, left_out: str) -> bool:
    """Whether it is what is left out, or in it; instead of a file, only a plain file is."""
    if left_out in ADDED_LATER:
        return path == left_out and stat.S_ISREG(mode)
    return path == left_out or path.startswith(f"{left_out}/")
