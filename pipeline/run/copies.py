"""Copies of a run: their shared choice, their events for the main one, and their start.

    runs/<run>/request.json   the request; written by the first copy, or the launcher
    runs/<run>/plan.json      the plan of the first copy
    runs/<run>/copies/        events of all copies but the main one, and logs of those on its node

A later copy leaves if its version of prepare, hardware or plan is another.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from artifacts.requests import ModelRequest
from artifacts.run_record import RunReport, StageReport, read_run
from pipeline.plan.plan import Plan
from pipeline.run.recorder import COPIES, RunRecorder
from pipeline.run.tries import FAILED, empty
from prepare import __version__
from prepare.digest import digest_json
from prepare.errors import StoreError, UsageError
from prepare.escape import make_visible
from prepare.events import Progress, forward_progress
from prepare.own_command import own_command
from prepare.private_files import create_exclusively, make_folder, open_log, write_atomically
from prepare.process_environment import without_registry
from prepare.record import Record
from prepare.store import RUN_RECORD, RunFolders, Store, is_alive
from prepare.supervisor import SupervisedProcess
from prepare.untrusted import (
    MAX_RECORD_BYTES,
    UntrustedJsonError,
    open_regular,
    parse_json,
    parse_record,
    read_regular,
)

PACKAGES = ("artifacts", "eval_gates", "pipeline", "prepare", "recipes")
DIGITS = 12
# Code and its data: environment locks, engine arguments, questions.
KINDS = (".py", ".txt", ".yaml", ".toml", ".jsonl")


@cache
def this_prepare() -> str:
    """Return version and code digest, as in `0.1.0+code.4f5a0c31b2d7`."""
    return f"{__version__}+code.{digest_code(Path(__file__).parents[2])[:DIGITS]}"


def digest_code(root: Path) -> str:
    """Return the SHA-256 over files of KINDS in PACKAGES."""
    digest = hashlib.sha256()
    for file in sorted(file for name in PACKAGES for file in (root / name).rglob("*")):
        if file.suffix in KINDS and not file.name.startswith(".") and file.is_file():
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


INDEX_VARIABLES = ("PREPARE_COPY", "JOB_COMPLETION_INDEX")
"""Set by a launcher, and by an Indexed Job of Kubernetes."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
REQUEST = "request.json"
PLAN = "plan.json"
READ_S = 0.5
MAX_EVENT_BYTES = 65_536
# -P: a folder called 'prepare' in the working directory must not shadow ours.
PREPARE = ("-P", "-m", "prepare")


class SharedRequest(Record):
    """A run's request, for all its copies."""

    schema_version: int = Field(1, description="of this record")
    prepare: str = Field(description="version, with a digest of the code")
    cwd: str = Field(description="folder that relative paths are from")
    nodes: bool = Field(False, description="whether any node of the kind may do any piece")
    request: ModelRequest = Field(description="options of `prepare model`, as given")


class SharedPlan(Record):
    """Plan and machine that all copies must share."""

    schema_version: int = Field(1, description="of this record")
    hardware: str = Field(description="kind of machine")
    keys: str = Field(description="digest of the keys of all stages that are known at the start")


def copy_index(variables: Mapping[str, str] = os.environ) -> int | None:
    """Return this copy's number, if a launcher gave one."""
    for name in INDEX_VARIABLES:
        if (text := variables.get(name)) is not None:
            if not text.isdecimal():
                raise UsageError("this is no number of a copy", where=f"{name}={text}")
            return int(text)
    return None


@dataclass(frozen=True)
class JoinedRun:
    """The run that this process works on."""

    request: ModelRequest
    run_id: str | None = None  # None for a new run
    index: int = 0
    nodes: bool = False  # copies run on several nodes, each of which may do any piece
    ended: RunReport | None = None  # of a run that is not retried


