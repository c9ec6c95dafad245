"""References to checkpoints: a folder, a Hub id with an optional revision, or a demo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pipeline.core.errors import UsageError
from pipeline.core.escape import MAX_NAME_CHARACTERS, clip
from pipeline.core.user_path import user_path

Kind = Literal["folder", "hub", "demo"]

DEMOS = ("smollm2-135m",)

WHERE = "the checkpoint's name"
_DEMO_NAMES = [f"demo:{demo}" for demo in DEMOS]
# The Hub allows 96 characters for both parts; git 255 bytes for each part of a branch.
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[^\s@]{1,255}")


@dataclass(frozen=True)
class CheckpointReference:
    """A checkpoint reference, before any lookup."""

    kind: Kind  # kind of reference
    name: str  # the path as written, the Hub's org/name, or the demo's name
    revision: str | None = None  # branch, tag or commit on the Hub; None for the default branch

    @property
    def text(self) -> str:
        if self.kind == "demo":
            return f"demo:{self.name}"
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def short_name(self) -> str:
        if self.kind == "folder":
            return Path(self.name).expanduser().resolve().name or "model"
        return self.name.rpartition("/")[2]


def parse_reference(text: str) -> CheckpointReference:
    """Return the reference that the text denotes.

    Existing paths, and text that can only be a path, are folders; otherwise it is a Hub id.

    Raises:
        UsageError: it is none of the three kinds; the message suggests close matches.
    """
    if text.startswith("demo:"):
        name = text.removeprefix("demo:")
        if name not in DEMOS:
            raise _unknown_error(text)
        return CheckpointReference("demo", name)
    if text.startswith(("./", "../", "/", "~")) or _exists(text):
        user_path(text, WHERE)
        return CheckpointReference("folder", text)
    name, at, revision = text.partition("@")
    if _HUB_ID.fullmatch(name) and (not at or _REVISION.fullmatch(revision)):
        return CheckpointReference("hub", name, revision or None)
    raise _unknown_error(text)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except OSError:  # too long, or below an unreadable folder
        return False


def _unknown_error(text: str) -> UsageError:
    known = [*_DEMO_NAMES, *_siblings(text)] if len(text) <= MAX_NAME_CHARACTERS else []
    close = get_close_matches(text, known, n=3, cutoff=0.5)
    return UsageError(
        f"'{clip(text, MAX_NAME_CHARACTERS)}' is not a folder, a Hub id or a demo"
        + (f"; close to it: {', '.join(close)}" if close else ""),
        where=WHERE,
        hint="use an existing folder (./path/to/model), a Hub id (org/name or "
        f"org/name@revision), or a demo ({', '.join(_DEMO_NAMES)})",
    )


def _siblings(text: str) -> list[str]:
    try:
        return [str(path) for path in Path(text).parent.iterdir()]
    except (OSError, ValueError):  # no such folder
        return []
