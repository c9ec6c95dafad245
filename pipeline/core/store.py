"""The store: finished stages by key, each written beside its place and renamed into it.

Layout::

    STORE/stages/<stage>/<key>/           a finished stage: stage.json and its outputs
    STORE/stages/<stage>/<key>.*.partial/ one being written, or left by a killed run
    STORE/claims/<key>/                   who writes the stage, or did last: claims.py
    STORE/runs/<run id>/                  run.json and the logs of one `prepare model`

It is its owner's alone (0700), and so is what lies in it, unless the owner has shared it with a
group (private_files.py). A folder is whole if and only if it lies
under its final name: `rename` is the last step. Two runs on one store are safe: whoever comes
second to a stage waits for the first, then reuses. The folder may lie on NFS: nothing rests on
`flock`.

A process that was stopped or cut off for long, and was followed by another, must do no harm when it
comes back. Each writes under a name of its own, `<key>.<claim>.partial`; the follower renames that
folder before it does anything else. So the former one finds neither its folder nor anything to
rename into place, and of two who are done the first one's result counts.

A record that is there and cannot be read, a full disk or a store that is not writable is a
StoreError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from pipeline.core.digest import digest_json
from pipeline.core.errors import StoreError
from pipeline.core.fsync import flush_folder
from pipeline.core.key_value_store import FileKeyValueStore, KeyValueStore
from pipeline.core.leases import Lease, Leases
from pipeline.core.private_files import is_shared, make_private, private_umask, share_with_group
from pipeline.core.remote_store import RemoteStore, open_remote
from pipeline.core.stage_record import StageRecord
from pipeline.core.untrusted.file import UntrustedFileError, read_regular
from pipeline.core.untrusted.record import MAX_BYTES, parse_record

RECORD = "stage.json"
PARTIAL = ".partial"
COLLECTION = "collection"
"""The key of who removes what is not needed."""
POLL_INTERVAL_S = 1.0
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP)


class Store:
    """One folder of finished stages and runs, made on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._here: set[tuple[str, str]] = set()

    def stage_folder(self, stage: str, key: str) -> Path:
        """Where the outputs of that stage lie, or will lie.

        Of a store in an object store they are brought to this node now, unless they are here.
        """
        folder = self._folder(stage, key)
        if self.remote is not None and (stage, key) not in self._here:
            self._fetch(self.remote, stage, key, folder)
        return folder

    def fetch_named_stages(self, said: object) -> None:
        """Have the folders of finished stages here that texts name by their place in the store.

        Whoever wrote the texts may have had them there, and this node not yet.

        Args:
            said: plain data, such as a stage's runtime.
        """
        if self.remote is None:
            return
        stages = self.root / "stages"
        if isinstance(said, str):
            place = Path(said)
            if place.is_relative_to(stages) and len(parts := place.relative_to(stages).parts) > 1:
                self.stage_folder(*parts[:2])
        elif isinstance(said, Mapping):
            self.fetch_named_stages(list(said.values()))
        elif isinstance(said, Sequence):
            for each in said:
                self.fetch_named_stages(each)

    @cached_property
    def remote(self) -> RemoteStore | None:
        """The object store that the folder is a cache of, if it is one."""
        return open_remote(self.root)

    def key_value_store(self, name: str) -> KeyValueStore:
        """A place for small things that all who share the store see; they are on disk at once."""
        if self.remote is not None:
            return self.remote.objects.below(name)
        return FileKeyValueStore(self.root / name, flush=True)

    def unfinished_folder(self, stage: str, key: str) -> Path:
        """Where it writes, and a killed try has left what it wrote."""
        final = self._folder(stage, key)
        if self.remote is not None:
            self.remote.fetch_unfinished(final, _latest_attempt(final))
        return next(iter(_unfinished(final)), final.with_name(f"{key}{PARTIAL}"))

    @cached_property
    def leases(self) -> Leases:
        """Who has a stage or an answer book to itself, by key.

        Raises:
            UsageError: the variable that says how long a silent owner is waited for is wrong.
        """
        if self.remote is not None:
            return Leases(self.remote.objects.below("claims"))
        return Leases(FileKeyValueStore(self.root / "claims"))

    def find(self, stage: str, key: str) -> StageRecord | None:
        """The record of a finished stage; None when it has not been done."""
        if self.remote is not None:
            marker = self.remote.find(stage, key)
            return marker.record if marker is not None else None
        return self._find_here(stage, key)

    def _find_here(self, stage: str, key: str) -> StageRecord | None:
        path = self._folder(stage, key) / RECORD
        try:
            content = read_regular(path, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"a stage's record cannot be read: {error.strerror or error}",
                where=str(path),
                cure=f"have its owner share it: `chmod -R g+rwX {path.parent}`, or name a folder "
                "of your own with --store DIR",
            ) from error
        try:
            record = parse_record(content, StageRecord)
            if (record.stage, record.key) != (stage, key):
                raise ValueError("it is another stage's")
        except ValueError as error:
            raise StoreError(
                "a stage's record is damaged",
                where=str(path),
                cure=f"delete the folder to have the stage run again: {path.parent}",
            ) from error
        return record

    def records(
        self, stage: str = "*", *, leave_out_damaged: bool = False
    ) -> Iterator[StageRecord]:
        """Records of finished stages, sorted by stage and key.

        Args:
            leave_out_damaged: where a damaged record says no more than one that is not there.
        """
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
        if self.remote is not None:
            return self.remote.keys(stage)
        found = sorted((self.root / "stages").glob(f"{stage}/*/{RECORD}"))
        keys = [(path.parent.parent.name, path.parent.name) for path in found]
        return [(name, key) for name, key in keys if "." not in key]  # not written, or removed

    def find_current(self, stage: str, key: str) -> StageRecord | None:
        """The record of a finished stage, unless an input was made again with another result.

        A key names what goes into a stage, not what comes out, and quantizing on a GPU is not
        bit-stable: answers of weights that are gone say nothing of the new ones. Of an input that
        is not there nothing is known, so it changes nothing.
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
        """Remove a finished stage, so that it runs again; no error when it is gone already.

        Args:
            forget: it is not meant to run again, so nothing is kept of who made it.
        """
        folder = self._folder(stage, key)
        self._here.discard((stage, key))
        with self.hold(key, forget=forget) as claim, self.explain_errors():
            if self.remote is not None:
                if not claim.is_current():
                    raise claim.lost_error()
                self.remote.unpublish(stage, key)
            if not folder.exists():
                return
            # Renamed first: a folder under its final name is always whole.
            doomed = folder.with_name(f"{folder.name}.{_lease_name(claim)}.discarded")
            folder.rename(doomed)
            if not claim.is_current():
                # We were away: it may be another's, made since.
                with contextlib.suppress(OSError):
                    doomed.rename(folder)
                raise claim.lost_error()
            shutil.rmtree(doomed)

    def reopen(self, stage: str, key: str, resumed: Collection[str]) -> None:
        """Make a finished stage an unfinished one, which continues these files of its folder."""
        self.stage_folder(stage, key)
        folder = self._folder(stage, key)
        self._here.discard((stage, key))
        with self.hold(key) as claim, self.explain_errors(), _explain_loss(claim):
            if not folder.exists():  # another process has reopened it
                return
            if not claim.is_current():
                raise claim.lost_error()
            partial = folder.with_name(f"{key}.{_lease_name(claim)}{PARTIAL}")
            folder.rename(partial)
            flush_folder(folder.parent)
            if self.remote is not None:
                self.remote.upload_unfinished(partial, resumed)
                self.remote.unpublish(stage, key)

    @contextmanager
    def open_for_writing(
        self,
        stage: str,
        key: str,
        resumed: Collection[str] = (),
        waits: Callable[[str], None] = lambda text: None,
    ) -> Iterator[Path | None]:
        """Claim the stage and hand out an empty folder to write into.

        Yields None when another process finished the stage while we waited. When the block
        ends without an exception, and has put a record into the folder, the folder is flushed
        to disk and renamed to its final name; otherwise it is kept as `<key>.*.partial` so that
        its log can be read, and emptied by the next try, which finds only what `resumed` names
        in it: files and folders that the stage continues. Such a stage may end without a record,
        and is to be run again.

        Args:
            waits: is told for whom we wait.

        Raises:
            StoreError: the disk is full or the store is not writable, or we were not heard of for
                so long that another process has taken over.
        """
        final = self._folder(stage, key)
        with self.hold(key, waits) as claim, _explain_loss(claim):
            with self.explain_errors():
                self.wait_for_collection(waits)
                if self.remote is not None and resumed:
                    self.remote.fetch_unfinished(final, _latest_attempt(final))
                partial = _take_unfinished(final, claim)
            # Only now: who had it before us cannot finish it any more.
            if self._is_done(stage, key):
                shutil.rmtree(partial, ignore_errors=True)
                yield None
                return
            with self.explain_errors():
                if final.exists():  # someone discarded it, or removed its record
                    if not claim.is_current():  # or it was published just now
                        raise claim.lost_error()
                    shutil.rmtree(final)
                with private_umask(self.root):
                    final.parent.mkdir(parents=True, exist_ok=True)
                    _empty(partial, resumed)
                handed_out = partial.stat()
            try:
                yield partial
            except BaseException as error:
                with contextlib.suppress(StoreError, OSError):
                    self._leave_unfinished(partial, resumed)
                # Of what goes wrong in a stage, only this is surely the store's trouble.
                if isinstance(error, OSError) and _means_full_disk(error):
                    raise self._disk_full() from error
                raise
            with self.explain_errors():
                if not (partial / RECORD).is_file():
                    if resumed:
                        self._leave_unfinished(partial, resumed)
                        return
                    raise StoreError("a stage ended without a record", where=str(partial))
                if is_shared(self.root):
                    share_with_group(partial)
                flush_to_disk(partial)
                self._publish(partial, handed_out, final, claim)
                flush_folder(final.parent)

    def _leave_unfinished(self, partial: Path, resumed: Collection[str]) -> None:
        """Let a try on another node go on with what this one leaves."""
        if self.remote is not None:
            self.remote.upload_unfinished(partial, resumed)

    def _folder(self, stage: str, key: str) -> Path:
        return self.root / "stages" / stage / key

    def _is_done(self, stage: str, key: str) -> bool:
        if self.remote is not None:
            return self.remote.find(stage, key) is not None
        return (self._folder(stage, key) / RECORD).is_file()

    def _fetch(self, origin: RemoteStore, stage: str, key: str, folder: Path) -> None:
        marker = origin.find(stage, key)
        if marker is None:
            return
        with self.explain_errors():
            if folder.exists() and self._find_here(stage, key) != marker.record:
                stale = folder.with_name(f"{folder.name}.{os.getpid()}.discarded")
                folder.rename(stale)  # it was made again elsewhere
                shutil.rmtree(stale)
            origin.fetch(marker, folder)
        self._here.add((stage, key))

    def _publish(
        self, partial: Path, handed_out: os.stat_result, final: Path, claim: Lease
    ) -> None:
        """Give the folder its final name, if it is still the one that we were given.

        Raises:
            StoreError: another has taken over, and is not done.
        """
        stage, key = final.parent.name, final.name
        try:
            if os.path.samestat(partial.stat(), handed_out) and claim.is_current():
                if self.remote is not None:
                    record = StageRecord.model_validate_json((partial / RECORD).read_bytes())
                    if self.remote.publish(partial, record, claim.is_current):
                        self._here.add((stage, key))
                        partial.rename(final)
                        self.remote.remove_unfinished(final)
                        return
                else:
                    partial.rename(final)
                    return
        except OSError as error:
            # FileNotFoundError is NFS's answer, too, to a request that it got twice, and granted.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not self._is_done(stage, key):
            raise claim.lost_error()

    @contextmanager
    def collect(self, on_wait: Callable[[str], None] = lambda text: None) -> Iterator[Lease]:
        """Have all who would begin to use the store wait, so that something may be removed.

        Who is at that already is waited for. Where the claim is not ours any more, what we found
        may be in use again.
        """
        with self.hold(COLLECTION, on_wait, forget=True) as claim:
            yield claim

    def wait_for_collection(self, on_wait: Callable[[str], None] = lambda text: None) -> None:
        """Wait while somebody removes things; whoever is announced before it asks is heeded.

        Who was to remove things, and is not heard of, is to remove nothing when it comes back.
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
        """Turn a full disk or a missing permission into a StoreError with its cure."""
        try:
            yield
        except OSError as error:
            if _means_full_disk(error):
                raise self._disk_full() from error
            if isinstance(error, UntrustedFileError) or error.errno in _NAME_ERRORS:
                raise StoreError(
                    f"what lies in the store is not read: {error.strerror}",
                    where=str(error.filename or self.root),
                    cure="see who has put it there, and remove it",
                ) from error
            if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
                raise StoreError(
                    f"the store cannot be written: {error.strerror}",
                    where=str(error.filename or self.root),
                    cure="name a folder that you may write with --store DIR; one of another user "
                    f"is shared with a group by `chgrp -R GROUP {self.root}`, `chmod -R g+rwX` and "
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
        """Have a key to oneself among all who share the store: see Claims.hold."""
        self.make_root()
        with ExitStack() as held:
            with self.explain_errors():
                claim = held.enter_context(self.leases.hold(key, on_wait, forget=forget))
            yield claim

    def make_root(self) -> None:
        """Make the store's folder, which only its owner may read."""
        with self.explain_errors():
            try:
                make_private(self.root)
            except PermissionError as error:
                if not os.access(self.root, os.W_OK, effective_ids=True):
                    raise
                raise StoreError(
                    "the store is another user's, and others may look into it",
                    where=str(self.root),
                    cure=f"have its owner run `chmod go= {self.root}`, or share it with a group "
                    f"that you are in: `chmod 2770 {self.root}`; or name a folder of your own with "
                    "--store DIR",
                ) from error

    def _disk_full(self) -> StoreError:
        return StoreError(
            "the disk is full",
            where=str(self.root),
            cure="free some space, or name another place with --store DIR; "
            "finished stages are kept and will be reused",
        )


@contextmanager
def _explain_loss(claim: Lease) -> Iterator[None]:
    """Say of a file that is not there that another has our folder now, under another name."""
    try:
        yield
    except OSError as error:
        if not claim.is_current():
            raise claim.lost_error() from error
        raise


def _means_full_disk(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path`, flush it to disk and rename it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with private_umask(path.parent):
        opened = beside.open("w", encoding="utf-8")
    with opened as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _lease_name(claim: Lease) -> str:
    """Of one claim: no other's folder ever has the name."""
    return f"{claim.number:06d}-{claim.token[:8]}"


def _unfinished(final: Path) -> list[Path]:
    """What tries at that stage have left, the latest first."""
    names = (f"{final.name}{PARTIAL}", f"{final.name}.*{PARTIAL}")
    found = [path for name in names for path in final.parent.glob(name)]
    # A folder without a lease in its name belongs to a process that only looks at what is to do.
    return sorted(found, key=lambda path: (path.name.count("."), path.name), reverse=True)


def _latest_attempt(final: Path) -> str:
    """The name of what the last try at that stage has left here; "" where no claim names any."""
    return next((p.name for p in _unfinished(final) if p.name.count(".") > 1), "")


def _take_unfinished(final: Path, claim: Lease) -> Path:
    """Rename what the last try has left, if there is any, so that only we know its name.

    Raises:
        StoreError: another follows us, and what lies there may be its own.
    """
    taken = final.with_name(f"{final.name}.{_lease_name(claim)}{PARTIAL}")
    found = _unfinished(final)
    # Asked after looking: whatever was seen was there before anybody followed us.
    if not claim.is_current():
        raise claim.lost_error()
    for number, left in enumerate(found):
        if number == 0:
            with contextlib.suppress(FileNotFoundError):  # it was finished just now
                left.rename(taken)
        else:
            shutil.rmtree(left, ignore_errors=True)
    return taken


def _empty(folder: Path, but: Collection[str]) -> None:
    """Make the folder, or remove all that is in it but these entries."""
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():
        if entry.name in but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def flush_to_disk(folder: Path) -> None:
    """Wait until every file and folder below has reached the disk."""
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
