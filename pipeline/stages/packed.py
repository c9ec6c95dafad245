"""Stages packed into an archive, as evidence bundles and recorded arms have them."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from eval_gates.answer_log import ANSWERS, QUESTIONS_FILE
from eval_gates.speed.load_run import LOADS
from eval_gates.suites.presets import EXAMPLES_FILE
from prepare.errors import EvidenceError
from prepare.stage import StageRecord
from prepare.store import RECORD, Store
from prepare.untrusted import MAX_RECORD_BYTES, MAX_ROWS_CHARACTERS, MEBIBYTE, open_regular

WITH_FILES = ("questions", "evaluate", "speed", "judge")
# All others stay in the store: private texts, and paths of this machine.
FILES = (RECORD, ANSWERS, QUESTIONS_FILE, LOADS, EXAMPLES_FILE)
MAX_UNPACKED_BYTES = 4096 * MEBIBYTE
MAX_MEMBERS = 20_000
BLOCK_BYTES = MEBIBYTE
_MEMBER = re.compile(r"stages/[a-z_]{1,40}/[0-9A-Za-z]{1,64}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def files_of(records: Iterable[StageRecord], store: Store) -> dict[str, Path]:
    """Return the files of these stages that evidence has, by their names in an archive."""
    files = {}
    for record in records:
        place = store.stage_folder(record.stage, record.key)
        for file in place.iterdir() if record.stage in WITH_FILES else [place / RECORD]:
            if file.is_file() and file.name in FILES:
                files[f"stages/{record.stage}/{record.key}/{file.name}"] = file
    return files


def pack(archive: Path, files: dict[str, Path]) -> None:
    """Write an archive without times and owners."""
    with (
        archive.open("wb") as target,
        gzip.GzipFile("", "wb", 9, target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, file in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(member, content)


@contextmanager
def open_archive(archive: Path) -> Iterator[Store]:
    """Yield an untrusted archive as a store to read; raises as `unpack`."""
    with TemporaryDirectory(prefix="prepare-evidence-") as folder:
        unpack(archive, Path(folder))
        yield Store(Path(folder))


def unpack(archive: Path, root: Path) -> set[str]:
    """Unpack an untrusted archive of stages; return the names in it.

    EvidenceError if it is damaged, too large, or has other files.
    """
    names: set[str] = set()
    seen: set[str] = set()
    try:
        with (
            open_regular(archive, None) as packed,
            gzip.GzipFile(fileobj=packed) as unpacked,
            tarfile.open(fileobj=(bounded := _Bounded(unpacked)), mode="r:") as tar,  # type: ignore[call-overload]
        ):
            for member in tar:
                if not member.isreg() or not _MEMBER.fullmatch(member.name):
                    raise ValueError(f"it has {ascii(member.name)[:100]}")
                most = (
                    MAX_RECORD_BYTES if member.name.endswith(f"/{RECORD}") else MAX_ROWS_CHARACTERS
                )
                # Some file systems ignore case.
                folded = member.name.casefold()
                if folded in seen or member.size > most or len(names) >= MAX_MEMBERS:
                    raise ValueError(f"{member.name} is there twice, or larger than {most:,} bytes")
                names.add(member.name)
                seen.add(folded)
                content = tar.extractfile(member)
                assert content is not None
                (root / member.name).parent.mkdir(parents=True, exist_ok=True)
                with (root / member.name).open("xb") as file:
                    while block := content.read(BLOCK_BYTES):
                        file.write(block)
            while padding := bounded.read(BLOCK_BYTES):  # reads the checksum at the end, too
                if any(padding):
                    raise ValueError("there is something behind its end")
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise EvidenceError(
            f"the archive cannot be read: {error}",
            where=str(archive),
            hint="get the evidence again from where it was published",
        ) from error
    return names


class _Bounded:
    """A decompressed archive of limited size.

    `tarfile` reads a header of any stated size in one piece.
    """

    def __init__(self, content: gzip.GzipFile) -> None:
        self._content = content
        self.seek = content.seek
        self.tell = content.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= BLOCK_BYTES or self._content.tell() > MAX_UNPACKED_BYTES:
            raise ValueError("it unpacks to too much")
        return self._content.read(size)
