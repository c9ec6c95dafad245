"""Runs work items as Slurm jobs, one each, submitted by `sbatch`.

A job's events go to a file next to its log, in the run's folder on the shared store; the driver
reads it. So jobs survive the driver's end, and their results are in the store. Slurm requeues a job
that is preempted or whose node is lost, and the job repeats its work. Slurm ends its processes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.core.credentials import credential_variables
from pipeline.core.errors import StageError, UsageError
from pipeline.core.events import read_event
from pipeline.core.hardware import NodeInfo
from pipeline.core.private_files import FOR_OTHERS, open_log
from pipeline.core.process_environment import NetworkAccess, stage_environment
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.untrusted import MEBIBYTE
from pipeline.run.executors.executor import ExecutorOptions, Listener
from pipeline.run.executors.node_probe import submit_description
from pipeline.run.executors.resources import (
    Resources,
    count_room,
    most_frequent,
    words_of,
)
from pipeline.run.executors.stage_process import TASK_RUN, check_end, needs_of, stage_in
from pipeline.run.executors.work_events import pass_on

READ_INTERVAL_S = 0.2
POLL_INTERVAL_S = 3.0  # at the queue: hundreds of drivers may share one controller
ANSWER_TIMEOUT_S = 60.0
END_TIMEOUT_S = 90.0  # Slurm gives a job 30 between SIGTERM and SIGKILL, if not told otherwise
VISIBILITY_TIMEOUT_S = 60.0  # as long as NFS may keep what another node has written from being seen
# From squeue(1): a job in any other state continues, or starts again.
OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE"),
    *("OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", ""),
)
NOT_STARTED = "JobLaunchFailure"  # such as where the files of its output cannot be made
CHOICES_OF_NODES = ("--constraint", "--nodelist", "--nodefile", "--exclude", "--prefer")
SCRIPT = """
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || echo {requeued}
{hide_gpus}
{command}
code=$?
echo # it may have been killed within a line
echo "{{\\"event\\": \\"ended\\", \\"exit_code\\": $code}}"
"""


class SlurmOptions(ExecutorOptions):
    """Settings of a Slurm cluster's executor."""

    kind: Literal["slurm"] = Field("slurm", description="jobs of Slurm")
    partition: str | None = Field(None, description="of the jobs; without it Slurm's default")
    account: str | None = Field(None, description="that the jobs are charged to")
    gpu_kind: str | None = Field(None, description="kind of GPU (gres/gpu), such as h100")
    cpus_per_gpu: int | None = Field(None, ge=1, description="cores that go with each GPU")
    time: str | None = Field(None, description="limit of each job, as sbatch has it: '4:00:00'")
    python: str = Field(
        default_factory=lambda: sys.executable,
        description="interpreter with this prepare on the nodes, or in a container; default: the "
        "one of the driver",
    )
    home: Path | None = Field(
        None,
        description="folder of the managed environments on each node; without it, where "
        "PREPARE_HOME of the driver or the node's own settings have it",
    )
    flags: list[str] = Field(
        [], description="further ones of sbatch, such as --container-image=... of Pyxis, --qos=..."
    )

    @field_validator("flags")
    @classmethod
    def _are_flags(cls, flags: list[str]) -> list[str]:
        for flag in flags:
            if not re.match(r"--[a-z]", flag):
                raise ValueError(f"{flag!r} does not begin with '--'")
        return flags

    def open(self) -> SlurmExecutor:
        """Return the executor.

        Raise UsageError if Slurm's commands are missing or do not answer.
        """
        for command in ("sbatch", "squeue", "scancel", "sinfo"):
            if shutil.which(command) is None:
                raise UsageError(
                    f"the executor 'slurm' needs the command {command}",
                    where="executor slurm",
                    hint="run this where jobs are submitted, such as a login node",
                )
        return SlurmExecutor(self)

    def flags_for(self, needs: ResourceRequest) -> list[str]:
        whole = needs.exclusive or (needs.cpus == "all" and not needs.gpus)
        kind = f"{self.gpu_kind}:" if self.gpu_kind else ""
        said = {
            "nodes": "1",
            "ntasks": "1",
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "gres": f"gpu:{kind}{needs.gpus}" if needs.gpus else None,
            "cpus-per-gpu": self.cpus_per_gpu if needs.gpus else None,
            "mem": "0" if whole else _mebibytes(needs.memory_bytes),  # "0": all of the node's
        }
        flags = [f"--{name}={value}" for name, value in said.items() if value is not None]
        return [*flags, *(["--exclusive"] if whole else []), *self.flags]


def _mebibytes(size: int) -> str | None:
    """Return Slurm's form; None for the site's default."""
    return f"{-(-size // MEBIBYTE)}M" if size else None


