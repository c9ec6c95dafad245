"""Leases: exclusive ownership of a key among processes that share a directory or an object store.

`flock` does not work on every shared file system, and an object store has no locks. A lease is
therefore a small file that only one process can create, `<key>/<generation>`; the highest
generation is valid. A process that finds the lease released, or its holder dead, creates the next
generation; if two processes try, one fails. A holder on the same node is dead when its process is
gone, and the lease is taken over immediately. A holder on another node rewrites a heartbeat
counter; it is dead after LEASE_SECONDS without a change, by the waiting process's monotonic clock.
The nodes' clocks need not agree.

A holder that was suspended or disconnected may resume after a takeover. It detects the loss by its
own heartbeat or by `Lease.is_current`. Users of a lease must ensure that its writes before then do
no harm (`store.py`, `eval_gates/answer_log.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field, ValidationError

from pipeline.core.errors import StoreError, UsageError
from pipeline.core.key_value_store import KeyValueStore
from pipeline.core.process_identity import node_identity, start_ticks
from pipeline.core.record import Record

VARIABLE = "PREPARE_LEASE_SECONDS"
LEASE_SECONDS = 60.0
MIN_SECONDS = 2.0
# A heartbeat may be this many intervals late, on a busy node or slow file server.
HEARTBEATS_PER_LEASE = 12
MIN_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
MAX_DIGITS = 12
_HEARTBEAT = ".beat"
_RELEASED = b"released"


class LeaseHolder(Record):
    """Process that created a lease."""

    token: str = Field(description="unique to this lease")
    node: str = Field(description="identity of the node, see process_identity.py")
    host: str = Field(description="node name, for messages")
    pid: int = Field(description="process id on that node")
    ticks: int = Field(description="start time of the process, which distinguishes reused ids")
    since: str = Field(description="UTC time by that node's clock, for messages")

    def is_gone(self, node: str) -> bool:
        """Return whether the process has ended; False if it is on another node."""
        if self.node != node:
            return False
        ticks = start_ticks(self.pid)
        return ticks is None or (ticks != 0 and self.ticks != 0 and ticks != self.ticks)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class LatestGeneration:
    """Highest generation of a key's lease, as read."""

    number: int
    owner: bytes
    beat: bytes

    @property
    def is_released(self) -> bool:
        return self.beat == _RELEASED

    def read_owner(self) -> LeaseHolder | None:
        try:
            return LeaseHolder.model_validate_json(self.owner)
        except ValidationError:
            return None


