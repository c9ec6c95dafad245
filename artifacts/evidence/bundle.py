"""An evidence bundle: all inputs of a verdict, in one folder next to the weights.

Layout of `prepare-evidence/`::

    manifest.json                     size and sha256 of every file, weights included
    verdict.json                      verdicts on all variants of the run, and their subjects
    resolved.json                     policy, recipe, serving and so on, each with its place
    stages/<stage>/<key>/stage.json   a stage's record, byte for byte as in the store
    stages/<stage>/<key>/<file>.gz    its answers, questions, timings, tables, logs
    locks/<environment>.txt           the lock of each environment that was built from it
    logs/<name>.gz                    the servers' output

Equal files pack to equal bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from artifacts.evidence.bundled_evidence import place_of
from artifacts.evidence.manifest import MANIFEST, Manifest, list_files
from artifacts.run_record import VariantReport
from artifacts.verdict_inputs import VerdictInputs
from pipeline import __version__
from pipeline.checkpoint.source_info import SourceInfo
from pipeline.checkpoint.weights_folder_files import ADDED_LATER, BUNDLE
from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import RECORD

VERDICT = "verdict.json"
RESOLVED = "resolved.json"
ABOUT = (
    "Verdicts on quantized variants of one checkpoint that were tried together, each against the "
    "baseline, and where the evidence of each begins: stages/judge/<key>."
)
# Paths of this machine, and nothing that the record does not say.
LEFT_IN_THE_STORE = ("worker-spec.json", "worker-result.json")


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
    policy: str = Field(description="name of the policy; resolved.json has all of it")
    command: str = Field("", description="that made the run; paths by their last part")
    source: SourceInfo
    attempted: tuple[str, ...] = Field(
        fail_fast=True, description="recipes of the run; each counts in the correction"
    )
    judges: dict[str, str] = Field(description="key of the judge stage, by recipe")
    variants: tuple[VariantReport, ...] = Field(
        fail_fast=True, description="verdicts, after the correction"
    )
    revisions: dict[str, int] = Field(
        description="of the stages' code, by stage; their keys are made of them"
    )

    @property
    def variant(self) -> VariantReport:
        """Return the bundle's variant; raises EvidenceError if it is missing."""
        for variant in self.variants:
            if variant.recipe == self.recipe:
                return variant
        raise EvidenceError(f"{VERDICT} says nothing about '{self.recipe}', which it is about")


@dataclass(frozen=True)
class BundleContents:
    """Contents of a bundle to write."""

    verdict: BundleVerdict  # what it says
    records: tuple[StageRecord, ...]  # of all stages that this depends on
    stage_folders: Mapping[str, Path]  # of these records, by key
    locks: Mapping[str, str]  # text by file name
    logs: Mapping[str, Path]  # file by name


def write_bundle(folder: Path, contents: BundleContents) -> Manifest:
    """Write a bundle into the folder of the weights.

    Raises:
        EvidenceError: the folder contains something that is not a regular file.
        OSError: the disk is full, or the folder is not writable.
    """
    bundle = folder / BUNDLE
    _write_json(bundle / VERDICT, contents.verdict.model_dump(mode="json"))
    by_key = {record.key: record for record in contents.records}
    judged = VerdictInputs.load_by_key(
        lambda _, key: by_key.get(key), contents.verdict.judges[contents.verdict.recipe]
    )
    _write_json(bundle / RESOLVED, gather_resolved(judged))
    for record in contents.records:
        _pack_stage(contents.stage_folders[record.key], bundle / place_of(record.stage, record.key))
    for name, text in sorted(contents.locks.items()):
        _write(bundle / "locks" / name, text.encode())
    for name, log in sorted(contents.logs.items()):
        _write(bundle / "logs" / f"{name}.gz", pack(log.read_bytes()))
    manifest = Manifest(
        prepare_version=__version__,
        recipe=contents.verdict.recipe,
        evidence_files=list_files(bundle),
        model_files=list_files(folder, (BUNDLE, *ADDED_LATER)),
    )
    _write_json(bundle / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def gather_resolved(judged: VerdictInputs) -> dict[str, Any]:
    """Return all decisions made before measuring, with their places in the bundle.

    A part is `{"from": "<file>#<JSON pointer>", "value": ...}`, for comparison with its record.
    """
    judge, made, served = judged.judge.record, judged.quantize.record, judged.coherence.record
    parts = {
        "policy": (judge, "/parameters/policy"),
        "family": (judge, "/parameters/family"),
        "profile": (judge, "/parameters/profile"),
        "quantization": (made, "/parameters/quantization"),
        "calibration_data": (made, "/parameters/calibration_data"),
        "quantized": (made, "/result"),
        "verified": (judged.check_weights.record, "/result"),
        "serving": (served, "/parameters/serving"),
        "baseline_serving": (judged.baseline_coherence.record, "/parameters/serving"),
        "hardware": (served, "/parameters/hardware"),
        "engine_version": (served, "/result/engine_version"),
        "environment.quantize": (made, "/parameters/environment"),
        "environment.serve": (served, "/parameters/engine"),
    }
    found: dict[str, Any] = {"schema_version": 1}
    for name, (record, pointer) in parts.items():
        data = record.model_dump(mode="json")
        try:
            value = follow_pointer(data, pointer)
        except KeyError:  # adopted weights, for example, have no calibration data
            continue
        found[name] = {
            "from": f"{place_of(record.stage, record.key)}/{RECORD}#{pointer}",
            "value": value,
        }
    return found


def follow_pointer(data: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901); raises KeyError if there is none."""
    for word in pointer.split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        if not isinstance(data, dict) or name not in data:
            raise KeyError(pointer)
        data = data[name]
    return data


def pack(content: bytes) -> bytes:
    """Compress with gzip, without name and time: equal content gives equal bytes."""
    return gzip.compress(content, 9, mtime=0)


def _pack_stage(folder: Path, destination: Path) -> None:
    """Copy the record and compress the other top-level files; skip folders (weights)."""
    _write(destination / RECORD, (folder / RECORD).read_bytes())
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in (RECORD, *LEFT_IN_THE_STORE):
            _write(destination / f"{file.name}.gz", pack(file.read_bytes()))


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _write_json(file: Path, data: Any) -> None:
    _write(file, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())
