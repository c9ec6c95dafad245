"""Claims: one process has a key to itself, among all that share a folder or an object store.

`flock` does not work on every shared folder, and an object store has none. So a claim is a small
file that only one can create, `<key>/<generation>`, and only the highest generation counts. Who
finds that its owner has released it, or is dead, creates the next one: of two who try one fails.
An owner on the same node is dead when its process is gone, and is followed at once. One elsewhere
rewrites a counter beside its claim; it is dead when whoever waits has seen that unchanged for
CLAIM_SECONDS of the waiter's own monotonic clock, so the nodes' clocks may differ by any time.

An owner that was stopped, or cut off from the shared folder, may come back after it was followed.
It learns so from its own heartbeat, or when it asks (`Claim.is_ours`); what it does until then must
do no harm, which is for each user of a claim to see to (`store.py`, `eval_gates/answer_log.py`).
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

VARIABLE = "PREPARE_CLAIM_SECONDS"
LEASE_SECONDS = 60.0
MIN_SECONDS = 2.0
# What a beat may be late, on a busy node or a slow file server, before somebody else takes over.
HEARTBEATS_PER_LEASE = 12
MIN_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
MAX_DIGITS = 12  # of a generation
_HEARTBEAT = ".beat"
_RELEASED = b"released"


class LeaseHolder(Record):
    """Who made a claim."""

    token: str = Field(description="of this one claim")
    node: str = Field(description="identity of the node, see node.py")
    host: str = Field(description="its name, for people")
    pid: int = Field(description="of the process, as its node counts")
    ticks: int = Field(description="when the process began, so that its id is nobody else's")
    since: str = Field(description="UTC time by that node's clock, for people")

    def is_gone(self, node: str) -> bool:
        """Whether that process is known to have ended; of another node nothing is known."""
        if self.node != node:
            return False
        ticks = start_ticks(self.pid)
        return ticks is None or (ticks != 0 and self.ticks != 0 and ticks != self.ticks)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class LatestGeneration:
    """The highest generation of a key's claims, as it was found."""

    number: int
    owner: bytes
    beat: bytes

    @property
    def is_released(self) -> bool:
        """Whether its owner said that it is done."""
        return self.beat == _RELEASED

    def read_owner(self) -> LeaseHolder | None:
        """Who made it; None where that cannot be read."""
        try:
            return LeaseHolder.model_validate_json(self.owner)
        except ValidationError:
            return None


