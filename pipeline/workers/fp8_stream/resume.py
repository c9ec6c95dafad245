"""Which output files an earlier try has finished: those need not be made again.

A file gets its name only when it is whole. Whether it was made from the same weights by the same
recipe, the note next to it says, which is there as long as the work goes on.
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
    """Those of the plans whose files are still to make; what is of other work is removed."""
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
    """Remove the note: all is done."""
    (output / NOTE).unlink()
    flush_folder(output)


def fingerprint(plan: ShardPlan) -> dict[str, Any]:
    """What a file is made from, as far as size, time and header show."""
    status = plan.source.stat()
    return {
        "name": plan.name,
        "source": str(plan.source),
        "source_size": status.st_size,
        "source_time": status.st_mtime_ns,
        "header": hashlib.sha256(plan.header).hexdigest(),
    }


def is_finished(path: Path, plan: ShardPlan) -> bool:
    """Whether the file is there in its size and with its header."""
    if not path.is_file() or path.stat().st_size != plan.size:
        return False
    with path.open("rb") as file:
        return file.read(len(plan.header)) == plan.header


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # never begun, or cut off while the note was written
