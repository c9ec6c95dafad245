"""Finds and removes what the store need not keep: unreferenced stages, runs and answers.

Kept is what a registry's alias or history references, what a run younger than some days used, and
all that these depend on. Everything younger than those days is kept too.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from artifacts.deploy.recheck_record import rechecks_of
from artifacts.mlflow_store import EMBEDDED
from artifacts.registry import MANIFEST_TAG, Registry, Version
from artifacts.release import JUDGE_TAG, QUANTIZE_TAG, REGISTRIES, RUN_TAG, VERSIONS, registrations
from artifacts.run_loader import read_run
from eval_gates.answer_log import book_of_part
from pipeline.core.errors import RegistryError, StoreError
from pipeline.core.events import Progress
from pipeline.core.run_folders import RunFolders
from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.core.store import RECORD, Store
from pipeline.stages.evaluate.run import book_key

Stage = tuple[str, str]
Doomed = tuple[str, Path]


@dataclass
class RetainedItems:
    """Items to keep: stages as (name, key), runs by id, folders of versions by name."""

    stages: set[Stage] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class GarbageItem:
    """One thing to remove."""

    kind: str  # stage, unfinished stage, run or answers
    path: Path
    size: int  # bytes that come free when all that was found with it goes too

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.size}


def find_garbage(
    store: Store, registries: Iterable[str], days: float, progress: Progress
) -> list[GarbageItem]:
    """Return everything that may be removed, the largest first; younger items stay.

    `registries` are asked in addition to those of the store's own promotions. Runs with unreadable
    records stay, with a note.

    Raises:
        RegistryError: a registry cannot be asked, so its references are unknown.
    """
    oldest = datetime.now(UTC) - timedelta(days=days)
    kept = RetainedItems()
    for uri in registries_of(store, registries):
        keep_named(store, Registry(uri), kept)
    keep_of_runs(store, oldest, kept, progress)
    records = keep_inputs(store, kept)
    found = [
        *stages_to_go(store, kept, oldest.timestamp()),
        *runs_to_go(store, kept, oldest.timestamp()),
        *answers_to_go(store, records, oldest.timestamp()),
        *versions_to_go(store, kept, oldest.timestamp()),
    ]
    sizes = freed_bytes([path for _, path in found])
    garbage = [
        GarbageItem(kind, path, size) for (kind, path), size in zip(found, sizes, strict=True)
    ]
    return sorted(garbage, key=lambda each: -each.size)


def remove(garbage: GarbageItem, store: Store) -> None:
    """Remove it, unless another process holds it now; raise StoreError if that fails."""
    path = garbage.path
    if garbage.kind == "stage":
        store.discard(path.parent.name, path.name)
        return
    with store.explain_errors():
        if garbage.kind in ("run", "version"):
            doomed = path.with_name(f".{path.name}.removed")
            path.rename(doomed)
            shutil.rmtree(doomed)
            return
        # An unfinished stage, or a part of an answer log, unless it is being written again.
        key = path.name.partition(".")[0]
        with store.hold(key, wait=False) as is_held:
            if not is_held:
                return
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def registries_of(store: Store, others: Iterable[str]) -> list[str]:
    """URIs of every registry that a promotion or recheck of this store used, and its own."""
    uris = dict.fromkeys(others)
    own = store.root.resolve() / "registry.db"
    if own.is_file():
        uris[f"{EMBEDDED}{own}"] = None
    promoted = [each.registry for each in registrations(store)]
    for uri in (*promoted, *list_rechecked(store)):
        # A file that is gone names nothing; making an empty one would not help.
        if not uri.startswith(EMBEDDED) or Path(uri.removeprefix(EMBEDDED)).is_file():
            uris[uri] = None
    return list(uris)


def list_rechecked(store: Store) -> Iterator[str]:
    """URIs of the registries, next to the store's own, whose versions were rechecked here."""
    for folder in RunFolders(store).all():
        try:
            run = read_run(folder)
        except StoreError:  # its run stays, and is reported
            continue
        if run.kind == "recheck" and run.options.registry:
            yield run.options.registry


def keep_named(store: Store, registry: Registry, kept: RetainedItems) -> None:
    """Keep what any alias or history of the registry references.

    Raises:
        RegistryError: a model that this store promoted is not visible there.
    """
    promoted = {
        each.name
        for each in registrations(store)
        if each.registry == registry.uri and each.registered
    }
    for name in sorted({*registry.names(), *promoted}):
        model = registry.model(name)
        if model is None:
            raise RegistryError(
                f"'{name}' was promoted there, and is not shown to us",
                where=registry.uri,
                hint="log in as a user who may read it; if it was deleted on purpose, remove its "
                f"lines from {store.root / REGISTRIES}",
            )
        numbers = set(model.aliases.values())
        for _, move in model.notes:
            numbers |= {move.version, *([move.replaced] if move.replaced else [])}
            kept.runs.add(move.run)
        for version in model.versions:
            if version.version in numbers:
                kept.stages |= set(stages_of(version))
                kept.versions.add(version.tags.get(MANIFEST_TAG, ""))
                kept.runs.add(version.tags.get(RUN_TAG, ""))
                kept.runs |= {recheck.run for recheck in rechecks_of(version)}


