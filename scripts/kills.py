"""Kills processes that share a store, and checks what a user relies on; prints one JSON line.

    python scripts/kills.py [KILLS] [KILLS_WITHOUT_LOCKS] [SEED]

Three copies, in the product's loop, do the same stand-in stages over its store: weights of several
files, loads that a next try continues, an answer log, a verdict. SIGKILL hits one after another at
random moments. After each kill every finished folder is compared with the digests in its record.
With locks switched off, as on a file system that lies, work may be repeated; results are still
whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from artifacts.requests import ModelRequest
from artifacts.run_record import ResolvedOptions
from eval_gates.answer_log import AnswerLog
from eval_gates.rows import Answer
from pipeline.environments.settings import Settings
from pipeline.plan.plan import Piece, PlanProgress
from pipeline.run.copies import JoinedRun
from pipeline.run.loop import do_pieces
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.run.tries import TRIED, empty
from pipeline.stages.evaluate import answer_log_file, open_answer_log
from prepare.errors import StoreError
from prepare.events import NullProgress
from prepare.lots import Needs, Node
from prepare.private_files import write_atomically
from prepare.stage import StageRecord, StageSpec
from prepare.store import RECORD, Store
from recipes.accelerator import Accelerator

COPIES, VARIANTS, QUESTIONS, LOADS, FILES = 3, 3, 40, 12, 6
IDS = [f"q/{number}" for number in range(QUESTIONS)]
NAMES = ["baseline", *(f"v{number}" for number in range(VARIANTS))]
PIECES = [(stage, name) for name in NAMES for stage in ("weights", "loads", "answers", "verdict")]
CHECKED = ("weights", "loads", "answers")


class StandInRun(Run):
    """A run whose stages are stand-ins."""

    def execute_stage(self, spec: StageSpec, servers: object = None) -> bool:
        """Do a stand-in stage."""
        do(self.store, spec.stage, spec.variant)
        return True


class StandInPieces:
    """The stand-in stages that are ready."""

    def __init__(self, run: Run, state: PlanProgress) -> None:
        self.run = run
        self.state = state

    def find(self) -> list[Piece]:
        """Return ready pieces; end the process if one failed."""
        if failures := self.run.tries.failures():
            raise SystemExit(str(failures))
        store = self.run.store
        return [piece_of(store, *each) for each in PIECES if is_ready(store, *each)]

    def still_asked(self) -> set[str]:
        """Return no arm: there are no servers."""
        return set()


def copy(root: Path, *, locks: bool) -> None:
    """Be one copy of the run: the product's own loop over stand-in stages."""
    if not locks:
        fcntl.flock = lambda *_: None
    request = ModelRequest(checkpoint="stand-in")
    joined = JoinedRun(request, "kills")
    settings = Settings(home=root / "home", store=root)
    resolved = ResolvedOptions(checkpoint="stand-in")
    run = StandInRun(request, resolved, Accelerator.CPU, settings, NullProgress(), joined)
    run.node = Node(root)
    empty(run.log.folder / TRIED)  # it was killed from outside
    do_pieces(Servers(run), StandInPieces(run, None))


def piece_of(store: Store, stage: str, name: str) -> Piece:
    """Return the piece that does this stand-in stage."""
    spec = StageSpec(
        **{"stage": stage, "variant": name, "key": f"{stage}{name}", "parameters": {}},
        **{"inputs": {}, "runtime": {}, "store": str(store.root)},
    )
    return Piece("stage", (spec,), needs=Needs(cores=stage == "weights"))


def is_ready(store: Store, stage: str, name: str) -> bool:
    """Return whether the piece can be done now."""
    if is_done(store, stage, name):
        return False
    return stage != "verdict" or all(is_done(store, each, name) for each in CHECKED)


def do(store: Store, stage: str, name: str) -> None:
    """Do one piece, or find it done."""
    resumed = ("loads.jsonl",) if stage == "loads" else ()
    key = f"{stage}{name}"
    with store.open_for_writing(stage, key, resumed) as folder:
        if folder is None:
            return
        audit(store, "begin", stage, name)
        result: dict[str, str] = {}
        if stage == "weights":
            for number in range(FILES):
                result[f"w{number}"] = write(folder / f"w{number}", os.urandom(20_000))
                time.sleep(0.004)
        elif stage == "loads":
            result["loads.jsonl"] = measure(folder / "loads.jsonl")
        elif stage == "answers":
            result["answers.jsonl"] = ask(store, name, folder / "answers.jsonl")
        audit(store, "end", stage, name)
        record = StageRecord(
            **{"stage": stage, "variant": name, "key": key, "parameters": {}, "inputs": {}},
            **{"input_digests": {}, "result": result, "notes": [], "seconds": 0.0, "finished": ""},
        )
        write_atomically(folder / RECORD, record.model_dump_json())


def is_done(store: Store, stage: str, name: str) -> bool:
    """Return whether the piece is finished."""
    return store.find(stage, f"{stage}{name}") is not None