class Leases:
    """Leases in one key-value store.

    Args:
        seconds: without a heartbeat until a holder on another node is dead; None for the value of
        VARIABLE, or LEASE_SECONDS.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        seconds: float | None = None,
        node: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.seconds = lease_seconds() if seconds is None else seconds
        self.node = node_identity() if node is None else node
        self._clock = clock
        self._sleep = sleep

    @contextmanager
    def hold(
        self,
        key: str,
        on_wait: Callable[[str], None] = lambda text: None,
        *,
        forget: bool = False,
    ) -> Iterator[Lease]:
        """Hold the key exclusively during the block; wait for another holder.

        If another process takes over, which requires a long silence, a block in the main thread is
        interrupted.

        Args:
            forget: delete every trace of the key afterwards; for keys that are never used again.

        Raises:
            StoreError: another process took over during the block.
        """
        lease = self._acquire(key, on_wait)
        try:
            try:
                lease.start_heartbeat(interrupt_main=True)
                yield lease
            finally:
                lease.release(forget=forget)
        except KeyboardInterrupt:
            if lease.is_lost:
                raise lease.lost_error() from None
            raise

    @contextmanager
    def hold_if_free(self, key: str, *, forget: bool = False) -> Iterator[Lease | None]:
        """Hold the key like `hold`, or yield None if it is, or may be, held."""
        seen = self.read_latest(key)
        lease = None
        if seen is None or self._is_over(seen):
            lease = self._try_create(key, seen)
        if lease is None:
            yield None
            return
        try:
            lease.start_heartbeat(interrupt_main=False)
            yield lease
        finally:
            lease.release(forget=forget)

    def create(self, key: str) -> Lease:
        """Acquire an unused key until it is released or this process ends."""
        lease = self._try_create(key, None)
        if lease is None:
            raise StoreError("a new key is already in use", where=key)
        lease.start_heartbeat(interrupt_main=False)
        return lease

    def is_held(self, key: str) -> bool:
        """Return whether the key is held, without waiting.

        For a holder on another node the store's clock decides how long it was silent.
        """
        seen = self.read_latest(key)
        if seen is None or self._is_over(seen):
            return False
        owner = seen.read_owner()
        if owner is not None and owner.node == self.node:
            return True
        silent = self.silent_seconds(key)
        return silent is None or silent < self.seconds

    def silent_seconds(self, key: str) -> float | None:
        """Return the seconds since the last heartbeat by the store's clock; None if unknown."""
        if (seen := self.read_latest(key)) is None:
            return None
        lease = f"{key}/{_name(seen.number)}"
        try:
            ages = [self.store.age(name) for name in (lease + _HEARTBEAT, lease)]
        except OSError:
            return None  # the clock is unknown without a write
        return min((age for age in ages if age is not None), default=None)

    def revoke_silent(self, key: str) -> None:
        """Take over the key from a silent holder on another node, and release it.

        If that holder resumes, it finds that it has lost the lease.
        """
        seen = self.read_latest(key)
        if seen is None or self._is_over(seen) or self.is_held(key):
            return
        if (lease := self._try_create(key, seen)) is not None:
            lease.release(forget=True)

    def read_latest(self, key: str) -> LatestGeneration | None:
        number = self._highest(key)
        while number:
            name = f"{key}/{_name(number)}"
            owner = self.store.get(name)
            if owner is not None:
                return LatestGeneration(number, owner, self.store.get(name + _HEARTBEAT) or b"")
            # Removed after the listing: there is a higher generation, or none.
            before, number = number, self._highest(key)
            if number == before:
                return None
        return None

    def _acquire(self, key: str, on_wait: Callable[[str], None]) -> Lease:
        unchanged: tuple[LatestGeneration, float] | None = None
        pause, told = MIN_PAUSE_S, False
        while True:
            seen, now = self.read_latest(key), self._clock()
            if unchanged is None or seen != unchanged[0]:
                unchanged = (seen, now) if seen is not None else None
            is_silent = unchanged is not None and now - unchanged[1] >= self.seconds
            if seen is None or self._is_over(seen) or (is_silent and self._is_elsewhere(seen)):
                if (lease := self._try_create(key, seen)) is not None:
                    return lease
                continue
            if not told:
                on_wait(f"waiting for {seen.read_owner() or 'another process'}")
                told = True
            self._sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _try_create(self, key: str, seen: LatestGeneration | None) -> Lease | None:
        number = seen.number + 1 if seen is not None else 1
        owner = LeaseHolder(
            token=uuid.uuid4().hex,
            node=self.node,
            host=platform.node(),
            pid=os.getpid(),
            ticks=start_ticks(os.getpid()) or 0,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        lease = Lease(self, key, number, owner)
        try:
            created = self.store.put_if_absent(lease.name, lease.content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A full disk may have room for an empty file, and `gc` needs a lease to free space. Its
            # holder is unreadable, so it ends by silence.
            lease.content = b""
            created = self.store.put_if_absent(lease.name, lease.content)
        if not created:
            return None
        # Another process may have created and released this generation earlier, and been
        # succeeded: then a higher generation exists.
        if self._highest(key) != number:
            self.store.remove(lease.name)
            return None
        for name in self.store.names(key):
            if 0 < _number(name) < number:
                self.store.remove(f"{key}/{name}")
        return lease

    def _is_over(self, seen: LatestGeneration) -> bool:
        owner = seen.read_owner()
        return seen.is_released or (owner is not None and owner.is_gone(self.node))

    def _is_elsewhere(self, seen: LatestGeneration) -> bool:
        """Return whether silence decides; on this node the process table does."""
        owner = seen.read_owner()
        return owner is None or owner.node != self.node

    def _highest(self, key: str) -> int:
        numbers = (_number(name) for name in self.store.names(key) if not name.endswith(_HEARTBEAT))
        return max(numbers, default=0)


class Lease:
    """An acquired key, until it is released or taken over."""

    def __init__(self, leases: Leases, key: str, number: int, owner: LeaseHolder) -> None:
        self.key = key
        self.number = number
        self.token = owner.token
        self.content = owner.model_dump_json().encode()
        self.is_lost = False
        self._leases = leases
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._heartbeat_thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        return f"{self.key}/{_name(self.number)}"

    def is_current(self) -> bool:
        seen = self._leases.read_latest(self.key)
        return seen is not None and (seen.number, seen.owner) == (self.number, self.content)

    def lost_error(self) -> StoreError:
        seen = self._leases.read_latest(self.key)
        owner = seen.read_owner() if seen is not None else None
        return StoreError(
            "lease lost: no heartbeat for too long, and another process took over",
            where=str(owner or self.key),
            hint="run the same command again: it waits for that process and continues its work",
        )

    def start_heartbeat(self, *, interrupt_main: bool) -> None:
        interrupt_main = interrupt_main and threading.current_thread() is threading.main_thread()
        self._heartbeat_thread = threading.Thread(
            target=self._run_heartbeat, args=(interrupt_main,), daemon=True
        )
        self._heartbeat_thread.start()

    def send_heartbeat(self, count: int) -> bool:
        """Write a new counter value; return whether the lease is still valid."""
        self._leases.store.put(self.name + _HEARTBEAT, str(count).encode())
        return self.is_current()

    def release(self, *, forget: bool = False) -> None:
        """Release the key.

        If the store cannot be written, the lease ends with this process or by silence.
        """
        with self._ending:
            self._over.set()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()
        store = self._leases.store
        with contextlib.suppress(OSError, StoreError):
            if self.is_lost or not self.is_current():
                self.is_lost = True
            elif forget or not self._mark_released():
                for name in store.names(self.key):
                    if 0 < _number(name) <= self.number and name != _name(self.number):
                        store.remove(f"{self.key}/{name}")
                store.remove(self.name)  # last, because it is the valid one

    def _mark_released(self) -> bool:
        try:
            self._leases.store.put(self.name + _HEARTBEAT, _RELEASED)
        except OSError:  # a full disk still allows removal
            return False
        return True

    def _run_heartbeat(self, interrupt_main: bool) -> None:
        count = 0
        while not self._over.wait(self._leases.seconds / HEARTBEATS_PER_LEASE):
            count += 1
            try:
                if self.send_heartbeat(count):
                    continue
            except (OSError, StoreError):
                continue  # retried; a short silence is harmless
            self._interrupt(interrupt_main)
            return

    def _interrupt(self, interrupt_main: bool) -> None:
        with self._ending:
            if self._over.is_set():
                return
            self.is_lost = True
            main = threading.main_thread().ident
            for number in (signal.SIGINT, signal.SIGTERM):
                if (
                    interrupt_main
                    and main is not None
                    and signal.getsignal(number) is signal.default_int_handler
                ):
                    signal.pthread_kill(main, number)
                    return


def lease_seconds() -> float:
    """Return the value of VARIABLE, or LEASE_SECONDS; raise UsageError if it is invalid."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or LEASE_SECONDS)
    except ValueError:
        seconds = 0
    if not MIN_SECONDS <= seconds <= 24 * 3600:
        raise UsageError(
            f"{ascii(text)[:80]} is not a valid lease duration in seconds",
            where=f"the variable {VARIABLE}",
            hint=f"set it to a number from {MIN_SECONDS:g} to 86400, the same on all nodes",
        )
    return seconds


def _name(number: int) -> str:
    return f"{number:06d}"


def _number(name: str) -> int:
    """Return the generation of a file; 0 for an unrelated file."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_DIGITS else 0
