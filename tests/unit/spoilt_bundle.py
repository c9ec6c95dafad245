"""A bundle of a judged run, and changes that an attacker may make to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_run import RECIPE
from pretend_stages import edit

from artifacts.evidence import verify as bundle_check
from artifacts.evidence.bundle import VERDICT
from artifacts.evidence.manifest import MANIFEST, list_files
from artifacts.evidence.verify import BundleCheck
from pipeline.stages import newest_revision
from pipeline.stages.packed import pack, unpack
from prepare.errors import EvidenceError
from prepare.stage import StageRecord, stage_key
from prepare.store import RECORD
from recipes.checkpoints.weight_files import ARCHIVE, BUNDLE


def check_bundle(deployed: Path) -> BundleCheck:
    """Check what the test left, packed again if it was unpacked."""
    repack(deployed)
    return bundle_check.check_bundle(deployed)


def opened(deployed: Path) -> Path:
    """The bundle's stages, unpacked next to the folder; what is changed there is packed again."""
    place = deployed.with_name(f"{deployed.name} opened")
    if not place.exists():
        unpack(deployed / ARCHIVE, place)
    return place / "stages"


def repack(deployed: Path) -> None:
    place = deployed.with_name(f"{deployed.name} opened")
    if place.exists():
        files = {p.relative_to(place).as_posix(): p for p in place.rglob("*") if p.is_file()}
        pack(deployed / ARCHIVE, files)


def found(check: BundleCheck) -> str:
    """All that is wrong, as text."""
    return "\n".join(check.faults)


def refuse(deployed: Path) -> None:
    """Raise EvidenceError with all that is wrong."""
    if wrong := found(bundle_check.check_bundle(deployed)):
        raise EvidenceError(wrong)


def stage_folder(deployed: Path, stage: str, variant: str = RECIPE) -> Path:
    for file in sorted((opened(deployed) / stage).glob(f"*/{RECORD}")):
        if json.loads(file.read_text())["variant"] == variant:
            return file.parent
    raise AssertionError(f"no {stage} of {variant}")


def rewrite_manifest(deployed: Path) -> None:
    """Make every digest right again, as who forges a bundle would."""
    repack(deployed)

    def listed(folder: Path, *leave_out: str) -> list[dict[str, Any]]:
        return [each.model_dump() for each in list_files(folder, leave_out)]

    def change(manifest: dict[str, Any]) -> None:
        manifest["evidence_files"] = listed(deployed / BUNDLE, MANIFEST)
        manifest["model_files"] = listed(deployed, BUNDLE, "model.sig")

    edit(deployed / BUNDLE / MANIFEST, change)


def change_file(file: Path, change: Callable[[bytes], bytes]) -> None:
    before = file.read_bytes()
    after = change(before)
    assert after != before
    file.write_bytes(after)


def rename_stage(deployed: Path, folder: Path) -> None:
    """Give a stage, whose record was changed, the key that follows, wherever it is named."""
    record = StageRecord.model_validate_json((folder / RECORD).read_text())
    key = stage_key(record.stage, newest_revision(record.stage), record.parameters, record.inputs)
    edit(folder / RECORD, lambda data: data.update(key=key))
    file = deployed / BUNDLE / VERDICT
    file.write_text(file.read_text().replace(record.key, key))
    folder.rename(folder.with_name(key))
