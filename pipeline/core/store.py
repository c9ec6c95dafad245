"""The store: finished stages by key, each written to a temporary directory and renamed.

Layout::

    STORE/stages/<stage>/<key>/           a finished stage: stage.json and its outputs
    STORE/stages/<stage>/<key>.*.partial/ in progress, or left by a killed run
    STORE/leases/<key>/                   lease of the stage's writer: leases.py
    STORE/runs/<run id>/                  run.json and the logs of one run

The store is private to its owner (0700) unless the owner shared it with a group (private_files.py).
A directory with its final name is complete, because `rename` is the last step. Two runs can share a
store: the second waits for a stage of the first, then reuses it. The directory may be on NFS;
nothing depends on `flock`.

A process that was suspended and lost its lease must do no harm when it resumes. Each process writes
to `<key>.<lease>.partial`; its successor renames that directory first. The suspended process then
finds no directory to rename. If two processes finish, the first result is used.

An unreadable record, a full disk or a read-only store raises StoreError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from pipeline.core.digest import digest_json
from pipeline.core.errors import StoreError
from pipeline.core.fsync import flush_folder
from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.leases import Lease, Leases
from pipeline.core.private_files import is_shared, make_private, private_umask, share_with_group
from pipeline.core.stage_record import StageRecord
from pipeline.core.untrusted.file import UntrustedFileError, read_regular
from pipeline.core.untrusted.record import MAX_BYTES, parse_record

RECORD = "stage.json"
PARTIAL = ".partial"
COLLECTION = "collection"
"""Lease key of garbage collection."""
POLL_INTERVAL_S = 1.0
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP)


class Store:
    """Directory of finished stages and runs, created on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage_folder(self, stage: str, key: str) -> Path:
        """Return the directory of the stage's outputs."""
        return self.root / "stages" / stage / key

    def key_value_store(self, name: str) -> FileKeyValueStore:
        return FileKeyValueStore(self.root / name, flush=True)

    def unfinished_folder(self, stage: str, key: str) -> Path:
        final = self.stage_folder(stage, key)
        return next(iter(_unfinished(final)), final.with_name(f"{key}{PARTIAL}"))

    @cached_property
    def leases(self) -> Leases:
        """Leases on stages and answer logs, by key.

        Raises:
            UsageError: the variable for the lease duration is invalid.
        """
        return Leases(FileKeyValueStore(self.root / "leases"))

    def find(self, stage: str, key: str) -> StageRecord | None:
        path = self.stage_folder(stage, key) / RECORD
        try:
            content = read_regular(path, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"a stage's record cannot be read: {error.strerror or error}",
                where=str(path),
                hint=f"have its owner share it: `chmod -R g+rwX {path.parent}`, or name a folder "
                "of your own with --store DIR",
            ) from error
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
        found = sorted((self.root / "stages").glob(f"{stage}/*/{RECORD}"))
        keys = [(path.parent.parent.name, path.parent.name) for path in found]
        return [
            (name, key) for name, key in keys if "." not in key
        ]  # excludes partial and discarded ones

    def find_current(self, stage: str, key: str) -> StageRecord | None:
        """Return the record of a finished stage unless an input was recomputed with another result.

        A key covers a stage's inputs, not its output, and GPU quantization is not bit-stable.
        Answers of replaced weights do not apply to new ones. A missing input changes nothing.
        """
        record = self.find(stage, key)
        if record is None:
            return None
        for role, reference in record.inputs.items():
            source = self.find(reference.stage, reference.key)
            if source is not None and digest_json(source.result) != record.input_digests[role]:
                return None
        return record

    def discard(self, stage: str, key: str, *, forget: bool = False) -> None:
        """Remove a finished stage, so that it runs again; ignore a missing one.

        Args:
            forget: the stage will not run again, so remove its lease as well.
        """
        folder = self.stage_folder(stage, key)
        with self.hold(key, forget=forget) as lease, self.explain_errors():
            if not folder.exists():
                return
            # Rename first: a directory with its final name is always complete.
            doomed = folder.with_name(f"{folder.name}.{_lease_name(lease)}.discarded")
            folder.rename(doomed)
            if not lease.is_current():
                # Our lease expired: another process may have created it.
                with contextlib.suppress(OSError):
                    doomed.rename(folder)
                raise lease.lost_error()
            shutil.rmtree(doomed)

    def reopen(self, stage: str, key: str) -> None:
        """Make a finished stage unfinished, so that it continues files of its directory."""
        folder = self.stage_folder(stage, key)
        with self.hold(key) as lease, self.explain_errors(), _explain_loss(lease):
            if not folder.exists():  # another process has reopened it
                return
            if not lease.is_current():
                raise lease.lost_error()
            partial = folder.with_name(f"{key}.{_lease_name(lease)}{PARTIAL}")
            folder.rename(partial)
            flush_folder(folder.parent)

    @contextmanager
    def open_for_writing(
        self,
        stage: str,
        key: str,
        resumed: Collection[str] = (),
        waits: Callable[[str], None] = lambda text: None,
    ) -> Iterator[Path | None]:
        """Acquire the stage's lease and yield a directory to write to.

        Yields None if another process finished the stage during the wait. If the block ends without
        an exception and wrote a record, the directory is flushed and renamed to its final name.
        Otherwise it stays as `<key>.*.partial` for its log. The next attempt keeps only the entries
        in `resumed`, which the stage continues. A stage with `resumed` may end without a record, to
        run again later.

        Raises:
            StoreError: the disk is full, the store is not writable, or the lease was lost.
        """
        final = self.stage_folder(stage, key)
        with self.hold(key, waits) as lease, _explain_loss(lease):
            with self.explain_errors():
                self.wait_for_collection(waits)
                partial = _take_unfinished(final, lease)
            # Check after renaming: the previous holder can no longer finish it.
            if self._is_done(stage, key):
                shutil.rmtree(partial, ignore_errors=True)
                yield None
                return
            with self.explain_errors():
                if final.exists():  # discarded, or its record removed
                    if not lease.is_current():  # published in the meantime
                        raise lease.lost_error()
                    shutil.rmtree(final)
                with private_umask(self.root):
                    final.parent.mkdir(parents=True, exist_ok=True)
                    _empty(partial, resumed)
                handed_out = partial.stat()
            try:
                yield partial
            except OSError as error:  # other errors may be the stage's own
                if _means_full_disk(error):
                    raise self._disk_full() from error
                raise
            with self.explain_errors():
                if not (partial / RECORD).is_file():
                    if resumed:
                        return
                    raise StoreError("a stage ended without a record", where=str(partial))
                if is_shared(self.root):
                    share_with_group(partial)
                flush_to_disk(partial)
                self._publish(partial, handed_out, final, lease)
                flush_folder(final.parent)

    def _is_done(self, stage: str, key: str) -> bool:
        return (self.stage_folder(stage, key) / RECORD).is_file()

    def _publish(
        self, partial: Path, handed_out: os.stat_result, final: Path, lease: Lease
    ) -> None:
        """Rename the directory to its final name, if it is still the one that was handed out.

        Raises:
            StoreError: another process took over and has not finished.
        """
        stage, key = final.parent.name, final.name
        try:
            if os.path.samestat(partial.stat(), handed_out) and lease.is_current():
                partial.rename(final)
                return
        except OSError as error:
            # NFS also reports FileNotFoundError for a repeated request that succeeded.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not self._is_done(stage, key):
            raise lease.lost_error()

    @contextmanager
    def collect(self, on_wait: Callable[[str], None] = lambda text: None) -> Iterator[Lease]:
        """Block new users of the store during garbage collection; wait for another collection.

        If the lease is lost, objects that were unused may be in use again.
        """
        with self.hold(COLLECTION, on_wait, forget=True) as lease:
            yield lease

    def wait_for_collection(self, on_wait: Callable[[str], None] = lambda text: None) -> None:
        """Wait until no garbage collection is in progress.

        Announce the run first: a collection that starts later will see it. The lease of a silent
        collection is revoked, so that it deletes nothing when it resumes.
        """
        told = False
        while self.leases.is_held(COLLECTION):
            if not told:
                on_wait("waiting for `prepare gc` on this store")
            told = True
            time.sleep(POLL_INTERVAL_S)
        self.leases.revoke_silent(COLLECTION)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if _means_full_disk(error):
                raise self._disk_full() from error
            if isinstance(error, UntrustedFileError) or error.errno in _NAME_ERRORS:
                raise StoreError(
                    f"a file in the store cannot be read: {error.strerror}",
                    where=str(error.filename or self.root),
                    hint="find out who created it, and remove it",
                ) from error
            if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
                raise StoreError(
                    f"the store cannot be written: {error.strerror}",
                    where=str(error.filename or self.root),
                    hint="use a writable folder with --store DIR; another user's store is "
                    f"shared with a group by `chgrp -R GROUP {self.root}`, `chmod -R g+rwX` and "
                    "`chmod g+s` of its folders",
                ) from error
            raise

    @contextmanager
    def hold(
        self,
        key: str,
        on_wait: Callable[[str], None] = lambda text: None,
        *,
        forget: bool = False,
    ) -> Iterator[Lease]:
        self.make_root()
        with ExitStack() as held:
            with self.explain_errors():
                lease = held.enter_context(self.leases.hold(key, on_wait, forget=forget))
            yield lease

    def make_root(self) -> None:
        """Create the store's directory, readable by its owner only."""
        with self.explain_errors():
            try:
                make_private(self.root)
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