class SlurmExecutor:
    """The executor of a Slurm cluster; see executor.py."""

    has_our_environments = False

    def __init__(self, options: SlurmOptions) -> None:
        self._options = options
        self._check = cache(self._check_possible)

    def find_room(self, needs: ResourceRequest) -> SlurmAllocation:
        """Return a place in the cluster's queue, for nodes of one kind.

        Raises:
            UsageError: Slurm rejects such a job; the message has its reason.
        """
        return SlurmAllocation(needs, self._options, self._check(needs))

    def obstacle(self) -> str:
        return "room on the Slurm cluster"

    def count_room(self, needs: ResourceRequest) -> int:
        nodes = self._nodes()
        others = self._others(nodes, needs)
        return count_room((each for name, each in nodes.items() if name not in others), needs)

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Listener
    ) -> NodeInfo:
        return submit_description(self, asked, store, listener)

    def _nodes(self) -> dict[str, Resources]:
        partition = self._options.partition
        flags = [f"--partition={partition}"] if partition else []
        # Cores, MiB and GPUs, as "n1 2 16000 gpu:h100:2(S:0)"; of several partitions, each once.
        lines = ask("sinfo", "--Node", "--noheader", "--format=%N %c %m %G", *flags).splitlines()
        named = (line.split(maxsplit=3) for line in sorted(set(lines)))
        return {name: self._resources(cpus, memory, gres) for name, cpus, memory, gres in named}

    def _resources(self, cpus: str, memory: str, gres: str) -> Resources:
        counts = {kind: int(count) for kind, count in re.findall(r"gpu:(?:([^:,(]+):)?(\d+)", gres)}
        if self._options.gpu_kind is not None:
            counts = {kind: n for kind, n in counts.items() if kind == self._options.gpu_kind}
        kind = max(counts, key=lambda each: counts[each], default="")
        mebibytes = int(memory) if int(memory) > 1 else 0  # 1: the site said nothing of it
        return Resources(int(cpus), counts.get(kind, 0), kind, mebibytes * MEBIBYTE)

    def _others(self, nodes: Mapping[str, Resources], needs: ResourceRequest) -> list[str]:
        """Return nodes with as much whose kind is not the most frequent.

        A variant and its baseline are served on nodes of one kind. Other work may run anywhere, and
        a flag that selects nodes takes precedence.
        """
        is_chosen = any(flag.startswith(CHOICES_OF_NODES) for flag in self._options.flags)
        if is_chosen or not (needs.gpus or needs.cpus == "all"):
            return []
        kind = most_frequent(nodes.values(), needs)
        return [name for name, each in nodes.items() if each.holds(needs) and each != kind]

    def _check_possible(self, needs: ResourceRequest) -> list[str]:
        """Return the flags of such a job; raise UsageError if Slurm rejects it."""
        nodes = self._nodes()
        others = self._others(nodes, needs)
        # More than there is, or any where none is said of a node, Slurm would not take.
        able = [each for name, each in nodes.items() if name not in others and each.holds(needs)]
        memory = max((int(each.taken_by(needs).memory_bytes) for each in able), default=0)
        flags = self._options.flags_for(needs.model_copy(update={"memory_bytes": memory}))
        flags += [f"--exclude={','.join(others)}"] if others else []
        try:
            ask("sbatch", "--test-only", *flags, "--wrap=true")
        except StageError as error:
            raise UsageError(
                f"Slurm takes no job that needs {words_of(needs)}: {error.message}",
                where="executor slurm",
                hint="choose a profile for fewer GPUs, or correct partition, account, gpu_kind, "
                "time or flags of the settings file's executor",
            ) from error
        return flags


class SlurmAllocation:
    """Place for one job after another; see executor.py."""

    def __init__(self, needs: ResourceRequest, options: SlurmOptions, flags: Sequence[str]) -> None:
        self._needs = needs
        self._options = options
        self._flags = flags

    def submit(self, task: Path, log: Path) -> SlurmJob:
        events = log.with_suffix(".events")
        with open_log(events) as file:
            file.truncate(0)
        open_log(log).close()
        number = ask(*self._command(task, log, events), variables=self._variables(task))
        # Behind the number there may be the name of a cluster.
        return SlurmJob(number.strip().partition(";")[0], log)

    def release(self) -> None:
        """Do nothing: the resources end with the job."""

    def _command(self, task: Path, log: Path, events: Path) -> list[str]:
        requeued = {"event": "note", "text": f"{task.stem}: requeued, and begun again"}
        script = SCRIPT.format(
            requeued=shlex.quote(json.dumps(requeued)),
            # Slurm itself leaves all of them to a job that asked for none.
            hide_gpus="" if self._needs.gpus else "export CUDA_VISIBLE_DEVICES=",
            command=shlex.join([self._options.python, *TASK_RUN, str(task)]),
        )
        files = {"output": events, "error": log, "chdir": task.parent}
        return [
            *("sbatch", "--parsable", "--requeue", "--open-mode=append", "--export=ALL"),
            f"--job-name={task.stem}",
            # A percent sign stands for something in names of files.
            *(f"--{name}={str(path).replace('%', '%%')}" for name, path in files.items()),
            *self._flags,
            f"--wrap={script}",
        ]

    def _variables(self, task: Path) -> dict[str, str]:
        # The node may have to build the stage's environment first.
        here = {**os.environ, **credential_variables()}
        given = stage_environment(here, stage_in(task), [*needs_of(task), NetworkAccess.PACKAGES])
        given.pop("CUDA_VISIBLE_DEVICES", None)
        if self._options.home is not None:
            given["PREPARE_HOME"] = str(self._options.home)
        return {**given, **{name: here[name] for name in ("SLURM_CONF",) if name in here}}


