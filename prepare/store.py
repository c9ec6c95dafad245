"""The store: finished stages by key, each written to a temporary directory and renamed.

Layout::

    STORE/stages/<stage>/<key>/               a finished stage: stage.json and its outputs
    STORE/stages/<stage>/<key>.<token>.partial/   in progress, or left by a killed run
    STORE/locks/<key>                         lock of the stage's or the log's writer
    STORE/lock                                shared by all users, exclusive for `prepare gc`
    STORE/runs/<run id>/                      run.json and the logs of one run

A directory with its final name is complete, because `rename` is the last step. Locks save work;
names keep results right. If a writer lost its lock, its successor has renamed its directory, so
the old writer finds nothing to rename. If two processes finish, the first result is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from prepare.digest import digest_json
from prepare.errors import StageLostError, StoreError, means_broken_disk, means_full_disk
from prepare.file_locks import is_locked, locked
from prepare.own_command import own_command
from prepare.private_files import (
    flush_folder,
    flush_to_disk,
    is_shared,
    make_private,
    private_umask,
    share_with_group,
)
from prepare.stage import StageRecord, StageReference
from prepare.untrusted import MAX_RECORD_BYTES, UntrustedFileError, parse_record, read_regular
from prepare.user_path import nearest_existing

RECORD = "stage.json"
REMOVED = ".removed"  # end of the name of a folder that is being removed
RUN_RECORD = "run.json"
ALIVE = "alive"
"""Lock of a run's main process."""
RESERVE = "reserve"
"""Next to it, while the run goes on: a file that makes room for the outcome on a full disk."""
PARTIAL = ".partial"
DEAD = ".dead"
DISCARDED = ".discarded"
LOCK = "lock"
LOCKS = "locks"
TOKEN_LETTERS = 12
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP)


