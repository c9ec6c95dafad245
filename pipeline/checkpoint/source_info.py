"""What the card of a checkpoint says of it: its id on the Hub and its licence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.checkpoint.folder import Checkpoint
from pipeline.checkpoint.reference import parse_reference
from pipeline.checkpoint.weight_files import read_json
from pipeline.core.record import Record
from pipeline.core.untrusted.file import MEBIBYTE, read_regular

MAX_CARD_BYTES = 4 * MEBIBYTE
_FRONT = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.M
)

# The demo's weights come as a package without a card.
DEMO_SOURCES = {"demo:smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}


class SourceInfo(Record):
    """The checkpoint that a variant was made of, as others may see it."""

    ref: str = Field(description="as the user named it")
    digest: str = Field(description="over its files' digests")
    revision: str = Field("", description="commit on the Hub")
    base_model: str = Field("", description="id on the Hub, where known")
    licence: str = Field("", description="identifier as the Hub has them, where known")
    licence_name: str = Field("", description="of a licence that is called 'other'")
    licence_link: str = Field("", description="of a licence that is called 'other'")


class CheckpointReport(Record):
    """Which checkpoint a run was about."""

    ref: str = Field(description="as the user named it")
    digest: str = Field(description="sha256 over its files' digests")
    source: SourceInfo | None = Field(
        None, description="what its own card says; None in runs before this was kept"
    )


def find_source(ref: str, digest: str, checkpoint: Checkpoint | None) -> SourceInfo:
    """What is known of a source, wherever it lies now; what nobody wrote down stays empty."""
    # Where a folder lay on somebody's machine is nobody else's business.
    facts = {"ref": Path(ref).name if is_path(ref) else ref, "digest": digest}
    if ref in DEMO_SOURCES:
        facts["base_model"], facts["licence"] = DEMO_SOURCES[ref]
        return SourceInfo(**facts)
    if checkpoint is None:
        return SourceInfo(**facts)
    if checkpoint.kind == "hub":
        facts["base_model"] = parse_reference(checkpoint.ref).name
        facts["revision"] = checkpoint.revision or ""
    return SourceInfo(**facts, **licence_in(checkpoint.path))


def report_checkpoint(checkpoint: Checkpoint) -> CheckpointReport:
    """What a run's record keeps of its checkpoint."""
    return CheckpointReport(
        ref=checkpoint.ref,
        digest=checkpoint.digest,
        source=find_source(checkpoint.ref, checkpoint.digest, checkpoint),
    )


def is_path(ref: str) -> bool:
    """Whether the name of a checkpoint is a path: not the Hub's org/name, and not a demo."""
    return ref.startswith(("/", ".", "~"))


def licence_in(folder: Path) -> dict[str, str]:
    """The licence as the folder's model card names it, else its config."""
    card = front_matter(folder / "README.md")
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    licence = card.get("license") or config.get("license")
    found = {
        "licence": licence,
        "licence_name": card.get("license_name"),
        "licence_link": card.get("license_link"),
    }
    return {name: value for name, value in found.items() if isinstance(value, str)}


def front_matter(card: Path) -> dict[str, Any]:
    """The YAML between the dashes at a card's beginning; nothing where it is missing or damaged.

    Somebody else wrote the card, and a card that cannot be read stops no promotion.
    """
    from pipeline.core.untrusted.yaml import parse_yaml

    try:
        found = _FRONT.match(read_regular(card, MAX_CARD_BYTES))
        facts = parse_yaml(found[1], finite=False) if found else None
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
