"""Finds and removes unreferenced stages, runs and answers.

Registries and young runs reference. Everything young stays, too.
"""

from __future__ import annotations

import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from artifacts.deploy.recheck_record import rechecks_of
from artifacts.mlflow_store import EMBEDDED
from artifacts.registrations import REGISTRIES, registrations
from artifacts.registry import JUDGE_TAG, MANIFEST_TAG, RUN_TAG, WEIGHTS_STAGE_TAG, Registry
from artifacts.run_record import RunReport, read_run
from artifacts.version_folder import VERSIONS
from eval_gates.answer_log import answer_log_of
from pipeline.stages.evaluate import answer_log_key
from pipeline.stages.verdict import JUDGE
from prepare.errors import RegistryError, StoreError
from prepare.events import Progress
from prepare.stage import StageRecord, StageReference, StageSpec
from prepare.store import RECORD, REMOVED, RESERVE, RUN_RECORD, RunFolders, Store, is_alive

TEMPORARY = "temporary file"


@dataclass(frozen=True)
class GarbageItem:
    """One thing to remove."""

    kind: str
    path: Path
    size: int = 0  # freed if all that was found with it goes too

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.size}


def find_garbage(
    store: Store, registries: Iterable[str], days: float, progress: Progress
) -> list[GarbageItem]:
    """Return everything that may be removed, the largest first.

    `registries` add to the promotions' ones; all must answer. Runs with unreadable records stay.
    """
    oldest = datetime.now(UTC) - timedelta(days=days)
    kept = _Kept(store)
    runs = dict(kept.read_runs(progress))
    for uri in _registries_of(store, registries, runs.values()):
        kept.keep_named(Registry(uri))
    for name, run in runs.items():
        if name in kept.runs or datetime.fromisoformat(run.started) >= oldest:
            kept.runs.add(name)
            kept.stages |= {(s.stage, s.key) for s in run.stages if s.key}
    kept.keep_inputs()
    old = [item for item in kept.others() if _written(item.path) < oldest.timestamp()]
    sizes = freed_bytes([item.path for item in old])
    items = [GarbageItem(item.kind, item.path, size) for item, size in zip(old, sizes, strict=True)]
    return sorted(items, key=lambda item: -item.size)


def remove(garbage: GarbageItem, store: Store) -> None:
    """Remove it unless another process holds it."""
    path = garbage.path
    if garbage.kind == "stage":
        store.discard(path.parent.name, path.name)
        return
    with store.explain_errors():
        if garbage.kind in ("run", "version"):
            doomed = path.with_name(f".{uuid4().hex}{REMOVED}")
            path.rename(doomed)
            shutil.rmtree(doomed)
            return
        if garbage.kind == TEMPORARY:
            path.unlink(missing_ok=True)
            return
        # An unfinished stage or part of an answer log may be in use again.
        with store.hold(path.name.partition(".")[0], wait=False) as is_held:
            if is_held and path.is_dir():
                shutil.rmtree(path)
            elif is_held:
                path.unlink(missing_ok=True)


def _registries_of(store: Store, others: Iterable[str], runs: Iterable[RunReport]) -> list[str]:
    uris = dict.fromkeys(others)
    own = store.root.resolve() / "registry.db"
    used = [
        f"{EMBEDDED}{own}",
        *(registration.registry for registration in registrations(store)),
        *(run.registry for run in runs if run.kind == "recheck" and run.registry),
    ]
    for uri in used:
        # A missing file references nothing.
        if not uri.startswith(EMBEDDED) or Path(uri.removeprefix(EMBEDDED)).is_file():
            uris[uri] = None
    return list(uris)


