"""An evidence bundle: all inputs of a verdict, in one folder next to the weights.

Layout of `prepare-evidence/`::

    manifest.json    size and sha256 of every file, weights included
    verdict.json     verdicts on all variants of the run, and their subjects
    stages.tar.gz    stages/<stage>/<key>/ of the store: all records, byte for byte, and the files
                     of stages that asked, answered, measured or judged

Equal files pack to equal bytes. A copy may lack the archive, as questions and answers are private.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from artifacts.evidence.manifest import MANIFEST, Manifest, list_files
from artifacts.run_record import VariantReport
from pipeline.stages.packed import files_of, open_archive, pack
from prepare import __version__
from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.stage import StageRecord
from prepare.store import Store
from recipes.checkpoints.source_info import SourceInfo
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, BUNDLE

VERDICT = "verdict.json"
ABOUT = (
    "Verdicts on quantized variants of one checkpoint that were tried together, each against the "
    "baseline, and where the evidence of each begins: stages/judge/<key> in stages.tar.gz."
)


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
    files = files_of(records, store)
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
    with open_archive(bundle / Path(ARCHIVE).name) as store:
        places = store.root.glob("stages/*/*")
        yield store, {place.relative_to(store.root).as_posix() for place in places}


def _write_json(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((json.dumps(data, indent=1, sort_keys=True) + "\n").encode())