def measure(file: Path) -> str:
    """Continue the loads of an earlier try."""
    text = file.read_bytes() if file.exists() else b""
    lines = text.split(b"\n")[:-1]
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    with file.open("ab", buffering=0) as out:
        for number in range(len(lines), LOADS):
            time.sleep(0.004)
            out.write(b"%d\n" % number)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def ask(store: Store, name: str, file: Path) -> str:
    """Ask what the log has not, a few at a time."""
    answer_log = answer_log_file(store, f"answers-{name}")
    with open_answer_log(store, answer_log, lambda _: None):
        while len(rows := AnswerLog(answer_log, IDS).rows()) < QUESTIONS:  # once, where locks hold
            log = AnswerLog(answer_log, IDS, writer=1)
            for start in range(len(log.rows()), QUESTIONS, 4):
                time.sleep(0.004)
                log.append([Answer(each, "0" * 64, 0.0) for each in IDS[start : start + 4]])
    return write(file, "".join(json.dumps(row.to_row()) + "\n" for row in rows).encode())


def write(file: Path, content: bytes) -> str:
    """Write the file; return its digest."""
    file.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def audit(store: Store, *words: str) -> None:
    """Note who began or ended what."""
    with (store.root / "audit").open("a") as file:
        file.write(f"{time.time():.6f} {os.getpid()} {' '.join(words)}\n")


def check(store: Store) -> None:
    """Compare every finished folder with its record."""
    for record in store.records():
        folder = store.stage_folder(record.stage, record.key)
        for name, digest in record.result.items():
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise SystemExit(f"damaged: {folder / name}")
        if record.stage == "answers":
            ids = [json.loads(line)["id"] for line in content.splitlines()]
            if ids != IDS:
                raise SystemExit(f"answers lost or doubled: {folder}")
        if record.stage == "loads" and [*map(int, content.split())] != [*range(LOADS)]:
            raise SystemExit(f"loads lost or doubled: {folder}")


def check_alone(store: Store) -> None:
    """No process ends a piece that another began after it."""
    rows = [line.split() for line in (store.root / "audit").read_text().splitlines()]
    for number, (_, pid, what, *piece) in enumerate(rows):
        if what == "end":
            own = max(n for n in range(number) if rows[n][1:] == [pid, "begin", *piece])
            if any(rows[n][2:] == ["begin", *piece] for n in range(own + 1, number)):
                raise SystemExit(f"two writers of {piece}")


class CopyProcess:
    """A forked process that does all pieces."""

    def __init__(self, root: Path, *, locks: bool) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                copy(root, locks=locks)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code

    def kill(self) -> bool:
        """Send SIGKILL; return whether that ended it."""
        os.kill(self.pid, signal.SIGKILL)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code == -signal.SIGKILL


def trial(kills: int, chance: random.Random, *, locks: bool) -> dict[str, int]:
    """Run until that many kills have hit; return what was counted."""
    counted = {"kills": 0, "runs": 0, "collections": 0, "refused_collections": 0}
    while counted["kills"] < kills:
        root = Path(tempfile.mkdtemp(prefix="kills."))
        store, copies = Store(root), [CopyProcess(root, locks=locks) for _ in range(COPIES)]
        counted["runs"] += 1
        deadline = time.monotonic() + 300
        while any(each.poll() != 0 for each in copies):
            if time.monotonic() > deadline:
                raise SystemExit(f"no end: {root}")
            time.sleep(chance.uniform(0.01, 0.25))
            number = chance.randrange(COPIES)
            if copies[number].poll() is None and counted["kills"] < kills:
                counted["kills"] += copies[number].kill()
            for place, each in enumerate(copies):
                if each.poll() not in (None, 0, -signal.SIGKILL):
                    raise SystemExit(f"a copy failed with {each.code}: {root}")
                if each.poll() == -signal.SIGKILL:
                    copies[place] = CopyProcess(root, locks=locks)
            check(store)
            if locks:
                collect(store, counted)
        check(store)
        if missing := [piece for piece in PIECES if not is_done(store, *piece)]:
            raise SystemExit(f"not done: {missing}")
        if locks:
            check_alone(store)
            if left := [*root.glob("stages/*/*.partial"), *root.glob("stages/*/*.dead")]:
                raise SystemExit(f"left: {left}")
        shutil.rmtree(root)
    return counted


def collect(store: Store, counted: dict[str, int]) -> None:
    """Take the store alone, as `prepare gc` does, where no copy works just now."""
    try:
        with store.collect():
            counted["collections"] += 1
            check(store)
    except StoreError:
        counted["refused_collections"] += 1


def full_disk() -> bool | None:
    """Return whether a run on a full disk is refused and continues later; None without a mount."""
    folder = Path(tempfile.mkdtemp(prefix="kills."))
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(folder)]
    ).returncode:
        return None
    try:
        store = Store(folder / "store")
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(800_000))
        refused = False
        for name in NAMES:
            for stage in CHECKED:
                try:
                    do(store, stage, name)
                except StoreError as error:
                    refused = refused or "disk is full" in error.message
                    ballast.unlink(missing_ok=True)
                    check(store)
                    do(store, stage, name)
        check(store)
        return refused
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def main() -> None:
    """Run both trials and the full disk."""
    kills, without, seed = (int(word) for word in [*sys.argv[1:], "1000", "200", "1"][:3])
    began, chance = time.monotonic(), random.Random(seed)  # noqa: S311
    found = {
        "locks": trial(kills, chance, locks=True),
        "no_locks": trial(without, chance, locks=False),
        "full_disk_refused_and_continued": full_disk(),
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