class SlurmJob:
    """A job of Slurm's; see executor.py."""

    def __init__(self, number: str, log: Path) -> None:
        self.number = number
        self._log = log
        self._cancelled = False
        self._exit_code: int | None = None
        self._state = ""

    def wait(self, listener: Listener) -> None:
        """Pass events on until the job is over.

        Raises:
            PrepareError: what it reported, or a StageError if it died without an error.
            UsageError: its node could not create the files for its events.
        """
        failure = pass_on(self._lines(listener), listener)
        if self._is_unstarted:
            raise UsageError(
                f"job {self.number} of Slurm cannot write where its events are read: {self._state}",
                where=str(self._log.parent),
                hint="the store has to be a folder that all nodes have under the same path; of an "
                "object store that is its cache, PREPARE_HOME/cache",
            )
        if self._exit_code is None:
            raise StageError(
                f"job {self.number} of Slurm ended without a message"
                + (f": {self._state}" if self._state else ""),
                where=str(self._log),
                hint="read the log, and `scontrol show job`; then run the same command again",
            )
        check_end(self._exit_code, failure, self._log)

    def cancel(self) -> None:
        """End the job, and wait until Slurm has ended its processes.

        Raises:
            StageError: Slurm does not answer, or has not ended it in time: it may continue.
        """
        self._cancelled = True
        deadline, is_told, why = time.monotonic() + END_TIMEOUT_S, False, "it does not end"
        while time.monotonic() < deadline:
            try:
                if not is_told:
                    ask("scancel", self.number)
                    is_told = True
            except StageError as error:  # the controller is down, or the job is over
                why = error.message
            if self._is_over():
                return
            time.sleep(READ_INTERVAL_S)
        raise StageError(
            f"Slurm has not ended job {self.number}: {why}",
            where="executor slurm",
            hint=f"`scancel {self.number}` once Slurm's controller answers",
        )

    def _lines(self, listener: Listener) -> Iterator[bytes]:
        """Yield the job's events until it reports its end or has ended."""
        told = set()
        last_look, end = time.monotonic(), float("inf")
        with self._log.with_suffix(".events").open("rb") as file:
            while time.monotonic() < end and not self._cancelled:
                line = file.readline()
                if line.endswith(b"\n"):
                    if self._says_ended(line):
                        return
                    yield line
                    continue
                file.seek(-len(line), os.SEEK_CUR)  # the rest of the line is still to come
                if time.monotonic() - last_look > POLL_INTERVAL_S:
                    last_look = time.monotonic()
                    if self._is_over():
                        if self._is_unstarted:
                            return
                        end = min(end, last_look + VISIBILITY_TIMEOUT_S)
                    elif self._state.startswith("PENDING") and self._state not in told:
                        told.add(self._state)
                        listener.note(f"{self._log.stem}: job {self.number} is {self._state}")
                time.sleep(READ_INTERVAL_S)

    def _says_ended(self, line: bytes) -> bool:
        match read_event(line):
            case {"event": "ended", "exit_code": int(code)}:
                self._exit_code = code
                return True
        return False

    def _is_over(self) -> bool:
        """Return whether Slurm has ended it; False while the controller does not answer."""
        try:
            asked = (f"--jobs={self.number}", "--states=all", "--format=%T (%r)")
            found = ask("squeue", "--noheader", *asked)
        except StageError as error:
            if "Invalid job id" not in error.message:
                return False
            found = ""
        self._state = found.strip() or self._state
        return found.strip().partition(" ")[0] in OVER

    @property
    def _is_unstarted(self) -> bool:
        return self._exit_code is None and NOT_STARTED in self._state


def ask(*command: str, variables: Mapping[str, str] | None = None) -> str:
    """Return the output of a Slurm command.

    Raises:
        StageError: it failed; the message has its output.
    """
    try:
        answer = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
            umask=FOR_OTHERS,
        )
    except subprocess.TimeoutExpired as error:
        raise StageError("Slurm's controller does not answer", where=command[0]) from error
    if answer.returncode != 0:
        said = answer.stderr.strip() or f"exit code {answer.returncode}"
        raise StageError(
            f"{command[0]} failed: {said}",
            where="executor slurm",
            hint="run the same command again",
        )
    return answer.stdout