class Store:
    """Directory of finished stages and runs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def is_in_use(self) -> bool:
        with self.explain_errors():
            return is_locked(self.root / LOCK)

    def stage_folder(self, stage: str, key: str) -> Path:
        """Return the directory of the stage's outputs."""
        return self.root / "stages" / stage / key

    def find(self, stage: str, key: str) -> StageRecord | None:
        path = self.stage_folder(stage, key) / RECORD
        try:
            with self.explain_errors():
                content = read_regular(path, MAX_RECORD_BYTES)
        except FileNotFoundError:
            return None
        try:
            record = parse_record(content, StageRecord)
            if (record.stage, record.key) != (stage, key):
                raise ValueError("it belongs to another stage")
        except ValueError as error:
            raise StoreError(
                "a stage's record is damaged",
                where=str(path),
                hint=f"delete the folder to have the stage run again: {path.parent}",
            ) from error
        return record

    def get(self, reference: StageReference) -> StageRecord:
        """Return the record of a stage that another one depends on; StoreError if it is gone."""
        record = self.find(reference.stage, reference.key)
        if record is None:
            raise StoreError(
                f"the stage '{reference.stage}' that another one depends on is gone",
                where=str(self.stage_folder(reference.stage, reference.key)),
                hint="run the whole command again; what is still there is reused",
            )
        return record

    def records(
        self, stage: str = "*", *, leave_out_damaged: bool = False
    ) -> Iterator[StageRecord]:
        for name, key in self._keys(stage):
            try:
                record = self.find(name, key)
            except StoreError:
                if leave_out_damaged:
                    continue
                raise
            if record is not None:
                yield record

    def _keys(self, stage: str) -> list[tuple[str, str]]:
        records = sorted((self.root / "stages").glob(f"{stage}/*/{RECORD}"))
        keys = [(path.parent.parent.name, path.parent.name) for path in records]
        return [key for key in keys if "." not in key[1]]  # no partial or discarded ones

    def find_current(self, stage: str, key: str) -> StageRecord | None:
        """Return a finished stage's record, unless an input was made again with another result.

        GPU quantization is not bit-stable, so answers of replaced weights are invalid. A missing
        input changes nothing.
        """
        record = self.find(stage, key)
        if record is None:
            return None
        for role, reference in record.inputs.items():
            source = self.find(reference.stage, reference.key)
            if source is not None and digest_json(source.result) != record.input_digests[role]:
                return None
        return record

    def discard(self, stage: str, key: str) -> None:
        with self.hold(key), self.explain_errors():
            _discard(self.stage_folder(stage, key))

    @contextmanager
    def open_for_writing(
        self,
        stage: str,
        key: str,
        resumed: Collection[str] = (),
        waits: Callable[[str], None] = lambda text: None,
    ) -> Iterator[Path | None]:
        """Acquire the stage's lock and yield a directory to write to.

        Yields None if another process finished the stage meanwhile. With a record, the directory
        gets its final name; otherwise it stays as `<key>.*.partial`. The next attempt keeps entries
        in `resumed`.

        StoreError: the store is full or not writable, or another process took over.
        """
        final = self.stage_folder(stage, key)
        with self.hold(key, waits):
            with self.explain_errors(), private_umask(self.root):
                final.parent.mkdir(parents=True, exist_ok=True)
                partial = _take_unfinished(final, resumed)
            # Check after renaming: the previous holder can no longer finish it.
            if self._is_done(stage, key):
                shutil.rmtree(partial, ignore_errors=True)
                yield None
                return
            with self.explain_errors():
                _discard(final)  # its record was removed
            try:
                yield partial
            except OSError as error:  # other errors may be the stage's own
                if not partial.exists():
                    raise self._lost(partial) from error
                if means_full_disk(error) or (means_broken_disk(error) and self._is_own(error)):
                    with self.explain_errors():
                        raise
                raise
            with self.explain_errors():
                has_record = (partial / RECORD).is_file()
                # Looked for after the record: another process may take the folder at any moment.
                if not partial.exists():
                    raise self._lost(partial)
                if has_record:
                    self._publish(partial, final)
                elif not resumed:
                    raise StoreError("a stage ended without a record", where=str(partial))

    def _is_own(self, error: OSError) -> bool:
        """Return whether the error names a path here, or none, as one of a write does not."""
        return error.filename is None or Path(error.filename).is_relative_to(self.root)

    def _is_done(self, stage: str, key: str) -> bool:
        return (self.stage_folder(stage, key) / RECORD).is_file()

    def _publish(self, partial: Path, final: Path) -> None:
        """Flush and rename; StoreError if another process took over."""
        try:
            if is_shared(self.root):
                share_with_group(partial)
            flush_to_disk(partial)
            partial.rename(final)
        except OSError as error:
            # NFS also reports FileNotFoundError for a repeated request that succeeded.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not self._is_done(final.parent.name, final.name):
                raise self._lost(partial) from error
        flush_folder(final.parent)

    def _lost(self, partial: Path) -> StoreError:
        return StageLostError(
            "another process took over a stage that this one was writing",
            where=str(partial),
            hint="this process was cut off from the store for a while; run the same command again",
        )

    def in_use(
        self, on_wait: Callable[[str], None] = lambda text: None
    ) -> AbstractContextManager[object]:
        """Hold the store as a user; wait for a collection."""
        self.make_root()
        root = self.root.resolve()
        with self.explain_errors():
            _enter(root, lambda _: on_wait("waiting for `prepare gc` on this store"))
        # No generator: Python may close a dropped one at any moment, within `_enter` too.
        held = ExitStack()
        held.callback(_leave, root)
        return held

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Hold the store alone, and remove what locks leave.

        StoreError: a process works on the store.
        """
        root = self.root.resolve()
        with ExitStack() as held:
            with self.explain_errors():
                is_alone = held.enter_context(locked(root / LOCK, wait=False))
            if not is_alone:
                raise self._in_use_error()
            with _stores_guard:
                _stores[root] = (ExitStack(), 1)
            try:
                yield
                shutil.rmtree(root / LOCKS, ignore_errors=True)  # no process holds one
            finally:
                with _stores_guard:
                    del _stores[root]

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise StoreError for what the system refuses, except for a missing or existing file."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            if means_full_disk(error):
                raise self._disk_full() from error
            if isinstance(error, UntrustedFileError) or error.errno in _NAME_ERRORS:
                raise StoreError(
                    f"a file in the store cannot be read: {error.strerror}",
                    where=str(error.filename or self.root),
                    hint="find out who created it, and remove it",
                ) from error
            hint = "use a writable folder with --store DIR"
            if isinstance(error, PermissionError):
                hint += (
                    f"; another user's store is shared with a group by `chgrp -R GROUP "
                    f"{self.root}`, `chmod -R g+rwX` and `chmod g+s` of its folders"
                )
            elif means_broken_disk(error):
                hint = (
                    "`dmesg` may say why its disk failed: mount it writable, or name another place "
                    "with --store DIR; then run the same command again"
                )
            raise StoreError(
                f"the store cannot be used: {error.strerror or error}",
                where=str(error.filename or self.root),
                hint=hint,
            ) from error

    @contextmanager
    def hold(
        self, key: str, on_wait: Callable[[str], None] = lambda text: None, *, wait: bool = True
    ) -> Iterator[bool]:
        """Hold a lock; yield whether it is held, as with `wait`."""
        with self.in_use(on_wait), ExitStack() as held:
            with self.explain_errors():
                is_held = held.enter_context(locked(self.root / LOCKS / key, on_wait, wait=wait))
            yield is_held

    def refuse_in_use(self) -> None:
        """Raise StoreError if the store is in use."""
        if self.is_in_use:
            raise self._in_use_error()

    def _in_use_error(self) -> StoreError:
        runs = self.root / "runs"
        alive = [path.parent.name for path in sorted(runs.glob(f"*/{ALIVE}")) if is_locked(path)]
        return StoreError(
            f"{f'run {alive[0]}' if alive else 'a process'} works on this store, and what it will "
            "use is not known yet",
            where=str(runs / alive[0] if alive else self.root),
            hint=f"wait until it is done: `{own_command('runs')}` shows the runs in progress",
        )

    def find_fault(self) -> StoreError | None:
        """Return why a run could not write here."""
        there = nearest_existing(self.root)
        # Such as /proc, which no permission protects.
        has_disk = shutil.disk_usage(there).total > 0
        if there.is_dir() and has_disk and os.access(there, os.W_OK, effective_ids=True):
            return None
        number = errno.EACCES if there.is_dir() else errno.ENOTDIR
        number = number if has_disk else errno.EROFS
        try:
            with self.explain_errors():
                raise OSError(number, os.strerror(number), str(there))
        except StoreError as error:
            return error

    def make_root(self) -> None:
        """Create the store's private directory."""
        with self.explain_errors():
            try:
                make_private(self.root)
            except (FileExistsError, FileNotFoundError) as error:  # the latter below /proc
                is_there = isinstance(error, FileExistsError)
                what = "it is a file, not a folder" if is_there else "it cannot be made"
                raise NotADirectoryError(errno.ENOTDIR, what, str(self.root)) from error
            except PermissionError as error:
                if not os.access(self.root, os.W_OK, effective_ids=True):
                    raise
                raise StoreError(
                    "the store belongs to another user and is readable by others",
                    where=str(self.root),
                    hint=f"have its owner run `chmod go= {self.root}`, or share it with a group "
                    f"that you are in: `chmod 2770 {self.root}`; or name a folder of your own with "
                    "--store DIR",
                ) from error

    def _disk_full(self) -> StoreError:
        return StoreError(
            "the disk is full",
            where=str(self.root),
            hint="free some space, or use another folder with --store DIR; "
            "finished stages stay and will be reused",
        )


