"""Records of runs in a store, and whether the runs are in progress."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from artifacts.run_record import RunReport
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.run_folders import RUN_RECORD, RunFolders, is_alive
from pipeline.core.store import Store
from pipeline.core.untrusted import MAX_RECORD_BYTES, MAX_RECORD_VALUES, parse_json, read_regular


def read_run(folder: Path) -> RunReport:
    """Return the record in a run's folder; raises StoreError if it is missing or damaged."""
    path = folder / RUN_RECORD
    try:
        content = read_regular(path, MAX_RECORD_BYTES)
        parse_json(content, finite=False, whole_text=False, values=MAX_RECORD_VALUES)
        report = RunReport.model_validate_json(content)
        return report if report.status != "running" else _as_it_is_now(report, folder)
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"a run's record cannot be read: {error}", where=str(path)) from error


def _as_it_is_now(report: RunReport, folder: Path) -> RunReport:
    if not is_alive(folder):
        return report.model_copy(update={"status": "killed"})
    passed = datetime.now(UTC) - datetime.fromisoformat(report.started)
    return report.model_copy(update={"seconds": max(report.seconds, passed.total_seconds())})


def find_run(store: Store, name: str, *, judged: bool = False) -> RunReport:
    """Return the run of an id, an unambiguous prefix or 'latest'; raises UsageError.

    With `judged`, 'latest' is the last run whose gates judged a variant, if there is one.
    """
    folders = RunFolders(store).all()
    if not folders:
        raise UsageError(
            "there is no run here yet",
            where=str(store.root / "runs"),
            hint="make one (prepare model demo:smollm2-135m), or name another store with --store",
        )
    if name == "latest" and judged:
        for folder in reversed(folders):
            found = read_run(folder)  # an unreadable one may be the last that was judged
            if any(variant.gates for variant in found.variants) or found.tuning:
                return found
    matching = folders[-1:] if name == "latest" else [f for f in folders if f.name.startswith(name)]
    if len(matching) != 1:
        known = ", ".join(folder.name for folder in folders[-5:])
        raise UsageError(
            f"{'more than one run starts' if matching else 'no run starts'} with '{name}'",
            where=str(store.root / "runs"),
            hint=f"the newest runs: {known}; or 'latest'",
        )
    return read_run(matching[0])
