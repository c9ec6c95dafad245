"""An evidence bundle: all inputs of a verdict, in one folder next to the weights.

Layout of `prepare-evidence/`::

    manifest.json    size and sha256 of every file, weights included
    verdict.json     verdicts on all variants of the run, and their subjects
    stages.tar.gz    stages/<stage>/<key>/ of the store: all records, byte for byte, and the files
                     of stages that asked, answered, measured or judged

Equal files pack to equal bytes. A copy may lack the archive, as questions and answers are private.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from artifacts.evidence.manifest import MANIFEST, Manifest, list_files
from artifacts.run_record import VariantReport
from eval_gates.answer_log import ANSWERS, QUESTIONS
from eval_gates.speed.load_run import LOADS
from prepare import __version__
from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.stage import StageRecord
from prepare.store import RECORD, Store
from prepare.untrusted import MAX_RECORD_BYTES, MAX_ROWS_CHARACTERS, MEBIBYTE, open_regular
from recipes.checkpoints.source_info import SourceInfo
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, BUNDLE

VERDICT = "verdict.json"
ABOUT = (
    "Verdicts on quantized variants of one checkpoint that were tried together, each against the "
    "baseline, and where the evidence of each begins: stages/judge/<key> in stages.tar.gz."
)
WITH_FILES = ("questions", "evaluate", "speed", "judge")
# All others stay in the store: private texts, and paths of this machine.
FILES = (RECORD, ANSWERS, QUESTIONS, LOADS)
MAX_UNPACKED_BYTES = 4096 * MEBIBYTE
MAX_MEMBERS = 20_000
BLOCK_BYTES = MEBIBYTE
_MEMBER = re.compile(r"stages/[a-z_]{1,40}/[0-9A-Za-z]{1,64}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BundleVerdict(Record):
    """A bundle's verdicts and their subject."""

    schema_version: Literal[1] = Field(1, description="of this record")
    subject: str = Field(ABOUT, description="what this is, for who finds it alone")
    prepare_version: str = Field(__version__, description="that wrote it")
    run: str = Field(description="id of the run that the bundle was made in")
    recipe: str = Field(description="of the variant that the weights are")
    override: str | None = Field(description="why it is promoted though it did not pass")
    registered_name: str = Field(description="name in the registry")
    profile: str = Field(description="name of the serving profile")
    policy: str = Field(description="name of the policy; the judge's record has all of it")
    command: str = Field("", description="that made the run; paths by their last part")
    signer: str = Field("", description="sha256 of the public key that belongs to the signature")
    source: SourceInfo
    attempted: tuple[str, ...] = Field(
        fail_fast=True, description="recipes of the run; each counts in the correction"
    )
    judges: dict[str, str] = Field(description="key of the judge stage, by recipe")
    variants: tuple[VariantReport, ...] = Field(
        fail_fast=True, description="verdicts, after the correction"
    )

    @property
    def variant(self) -> VariantReport:
        """Variant of the bundle."""
        for variant in self.variants:
            if variant.recipe == self.recipe:
                return variant
        raise EvidenceError(f"{VERDICT} says nothing about '{self.recipe}', which it is about")


def write_bundle(
    folder: Path, verdict: BundleVerdict, records: Sequence[StageRecord], store: Store
) -> Manifest:
    """Write a bundle of these stages into the folder of the weights."""
    bundle = folder / BUNDLE
    _write_json(bundle / VERDICT, verdict.model_dump(mode="json"))
    files = {}
    for record in records:
        place = store.stage_folder(record.stage, record.key)
        for file in place.iterdir() if record.stage in WITH_FILES else [place / RECORD]:
            if file.is_file() and file.name in FILES:
                files[f"stages/{record.stage}/{record.key}/{file.name}"] = file
    pack(folder / ARCHIVE, files)
    manifest = Manifest(
        prepare_version=__version__,
        recipe=verdict.recipe,
        evidence_files=list_files(bundle),
        model_files=list_files(folder, (BUNDLE, *ADDED_LATER)),
    )
    _write_json(bundle / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


@contextmanager
def open_bundle(bundle: Path) -> Iterator[tuple[Store, set[str]]]:
    """Yield a bundle as a store to read, and its stages' `stages/<stage>/<key>`."""
    with TemporaryDirectory(prefix="prepare-evidence-") as folder:
        names = unpack(bundle / Path(ARCHIVE).name, Path(folder))
        yield Store(Path(folder)), {name.rpartition("/")[0] for name in names}


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


def _write_json(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((json.dumps(data, indent=1, sort_keys=True) + "\n").encode())
