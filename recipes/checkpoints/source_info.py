"""A checkpoint's Hub id and license, from its card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from prepare.record import Record
from prepare.untrusted import MEBIBYTE, read_regular
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.reference import parse_reference

MAX_CARD_BYTES = 4 * MEBIBYTE
_FRONT = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.M
)

# The demo's package has no card.
DEMO_SOURCES = {"demo:smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}


class SourceInfo(Record):
    """Source checkpoint of a run, or of its variants."""

    ref: str = Field(description="as the user named it; a published folder's name alone")
    digest: str = Field(description="of its files' digests")
    revision: str = Field("", description="commit on the Hub")
    base_model: str = Field("", description="id on the Hub, if known")
    quantized: str = Field(
        "", description="numbers of its weights, such as FP8, if it was released quantized"
    )
    license: str = Field("", description="the Hub's license identifier, if known")
    license_name: str = Field("", description="of a license that is called 'other'")
    license_link: str = Field("", description="of a license that is called 'other'")

    def published(self) -> SourceInfo:
        """Return the facts without private paths."""
        return self.model_copy(update={"ref": public_name(self.ref)})

    @property
    def as_baseline(self) -> str:
        """Return the baseline of verdicts."""
        if self.quantized:
            return f"the released {self.quantized} weights"
        return "the unquantized model"


def describe_source(checkpoint: Checkpoint) -> SourceInfo:
    """Return the known facts about a hashed checkpoint."""
    facts = {"ref": checkpoint.ref, "digest": checkpoint.digest}
    if checkpoint.ref in DEMO_SOURCES:
        facts["base_model"], facts["license"] = DEMO_SOURCES[checkpoint.ref]
        return SourceInfo(**facts)
    if checkpoint.kind == "hub":
        facts["base_model"] = parse_reference(checkpoint.ref).name
        facts["revision"] = checkpoint.revision or ""
    facts["quantized"] = checkpoint.quantized
    return SourceInfo(**facts, **license_in(checkpoint.path, checkpoint.config))


def public_name(ref: str) -> str:
    """Return a checkpoint's reference without the path of a user's folder."""
    return Path(ref).name if is_path(ref) else ref


def is_path(ref: str) -> bool:
    """Return whether a checkpoint reference is a path."""
    return ref.startswith(("/", ".", "~"))


def license_in(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the license from a folder's model card, or from config.json."""
    card = front_matter(folder / "README.md")
    license = card.get("license") or config.get("license")
    facts = {
        "license": license,
        "license_name": card.get("license_name"),
        "license_link": card.get("license_link"),
    }
    return {name: value for name, value in facts.items() if isinstance(value, str)}


def front_matter(card: Path) -> dict[str, Any]:
    """Return a card's YAML front matter, or an empty one.

    An unreadable card does not stop a promotion.
    """
    from prepare.untrusted_yaml import parse_yaml

    try:
        match = _FRONT.match(read_regular(card, MAX_CARD_BYTES))
        facts = parse_yaml(match[1], finite=False) if match else None
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
