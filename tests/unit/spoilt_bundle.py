"""A bundle of a judged run, and changes that an attacker may make to it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_run import RECIPE
from pretend_stages import edit

from artifacts.evidence.bundle import RESOLVED, VERDICT, pack
from artifacts.evidence.bundle_check import BundleCheck, check_bundle
from artifacts.evidence.manifest import MANIFEST, list_files
from pipeline.checkpoint.weights_folder_files import BUNDLE
from pipeline.core.errors import EvidenceError
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import RECORD
from pipeline.stages import newest_revision


def found(check: BundleCheck) -> str:
    """All that is wrong, as text."""
    return "\n".join([*check.problems, *(d for each in check.variants for d in each.differences)])


def refuse(deployed: Path) -> None:
    """Raise EvidenceError with all that is wrong."""
    if wrong := found(check_bundle(deployed)):
        raise EvidenceError(wrong)


def stage_folder(deployed: Path, stage: str, variant: str = RECIPE) -> Path:
    for file in sorted((deployed / BUNDLE / "stages" / stage).glob(f"*/{RECORD}")):
        if json.loads(file.read_text())["variant"] == variant:
            return file.parent
    raise AssertionError(f"no {stage} of {variant}")


def rewrite_manifest(deployed: Path) -> None:
    """Make every digest right again, as who forges a bundle would."""

    def listed(folder: Path, *leave_out: str) -> list[dict[str, Any]]:
        return [each.model_dump() for each in list_files(folder, leave_out)]

    def change(manifest: dict[str, Any]) -> None:
        manifest["evidence_files"] = listed(deployed / BUNDLE, MANIFEST)
        manifest["model_files"] = listed(deployed, BUNDLE, "model.sig")

    edit(deployed / BUNDLE / MANIFEST, change)


def change_packed(file: Path, change: Callable[[bytes], bytes]) -> None:
    before = gzip.decompress(file.read_bytes())
    after = change(before)
    assert after != before
    file.write_bytes(pack(after))


def rename_stage(deployed: Path, folder: Path) -> None:
    """Give a stage, whose record was changed, the key that follows, wherever it is named."""
    record = StageRecord.model_validate_json((folder / RECORD).read_text())
    key = stage_key(record.stage, newest_revision(record.stage), record.parameters, record.inputs)
    edit(folder / RECORD, lambda data: data.update(key=key))
    for file in [deployed / BUNDLE / VERDICT, deployed / BUNDLE / RESOLVED]:
        file.write_text(file.read_text().replace(record.key, key))
    folder.rename(folder.with_name(key))