@contextmanager
def _explain_loss(lease: Lease) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not lease.is_current():
            raise lease.lost_error() from error
        raise


def _means_full_disk(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, text: str) -> None:
    """Write a temporary file, flush it to disk and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with private_umask(path.parent):
        opened = temporary.open("w", encoding="utf-8")
    with opened as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _lease_name(lease: Lease) -> str:
    return f"{lease.number:06d}-{lease.token[:8]}"


def _unfinished(final: Path) -> list[Path]:
    names = (f"{final.name}{PARTIAL}", f"{final.name}.*{PARTIAL}")
    found = [path for name in names for path in final.parent.glob(name)]
    # A name without a lease belongs to a process that only inspects the stage.
    return sorted(found, key=lambda path: (path.name.count("."), path.name), reverse=True)


def _take_unfinished(final: Path, lease: Lease) -> Path:
    """Rename the last attempt's directory, if any, so that only this process knows its name.

    Raises:
        StoreError: the lease was lost, so the directory may belong to the new holder.
    """
    taken = final.with_name(f"{final.name}.{_lease_name(lease)}{PARTIAL}")
    found = _unfinished(final)
    # Check after listing: everything listed existed before any takeover.
    if not lease.is_current():
        raise lease.lost_error()
    for number, left in enumerate(found):
        if number == 0:
            with contextlib.suppress(FileNotFoundError):  # finished in the meantime
                left.rename(taken)
        else:
            shutil.rmtree(left, ignore_errors=True)
    return taken


def _empty(folder: Path, but: Collection[str]) -> None:
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():
        if entry.name in but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def flush_to_disk(folder: Path) -> None:
    """Flush every file and directory below to disk."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        elif path.is_dir():
            flush_folder(path)
    flush_folder(folder)