class RunFolders:
    """Run directories of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "runs"

    def make(self, run_id: str, *, is_new: bool = True) -> Path:
        """Create and return a run's folder; StoreError if that fails.

        Unless `is_new`, it may exist.
        """
        folder = self._folder / run_id
        store = self._store
        store.make_root()
        with store.explain_errors(), private_umask(store.root):
            folder.mkdir(parents=True, exist_ok=not is_new)
        return folder

    def all(self) -> list[Path]:
        with self._store.explain_errors():
            if not self._folder.is_dir():
                return []
            folders = [path for path in self._folder.iterdir() if path.is_dir()]
        return sorted(folder for folder in folders if not folder.name.endswith(REMOVED))

    def half_removed(self) -> list[Path]:
        """Return what killed removals left."""
        return sorted(self._folder.glob(f"*{REMOVED}"))

    @contextmanager
    def hold_alive(self, folder: Path) -> Iterator[bool]:
        """Show that the main process lives; yield whether this is it."""
        with ExitStack() as held:
            with self._store.explain_errors():
                is_main = held.enter_context(locked(folder / ALIVE, wait=False))
            yield is_main


def is_alive(folder: Path) -> bool:
    """Return whether the run's main process lives, anywhere."""
    return is_locked(folder / ALIVE)


def _changed_at(folder: Path) -> float:
    """Return the folder's last change; 0 if it is gone."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0


def _take_unfinished(final: Path, resumed: Collection[str]) -> Path:
    """Return a new directory with these entries of earlier attempts, which are removed.

    Files are copied, since an old writer may have one open.
    """
    partial = final.with_name(f"{final.name}.{uuid.uuid4().hex[:TOKEN_LETTERS]}{PARTIAL}")
    names = (f"{final.name}{PARTIAL}", f"{final.name}.*{PARTIAL}", f"{final.name}.*{PARTIAL}{DEAD}")
    unfinished = {path for name in names for path in final.parent.glob(name)}
    # The newest first.
    earlier = sorted(unfinished, key=lambda path: (_changed_at(path), path.name), reverse=True)
    partial.mkdir()
    for place, left in enumerate(earlier):
        if left.name.endswith(PARTIAL):  # a writer that was cut off loses its directory
            earlier[place] = left.with_name(f"{left.name}{DEAD}")
            with contextlib.suppress(OSError):
                left.rename(earlier[place])
        for name in resumed:
            kept = earlier[place] / name
            if (partial / name).exists():
                continue
            # Without locks another process may take it; then that work is repeated.
            with contextlib.suppress(FileNotFoundError):
                if kept.is_dir():
                    kept.rename(partial / name)
                elif kept.is_file():
                    copied = partial / f".{name}"
                    shutil.copyfile(kept, copied)
                    copied.rename(partial / name)
    for left in (*earlier, *final.parent.glob(f"{final.name}.*{DISCARDED}")):
        shutil.rmtree(left, ignore_errors=True)
    return partial


def _discard(folder: Path) -> None:
    """Remove, after renaming: final names mean complete."""
    doomed = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:TOKEN_LETTERS]}{DISCARDED}")
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


# This process's stores: the lock, and how often it is held.
_stores: dict[Path, tuple[ExitStack, int]] = {}
_stores_guard = threading.Lock()


def _enter(root: Path, on_wait: Callable[[str], None]) -> None:
    with _stores_guard:
        stack, number = _stores.get(root, (ExitStack(), 0))
        if not number:
            stack.enter_context(locked(root / LOCK, on_wait, shared=True))
        _stores[root] = stack, number + 1


def _leave(root: Path) -> None:
    with _stores_guard:
        stack, number = _stores[root]
        if number > 1:
            _stores[root] = stack, number - 1
            return
        del _stores[root]
        stack.close()