class Leases:
    """The claims on one shelf.

    Args:
        shelf: where they lie.
        seconds: after which an owner elsewhere that is not heard of is dead; as VARIABLE says, or
            CLAIM_SECONDS, when None.
        node: identity of our node.
        clock: monotonic seconds.
        sleep: waits so many seconds.
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
        """Have the key to oneself; waits for whoever has it.

        When another takes over meanwhile, which only happens to who was not heard of for long, and
        we are in the main thread, the block is interrupted.

        Args:
            waits: is told once for whom we wait.
            forget: afterwards nothing of the key is kept; for what is removed for good.

        Raises:
            StoreError: another process took over while the block ran.
        """
        claim = self._acquire(key, on_wait)
        try:
            try:
                claim.start_heartbeat(interrupt_main=True)
                yield claim
            finally:
                claim.release(forget=forget)
        except KeyboardInterrupt:
            if claim.is_lost:
                raise claim.lost_error() from None
            raise

    @contextmanager
    def hold_if_free(self, key: str, *, forget: bool = False) -> Iterator[Lease | None]:
        """As `hold`; None where somebody has it, or may have it."""
        seen = self.read_latest(key)
        claim = None
        if seen is None or self._is_over(seen):
            claim = self._try_create(key, seen)
        if claim is None:
            yield None
            return
        try:
            claim.start_heartbeat(interrupt_main=False)
            yield claim
        finally:
            claim.release(forget=forget)

    def create(self, key: str) -> Lease:
        """Have a key that is ours alone anyway, until it is released or our process ends."""
        claim = self._try_create(key, None)
        if claim is None:
            raise StoreError("a key that is nobody else's is claimed", where=key)
        claim.start_heartbeat(interrupt_main=False)
        return claim

    def is_held(self, key: str) -> bool:
        """Whether somebody has it, as far as can be known without waiting.

        Of an owner elsewhere it is the shelf's own clock that says how long it was not heard of.
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
        """Seconds since the last heartbeat, by the shelf's own clock; None where not known."""
        if (seen := self.read_latest(key)) is None:
            return None
        claim = f"{key}/{_name(seen.number)}"
        try:
            ages = [self.store.age(name) for name in (claim + _HEARTBEAT, claim)]
        except OSError:
            return None  # where nothing can be written the time is not known
        return min((age for age in ages if age is not None), default=None)

    def revoke_silent(self, key: str) -> None:
        """Take the key from an owner elsewhere that is not heard of any more, and give it up.

        So one that was stopped, and comes back, finds that it has the key no more.
        """
        seen = self.read_latest(key)
        if seen is None or self._is_over(seen) or self.is_held(key):
            return
        if (claim := self._try_create(key, seen)) is not None:
            claim.release(forget=True)

    def read_latest(self, key: str) -> LatestGeneration | None:
        """The claim that counts; None where there is none."""
        number = self._highest(key)
        while number:
            name = f"{key}/{_name(number)}"
            owner = self.store.get(name)
            if owner is not None:
                return LatestGeneration(number, owner, self.store.get(name + _HEARTBEAT) or b"")
            # Cleaned up since it was listed: there is a higher one, or none.
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
                if (claim := self._try_create(key, seen)) is not None:
                    return claim
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
        claim = Lease(self, key, number, owner)
        try:
            created = self.store.put_if_absent(claim.name, claim.content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Where there is no room for a word there may be for a name, and what is to be removed
            # has to be claimed, too. Nobody can tell whose it is, so its silence ends it.
            claim.content = b""
            created = self.store.put_if_absent(claim.name, claim.content)
        if not created:
            return None
        # Somebody may have made this generation, released it, and been followed, before we made it
        # once more: then a higher one is there.
        if self._highest(key) != number:
            self.store.remove(claim.name)
            return None
        for name in self.store.names(key):
            if 0 < _number(name) < number:
                self.store.remove(f"{key}/{name}")
        return claim

    def _is_over(self, seen: LatestGeneration) -> bool:
        owner = seen.read_owner()
        return seen.is_released or (owner is not None and owner.is_gone(self.node))

    def _is_elsewhere(self, seen: LatestGeneration) -> bool:
        """Whether silence says that it is dead: of our own node we know better."""
        owner = seen.read_owner()
        return owner is None or owner.node != self.node

    def _highest(self, key: str) -> int:
        numbers = (_number(name) for name in self.store.names(key) if not name.endswith(_HEARTBEAT))
        return max(numbers, default=0)


class Lease:
    """A key that is ours, until it is released or another follows us."""

    def __init__(self, claims: Leases, key: str, number: int, owner: LeaseHolder) -> None:
        self.key = key
        self.number = number
        self.token = owner.token
        self.content = owner.model_dump_json().encode()
        self.is_lost = False
        self._claims = claims
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._heartbeat_thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Of its file or object."""
        return f"{self.key}/{_name(self.number)}"

    def is_current(self) -> bool:
        """Whether nobody has followed us."""
        seen = self._claims.read_latest(self.key)
        return seen is not None and (seen.number, seen.owner) == (self.number, self.content)

    def lost_error(self) -> StoreError:
        """The error to raise when it is not."""
        seen = self._claims.read_latest(self.key)
        owner = seen.read_owner() if seen is not None else None
        return StoreError(
            "this process was not heard of for too long, and another has taken over its work",
            where=str(owner or self.key),
            cure="run the same command again: it waits for that process, and goes on from there",
        )

    def start_heartbeat(self, *, interrupt_main: bool) -> None:
        """Let others hear of us from now on, in a thread of its own.

        Args:
            interrupts: when another has followed us, interrupt the thread that calls this, if it is
                the main one: what it does is of no use any more.
        """
        interrupt_main = interrupt_main and threading.current_thread() is threading.main_thread()
        self._heartbeat_thread = threading.Thread(
            target=self._run_heartbeat, args=(interrupt_main,), daemon=True
        )
        self._heartbeat_thread.start()

    def send_heartbeat(self, count: int) -> bool:
        """Be heard of, by a number that was not said before; whether it is still ours."""
        self._claims.store.put(self.name + _HEARTBEAT, str(count).encode())
        return self.is_current()

    def release(self, *, forget: bool = False) -> None:
        """Give it to whoever wants it next.

        Where that cannot be said (the disk is full, the shelf is gone), the claim ends with our
        process, or its silence.
        """
        with self._ending:
            self._over.set()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()
        shelf = self._claims.store
        with contextlib.suppress(OSError, StoreError):
            if self.is_lost or not self.is_current():
                self.is_lost = True
            elif forget or not self._say_released():
                for name in shelf.names(self.key):
                    if 0 < _number(name) <= self.number and name != _name(self.number):
                        shelf.remove(f"{self.key}/{name}")
                shelf.remove(self.name)  # the last: it is what counts

    def _say_released(self) -> bool:
        try:
            self._claims.store.put(self.name + _HEARTBEAT, _RELEASED)
        except OSError:  # on a full disk something can still be removed
            return False
        return True

    def _run_heartbeat(self, interrupt_main: bool) -> None:
        count = 0
        while not self._over.wait(self._claims.seconds / HEARTBEATS_PER_LEASE):
            count += 1
            try:
                if self.send_heartbeat(count):
                    continue
            except (OSError, StoreError):
                continue  # it is tried again: being silent for a while is no harm by itself
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
    """What the variable says, or CLAIM_SECONDS; raises UsageError where it is no such number."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or LEASE_SECONDS)
    except ValueError:
        seconds = 0
    if not MIN_SECONDS <= seconds <= 24 * 3600:
        raise UsageError(
            f"{ascii(text)[:80]} is no number of seconds after which a silent process is dead",
            where=f"the variable {VARIABLE}",
            cure=f"set it to a number from {MIN_SECONDS:g} to 86400, the same on all nodes",
        )
    return seconds


def _name(number: int) -> str:
    return f"{number:06d}"


def _number(name: str) -> int:
    """The generation that a file belongs to; 0 of one that is none of ours."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_DIGITS else 0