def stages_of(version: Version) -> Iterator[Stage]:
    """Yield the stages of a registered version: its weights' and its verdict's."""
    if JUDGE_TAG in version.tags:
        yield "judge", version.tags[JUDGE_TAG]
    if QUANTIZE_TAG in version.tags:
        for stage in ("quantize", "adopt"):
            yield stage, version.tags[QUANTIZE_TAG]


def keep_of_runs(store: Store, oldest: datetime, kept: RetainedItems, progress: Progress) -> None:
    """Keep young runs, referenced runs, and what all of them used."""
    for folder in RunFolders(store).all():
        try:
            report = read_run(folder)
        except StoreError as error:
            progress.note(f"kept, since it cannot be read: {error}")
            kept.runs.add(folder.name)
            continue
        if folder.name in kept.runs or datetime.fromisoformat(report.started) >= oldest:
            kept.runs.add(folder.name)
            kept.stages |= {(s.stage, s.key) for s in report.stages if s.key}


def keep_inputs(store: Store, kept: RetainedItems) -> list[StageRecord]:
    """Keep also what the kept stages depend on; return all kept records."""
    pending, seen, records = list(kept.stages), set(kept.stages), []
    while pending:
        record = store.find(*pending.pop())
        if record is None:
            continue
        records.append(record)
        for reference in record.inputs.values():
            stage = (reference.stage, reference.key)
            if stage not in seen:
                seen.add(stage)
                pending.append(stage)
    kept.stages = seen
    return records


def stages_to_go(store: Store, kept: RetainedItems, oldest: float) -> Iterator[Doomed]:
    """Yield unreferenced finished stages, and old unfinished ones."""
    for folder in sorted((store.root / "stages").glob("*/*")):
        stage, name = folder.parent.name, folder.name
        finished = (folder / RECORD).is_file() and "." not in name
        written = (folder / RECORD if finished else folder).stat().st_mtime
        if (finished and (stage, name) in kept.stages) or written >= oldest:
            continue
        yield "stage" if finished else "unfinished stage", folder


def runs_to_go(store: Store, kept: RetainedItems, oldest: float) -> Iterator[Doomed]:
    """Yield records and logs of unreferenced runs."""
    for folder in RunFolders(store).all():
        if folder.name not in kept.runs and folder.stat().st_mtime < oldest:
            yield "run", folder


def versions_to_go(store: Store, kept: RetainedItems, oldest: float) -> Iterator[Doomed]:
    """Yield folders of versions that no alias or history names, and what kills left of them."""
    for folder in sorted((store.root / VERSIONS).glob("*")):
        if folder.name not in kept.versions and folder.stat().st_mtime < oldest:
            yield "version", folder


def answers_to_go(store: Store, records: Iterable[StageRecord], oldest: float) -> Iterator[Doomed]:
    """Yield answer logs that no kept round used."""
    used = {book_of(record, store) for record in records if record.stage == "evaluate"}
    for file in sorted((store.root / "answers").glob("*.jsonl")):
        if book_of_part(file) not in used and file.stat().st_mtime < oldest:
            yield "answers", file


def book_of(record: StageRecord, store: Store) -> str | None:
    """Return the key of a round's answer log; None if an input is missing."""
    spec = StageSpec(
        stage=record.stage,
        variant=record.variant,
        key=record.key,
        parameters=record.parameters,
        inputs={role: StageReference(**r.model_dump()) for role, r in record.inputs.items()},
        runtime={},
        store=str(store.root),
    )
    try:
        return book_key(spec, store)
    except StoreError:
        return None


def freed_bytes(paths: Sequence[Path]) -> list[int]:
    """Return the bytes that removing all of these folders and files frees, by path.

    A file with several names (versions link the weights of `quantize`) is freed only
    with its last name; it counts for the first path that has one.
    """
    names: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], tuple[int, os.stat_result]] = {}
    for number, path in enumerate(paths):
        for file in path.rglob("*") if path.is_dir() else [path]:
            found = file.lstat()
            if stat.S_ISDIR(found.st_mode):
                continue
            names[found.st_dev, found.st_ino] += 1
            first.setdefault((found.st_dev, found.st_ino), (number, found))
    sizes = [0] * len(paths)
    for each, (number, found) in first.items():
        if names[each] == found.st_nlink:
            sizes[number] += found.st_size
    return sizes