class _Kept:
    """Stages by name and key, runs by id, versions' folders by name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stages: set[tuple[str, str]] = set()
        self.runs: set[str] = set()
        self._versions: set[str] = set()
        self._answers: set[str | None] = set()

    def read_runs(self, progress: Progress) -> Iterator[tuple[str, RunReport]]:
        for folder in RunFolders(self._store).all():
            try:
                yield folder.name, read_run(folder)
            except StoreError as error:
                progress.note(f"kept, since it cannot be read: {error}")
                self.runs.add(folder.name)

    def keep_named(self, registry: Registry) -> None:
        """Keep what the registry references."""
        noted = [
            registration for registration in registrations(self._store) if registration.registered
        ]
        promoted = {
            registration.name for registration in noted if registration.registry == registry.uri
        }
        for name in sorted({*registry.names(), *promoted}):
            model = registry.model(name)
            if model is None:
                raise RegistryError(
                    f"'{name}' was promoted there, and is not shown to us",
                    where=registry.uri,
                    hint="log in as a user who may read it; if it was deleted on purpose, remove "
                    f"its lines from {self._store.root / REGISTRIES}",
                )
            self.runs |= {move.run for _, move in model.notes}
            numbers = {
                *model.aliases.values(),
                *(number for _, move in model.notes for number in (move.version, move.replaced)),
            }
            for version in model.versions:
                if version.version in numbers:
                    made = version.tags.get(WEIGHTS_STAGE_TAG, "")
                    tags = version.tags
                    self.stages |= {("quantize", made), ("adopt", made)}
                    self.stages.add((JUDGE.name, tags.get(JUDGE_TAG, "")))
                    self._versions.add(tags.get(MANIFEST_TAG, ""))
                    self.runs.add(tags.get(RUN_TAG, ""))
                    for recheck in rechecks_of(version):
                        self.runs.update(recheck.runs)

    def keep_inputs(self) -> None:
        """Keep the kept stages' inputs and answer logs."""
        pending = [stage for stage in self.stages if stage[1]]
        while pending:
            record = self._store.find(*pending.pop())
            if record is None:
                continue
            if record.stage == "evaluate":
                self._answers.add(_answer_log_of(record, self._store))
            inputs = {(stage.stage, stage.key) for stage in record.inputs.values()} - self.stages
            self.stages |= inputs
            pending += inputs

    def others(self) -> Iterator[GarbageItem]:
        """Yield all that is not kept."""
        root = self._store.root
        for folder in sorted((root / "stages").glob("*/*")):
            finished = (folder / RECORD).is_file() and "." not in folder.name
            if not finished:
                yield GarbageItem("unfinished stage", folder)
            elif (folder.parent.name, folder.name) not in self.stages:
                yield GarbageItem("stage", folder)
        folders = RunFolders(self._store)
        for folder in (*folders.all(), *folders.half_removed()):
            if folder.name not in self.runs:
                yield GarbageItem("run", folder)
            elif not is_alive(folder):  # a killed process left these in a run that is kept
                for file in (*folder.glob(RESERVE), *sorted(folder.glob(f".{RUN_RECORD}.*"))):
                    yield GarbageItem(TEMPORARY, file)
        for file in sorted((root / "answers").glob("*.jsonl")):
            if answer_log_of(file) not in self._answers:
                yield GarbageItem("answers", file)
        for ledger in ("attempts", "starts"):
            for file in sorted((root / ledger).glob("*/.*")):  # of a killed writer
                yield GarbageItem(TEMPORARY, file)
        for folder in sorted((root / VERSIONS).glob("*")):
            if folder.name not in self._versions:
                yield GarbageItem("version", folder)


def _written(path: Path) -> float:
    record = path / RECORD
    return (record if record.is_file() else path).stat().st_mtime


def _answer_log_of(record: StageRecord, store: Store) -> str | None:
    """Return the key of a round's answer log, if known."""
    spec = StageSpec(
        **record.model_dump(include={"stage", "variant", "key", "parameters"}),
        inputs={role: StageReference(**r.model_dump()) for role, r in record.inputs.items()},
        runtime={},
        store=str(store.root),
    )
    try:
        return answer_log_key(spec, store)
    except StoreError:
        return None


def freed_bytes(paths: Sequence[Path]) -> list[int]:
    """Return the bytes that removing all these paths frees, by path.

    A file with several names counts once, for the first path, if all are removed.
    """
    names: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], tuple[int, int, int]] = {}
    for number, path in enumerate(paths):
        for file in path.rglob("*") if path.is_dir() else [path]:
            facts = file.lstat()
            if not stat.S_ISDIR(facts.st_mode):
                names[facts.st_dev, facts.st_ino] += 1
                first.setdefault(
                    (facts.st_dev, facts.st_ino), (number, facts.st_nlink, facts.st_size)
                )
    sizes = [0] * len(paths)
    for inode, (number, links, size) in first.items():
        sizes[number] += size if names[inode] == links else 0
    return sizes