def join_run(request: ModelRequest, run_id: str, store: Store, *, retry: bool = False) -> JoinedRun:
    """Join or begin a run; UsageError for another request or version of prepare.

    A request without a checkpoint means the run's. `retry` tries failed pieces again.
    """
    index = copy_index()
    is_joining = request.checkpoint is None
    if not RUN_ID.fullmatch(run_id):
        raise UsageError(
            "this is no id of a run",
            where=f"--run {run_id!r}",
            hint="up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    folder = store.root / "runs" / run_id
    if not is_joining:
        write_request(RunFolders(store).make(run_id, is_new=False), request)
    shared = _read(folder / REQUEST, SharedRequest, f"there is no run '{run_id}' to join")
    if shared.prepare != this_prepare():
        raise UsageError(
            f"the run was begun by prepare {shared.prepare}, and this is {this_prepare()}",
            where=str(folder / REQUEST),
            hint="install the same version, of the same commit, on every node",
        )
    if not is_joining and (other := request.differences(shared.request)):
        raise UsageError(
            f"run '{run_id}' was asked for something else: {other}",
            where=str(folder / REQUEST),
            hint="take another id, or leave the other options out to join it",
        )
    if is_joining and Path(shared.cwd).is_dir():  # its options' paths are from there
        os.chdir(shared.cwd)
    if retry and not index:
        if is_alive(folder):
            follow = own_command("runs", run_id, "--follow")
            raise UsageError(
                f"run '{run_id}' is in progress, and its copies do not try failed pieces again",
                where=str(folder),
                hint=f"wait for its end (`{follow}`), then give --retry",
            )
        empty(folder / FAILED)
        _reopen(folder)
    ended = None
    if not retry and not index and (folder / RUN_RECORD).exists():
        report = read_run(folder)
        ended = report if report.status in ("finished", "failed") else None
    return JoinedRun(shared.request, run_id, index or 0, shared.nodes, ended)


def _reopen(folder: Path) -> None:
    """Remove a run's old outcome."""
    with contextlib.suppress(StoreError):  # it never began, or its record is damaged
        if not is_alive(folder) and (report := read_run(folder)).status in ("finished", "failed"):
            again = report.model_copy(update={"status": "interrupted"})
            write_atomically(folder / RUN_RECORD, again.model_dump_json(indent=1))


def write_request(folder: Path, request: ModelRequest, *, nodes: bool = False) -> None:
    """Write a run's request, once."""
    is_indexed = copy_index() is not None
    shared = SharedRequest(
        prepare=this_prepare(), cwd=str(Path.cwd()), nodes=nodes or is_indexed, request=request
    )
    create_exclusively(folder / REQUEST, shared.model_dump_json(indent=1).encode())


def check_plan(folder: Path, plan: Plan, hardware: str) -> None:
    """Compare or store the run's plan."""
    specs = [*plan.shared.values(), *(s for arm in plan.arms for s in arm.stages.values())]
    mine = SharedPlan(hardware=hardware, keys=digest_json(sorted(spec.key for spec in specs)))
    if create_exclusively(folder / PLAN, mine.model_dump_json(indent=1).encode()):
        return
    first = _read(folder / PLAN, SharedPlan, "the run's plan cannot be read")
    if first == mine:
        return
    what = (
        f"this machine is {hardware}, and the run is planned for {first.hardware}"
        if first.hardware != hardware
        else "what it would do differs from what the first copy planned"
    )
    raise UsageError(
        f"this copy cannot join the run: {what}",
        where=str(folder / PLAN),
        hint="start copies on nodes of one kind, with the same settings file and the same files",
    )


class OtherCopies:
    """Events of a run's other copies.

    `only_new` skips events that a dead main copy has recorded.
    """

    def __init__(self, log: RunRecorder, progress: Progress, *, only_new: bool = False) -> None:
        self._folder = log.folder / COPIES
        self._log = log
        self._progress = progress
        self._offsets: dict[Path, int] = {}
        if only_new:
            self._offsets = {path: path.lstat().st_size for path in self._folder.glob("*.jsonl")}

    @contextmanager
    def heard(self) -> Iterator[None]:
        over = threading.Event()

        def listen() -> None:
            while not over.wait(READ_S):
                self.read()

        thread = threading.Thread(target=listen, name="other copies", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.read()

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            if path.name == self._log.events_name:
                continue
            for line in self._new_lines(path):
                try:
                    event = parse_json(line)  # NaN or half a letter would spoil run.json
                except UntrustedJsonError:
                    continue
                if isinstance(event, dict):
                    self._pass_on(_visible(event))

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        """Yield lines that are complete; a longer one than MAX_EVENT_BYTES comes in parts."""
        try:
            with io.BufferedReader(open_regular(path, None)) as file:
                file.seek(self._offsets.get(path, 0))
                while line := file.readline(MAX_EVENT_BYTES):
                    if not line.endswith(b"\n") and len(line) < MAX_EVENT_BYTES:
                        return  # it is being written
                    self._offsets[path] = self._offsets.get(path, 0) + len(line)
                    yield line
        except OSError:  # no copy's: a pipe, a folder, a link to nothing
            return

    def _pass_on(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"event": "stage", **told}:
                try:
                    self._log.stage(StageReport.model_validate(told))
                except ValidationError:
                    return
            case {"event": "running", "stages": list(stages)}:
                self._log.note_running([stage for stage in stages if isinstance(stage, str)])
            case _:
                forward_progress(event, self._progress)


@dataclass
class Lead:
    """The main copy's further work: it reads events and starts copies on this node.

    `further_copies`: one for each further lot of GPUs; they end with it.
    """

    log: RunRecorder
    progress: Progress
    further_copies: int = 0
    _is_taken: bool = field(default=False, init=False)
    _held: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Lead:
        self.try_to()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def try_to(self) -> None:
        """Take the lead unless a main copy lives."""
        was_main = self.log.is_main
        if self._is_taken:
            return
        self.log.take_over()
        if not self.log.is_main:
            return
        self._is_taken = True
        others = OtherCopies(self.log, self.progress, only_new=not was_main)
        self._held.enter_context(others.heard())
        folder = self.log.folder / COPIES
        make_folder(folder)
        run = ["--run", self.log.run_id, "--store", str(self.log.folder.parents[1])]
        for index in range(1, self.further_copies + 1):
            with open_log(folder / f"{index}.log") as output:
                process = SupervisedProcess(
                    [sys.executable, *PREPARE, "model", *run],
                    environment={**without_registry(os.environ), INDEX_VARIABLES[0]: str(index)},
                    output=output,
                )
            self._held.callback(process.stop)


def _visible(value: Any) -> Any:
    """Return the JSON value with escaped text."""
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, dict):
        return {key: _visible(item) for key, item in value.items()}
    return value


def _read(path: Path, shape: type[Any], missing: str) -> Any:
    try:
        return parse_record(read_regular(path, MAX_RECORD_BYTES), shape)
    except FileNotFoundError:
        hint = f"give the options of the run with its id; `{own_command('runs')}` shows the runs"
        raise UsageError(missing, where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"a run's file is damaged: {error}", where=str(path)) from error
