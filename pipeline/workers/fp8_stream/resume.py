"""Output files that an earlier try finished.

A file gets its name only when it is complete. A note next to it, kept during the work, states
whether it was made from the same weights by the same recipe.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.fsync import flush_folder
from pipeline.workers.fp8_stream.layout import ShardPlan
from pipeline.workers.fp8_stream.shard_file import UNFINISHED

NOTE = ".fp8-stream.json"


def take_up(
    output: Path, plans: list[ShardPlan], scheme: str, versions: dict[str, str]
) -> list[ShardPlan]:
    """Return the plans whose files are still to make; remove files of other work."""
    note = {"scheme": scheme, "versions": versions, "shards": [fingerprint(p) for p in plans]}
    path = output / NOTE
    finished: list[ShardPlan] = []
    if _read(path) == note:
        finished = [plan for plan in plans if is_finished(output / plan.name, plan)]
    done = {plan.name for plan in finished}
    for file in output.iterdir():
        if file.name.endswith(UNFINISHED) or (
            file.suffix == ".safetensors" and file.name not in done
        ):
            file.unlink()
    path.write_text(json.dumps(note))
    flush_folder(output)
    return [plan for plan in plans if plan.name not in done]


def close(output: Path) -> None:
    """Remove the note when all is done."""
    (output / NOTE).unlink()
    flush_folder(output)


def fingerprint(plan: ShardPlan) -> dict[str, Any]:
    """Return the identity of a file's source: its size, time and header."""
    status = plan.source.stat()
    return {
        "name": plan.name,
        "source": str(plan.source),
        "source_size": status.st_size,
        "source_time": status.st_mtime_ns,
        "header": hashlib.sha256(plan.header).hexdigest(),
    }


def is_finished(path: Path, plan: ShardPlan) -> bool:
    """Return whether the file exists with its size and header."""
    if not path.is_file() or path.stat().st_size != plan.size:
        return False
    with path.open("rb") as file:
        return file.read(len(plan.header)) == plan.header


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # never begun, or cut off while the note was written
