"""A real Slurm of two nodes on this machine: controller, munge and two slurmd, with faked GPUs.

Slurm from Debian's packages; no systemd, no cgroups. A GPU is a copy of /dev/null by another name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from store_processes import parent_of

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
NODES = ("n1", "n2")
CONFIGURATION = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=sched_interval=1,sched_min_interval=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:{kinds[0]}:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:{kinds[1]}:2
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=60 State=UP
"""
# What follows sees the first folder in the place of the second.
HIDING = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def missing() -> str:
    """Why it cannot be started here; empty where it can."""
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(absent)}: Debian's slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd runs as root only"


class SlurmNodes:
    """The cluster, as long as it is not closed.

    Args:
        folder: for all its files; its path is short, since a socket is in it.
        kinds: of the nodes' GPUs.
        own: a folder that each node is to see as a separate one, as nodes do that share none.
    """

    def __init__(
        self, folder: Path, kinds: tuple[str, str] = ("h100", "h100"), own: Path | None = None
    ) -> None:
        self.folder = folder
        self._own = own
        self.configuration = folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        host = socket.gethostname().partition(".")[0]
        self.configuration.write_text(
            CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3), kinds=kinds)
        )
        (folder / "state").mkdir()
        gpus = ""
        for node, kind in zip(NODES, kinds, strict=True):
            (folder / f"spool-{node}").mkdir()
            for number in range(2):
                path = folder / f"{node}-gpu{number}"
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            gpus += f"NodeName={node} Name=gpu Type={kind} File={folder}/{node}-gpu[0-1]\n"
        (folder / "gres.conf").write_text(gpus)
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        paths = [f"--{name}={folder / file}" for name, file in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *paths)
        wait_until((folder / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start(node)
        wait_until(lambda: self.states() == ["idle", "idle"])

    def start(self, node: str) -> None:
        """Bring the node up."""
        command = ["slurmd", "-D", "-N", node]
        if self._own is not None:
            other = self.folder / f"own-{node}"
            other.mkdir(exist_ok=True)
            command = ["unshare", "--mount", "sh", "-c", HIDING, "sh", other, self._own, *command]
        self._start(f"slurmd -N {node}", *command)

    def kill(self, node: str) -> None:
        """End all that runs on the node with SIGKILL, as if its power were cut."""
        work = processes_on(node)
        self.cut_off(node)
        end(work)

    def cut_off(self, node: str) -> None:
        """End what speaks for the node, as if its network were cut; its work goes on."""
        self._end(f"slurmd -N {node}", signal.SIGKILL)
        end({pid for pid in map(parent_of, processes_on(node)) if is_step(pid)})

    def node_above(self, process: int) -> str:
        """The node on which the process runs."""
        while True:
            environment = Path(f"/proc/{process}/environ").read_bytes()
            for node in NODES:
                if f"SLURMD_NODENAME={node}\0".encode() in environment:
                    return node
            process = parent_of(process)

    def states(self) -> list[str]:
        """States of the nodes, from sinfo."""
        command = ["sinfo", "--Node", "--noheader", "--format=%t"]
        answer = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False, timeout=30
        )
        return answer.stdout.split()

    def environment(self) -> Mapping[str, str]:
        """That Slurm's commands find it with."""
        return {**os.environ, "SLURM_CONF": str(self.configuration)}

    def close(self) -> None:
        """End everything."""
        for node in NODES:
            self.kill(node)
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    def _start(self, name: str, *command: str | Path) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                env=dict(self.environment()),
                stdout=output,
                stderr=output,
            )

    def _end(self, name: str, number: int) -> None:
        if name in self._processes:
            process = self._processes.pop(name)
            process.send_signal(number)
            process.wait()


def processes_on(node: str) -> list[int]:
    """Return the processes of jobs on the node."""
    mark = f"SLURMD_NODENAME={node}\0".encode()
    work = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes():
                work.append(int(entry.name))
    return work


def is_step(process: int) -> bool:
    """Return whether this is Slurm's own process of a job."""
    return Path(f"/proc/{process}/comm").read_text() == "slurmstepd\n"


def end(processes: Iterable[int]) -> None:
    """End them with SIGKILL."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Come back as soon as it holds; raises AssertionError where it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]
