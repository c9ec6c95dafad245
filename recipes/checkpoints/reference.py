"""References to checkpoints: folder, Hub id or demo."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from prepare.errors import UsageError
from prepare.escape import MAX_NAME_CHARACTERS, clip
from prepare.user_path import user_path

Kind = Literal["folder", "hub", "demo"]

DEMOS = ("smollm2-135m",)
WHERE = "the checkpoint's name"
# The Hub allows 96 characters for both parts; git 255 bytes for each part of a branch.
_HUB_ID = re.compile(
    r"([A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})(?:@([^\s@]{1,255}))?", re.ASCII
)


@dataclass(frozen=True)
class CheckpointReference:
    """A checkpoint reference, before any lookup."""

    kind: Kind
    name: str  # the path as written, the Hub's org/name, or the demo's name
    revision: str | None = None  # branch, tag or commit; None for the default branch

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

    Existing paths, and text that can only be a path, are folders.
    """
    if (demo := text.removeprefix("demo:")) != text and demo in DEMOS:
        return CheckpointReference("demo", demo)
    try:
        exists = bool(text) and Path(text).exists()
    except OSError:  # too long, or below an unreadable folder
        exists = False
    if demo == text and (exists or text.startswith(("./", "../", "/", "~"))):
        user_path(text, WHERE)
        return CheckpointReference("folder", text)
    if demo == text and (match := _HUB_ID.fullmatch(text)):
        return CheckpointReference("hub", match[1], match[2])
    demos = [f"demo:{demo_name}" for demo_name in DEMOS]
    known = list(demos)
    with suppress(OSError, ValueError):
        others = Path(text).parent.iterdir()
        known += [str(path) for path in others if path.is_dir() and path.name[:1] != "."]
    close = get_close_matches(text[:MAX_NAME_CHARACTERS], known, n=3, cutoff=0.5)
    raise UsageError(
        f"'{clip(text, MAX_NAME_CHARACTERS)}' is not a folder, a Hub id or a demo"
        + (f"; close to it: {', '.join(close)}" if close else ""),
        where=WHERE,
        hint="use an existing folder (./path/to/model), a Hub id (org/name or "
        f"org/name@revision), or a demo ({', '.join(demos)})",
    )
