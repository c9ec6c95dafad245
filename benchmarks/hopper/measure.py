"""What run.sh measures: one command a piece, each prints lines as it goes and JSON last.

    python benchmarks/hopper/measure.py --out FILE.json COMMAND ...

The project's own code starts the servers and sends the loads; here is only what is done to whom.
`run.sh` says in which order; README.md says what was tried where.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cli.display import open_display
from pipeline.core.gpus import query_driver
from pipeline.core.hardware import hardware
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from recipes.engines import find_engine

HERE = Path(__file__).parent
DRIVER_FACTS = (
    *("name", "driver_version", "memory.total", "memory.used", "pstate", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "clocks_event_reasons.active"),
)
RECIPES = {"bf16": "baseline", "fp8": "fp8-dynamic", "w4a16": "awq-w4a16"}


@dataclass(frozen=True)
class BenchmarkSide:
    """A checkpoint and how it is served: the profile's arguments with some changed.

    `kv=auto` is the KV cache's type, else a variant's.
    """

    name: str
    model: Path
    changes: dict[str, str]

    @classmethod
    def read(cls, text: str) -> BenchmarkSide:
        """From `NAME=FOLDER,KEY=VALUE`; raises ValueError."""
        (name, folder), *changes = (part.split("=", 1) for part in text.split(","))
        return cls(name, Path(folder).resolve(), dict(changes))

    def arguments(self, profile_name: str) -> ServingArguments:
        """As the server is started."""
        changes = dict(self.changes)
        kv = changes.pop("kv", "")
        serving = ServingArguments.of(choose_profile(profile_name), is_baseline=False)
        if kv:
            serving.engine_arguments["kv-cache-dtype"] = kv
        serving.engine_arguments.update(changes)
        return serving


@dataclass(frozen=True)
class Load:
    """A load at a fixed concurrency."""

    name: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    waves: int

    @classmethod
    def read(cls, text: str) -> Load:
        """From `CONCURRENCY:INPUT:OUTPUT:WAVES`; raises ValueError."""
        return cls(text.rpartition(":")[0], *(int(part) for part in text.split(":")))


def main() -> int:
    """Carry out one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="receives the JSON as well")
    parser.add_argument("--profile", default="h100", help="how to serve (default h100)")
    commands = parser.add_subparsers(required=True)

    machine = commands.add_parser("machine", help="GPU, driver, clocks, versions")
    machine.set_defaults(run=describe_machine)

    made = commands.add_parser("make", help="a checkpoint with random weights, unless it is there")
    made.add_argument("kind", choices=RECIPES)
    made.add_argument("shape")
    made.add_argument("folder", type=Path)
    made.set_defaults(run=make_checkpoint)

    speed = commands.add_parser("speed", help="starts servers together, puts them under load")
    speed.add_argument("sides", nargs="+", type=BenchmarkSide.read, metavar="NAME=FOLDER[,K=V]...")
    speed.add_argument("--work", type=Path, required=True, help="keeps the loads")
    speed.add_argument(
        "--load", type=Load.read, nargs="+", default=[], metavar="CONCURRENCY:INPUT:OUTPUT:WAVES"
    )
    speed.add_argument("--until", type=float, help="Unix time at which the loads end")
    speed.set_defaults(run=compare_speed)

    start = commands.add_parser("starts", help="servers one after another, compared with the plan")
    start.add_argument("sides", nargs="+", type=BenchmarkSide.read, metavar="KIND=FOLDER[,K=V]...")
    start.add_argument("--work", type=Path, required=True)
    start.add_argument("--gpu", required=True, help="that `prepare plan` reckons for")
    start.set_defaults(run=compare_starts)

    arguments = parser.parse_args()
    here = hardware(choose_profile(arguments.profile).accelerator)
    found = {"machine": here.model_dump(), **arguments.run(arguments)}
    text = json.dumps(found)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


def tell(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def describe_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return facts that qualify this machine's figures."""
    found = {"driver": driver_facts(), "kernel": os.uname().release, "cores": os.cpu_count()}
    tell(json.dumps(found))
    return found


def driver_facts() -> dict[str, str]:
    """Return nvidia-smi's present facts; empty without a GPU."""
    answer = query_driver(f"--query-gpu={','.join(DRIVER_FACTS)}", "--format=csv,noheader")
    first = (answer or "").splitlines()[:1]
    values = [value.strip() for line in first for value in line.split(",")]
    return dict(zip(DRIVER_FACTS, values, strict=False))


def serving_python(profile: str) -> Path:
    """Return the interpreter of the serving environment, managed or named in the settings."""
    accelerator = Accelerator(choose_profile(profile).accelerator)
    with open_display() as progress:
        return ensure("serve", accelerator, load_settings(), progress).python


def make_checkpoint(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write it by checkpoints.py in the serving environment."""
    folder: Path = arguments.folder
    started = time.monotonic()
    if not folder.is_dir():
        part = folder.with_name(folder.name + ".partial")
        shutil.rmtree(part, ignore_errors=True)
        words = [serving_python(arguments.profile), HERE / "checkpoints.py"]
        words += [arguments.kind, arguments.shape, part]
        subprocess.run([str(word) for word in words], check=True)
        part.rename(folder)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {"seconds": time.monotonic() - started, "bytes": size}


@dataclass(frozen=True)
class RunningServer:
    """A server that is up."""

    side: BenchmarkSide
    server: Server
    seconds: float

    @property
    def found(self) -> dict[str, Any]:
        """What its start shows."""
        return {
            "command": self.server.command,
            "ready_seconds": self.seconds,
            "facts": self.server.facts(),
        }


@contextmanager
def serve(sides: list[BenchmarkSide], profile: str, logs: Path) -> Iterator[list[RunningServer]]:
    """Start all of them concurrently, on ports of the loopback.

    With several, each needs `kv-cache-memory-bytes`: what vLLM measures to size a cache would
    contain what the others take meanwhile.
    """
    python = serving_python(profile)
    logs.mkdir(parents=True, exist_ok=True)
    servers = [
        Server(
            python, side.model, side.arguments(profile), logs / f"{side.name}.log", port=free_port()
        )
        for side in sides
    ]

    def start(side: BenchmarkSide, server: Server) -> RunningServer:
        with open_display() as progress:
            seconds = server.start(choose_profile(profile).ready_timeout_seconds, progress)
        tell(f"{side.name}: up after {seconds:.0f} s, {server.facts()}")
        return RunningServer(side, server, seconds)

    try:
        with ThreadPoolExecutor(len(sides)) as pool:
            up = list(pool.map(start, sides, servers))
        yield up
    finally:
        for server in servers:
            server.stop()


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def compare_speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Put all servers under each load in turn, by loads.py."""
    work: Path = arguments.work
    counters = dict(find_engine(choose_profile(arguments.profile).engine).counters)
    with serve(arguments.sides, arguments.profile, work) as sides:
        spec = {
            "endpoints": {
                each.side.name: {
                    **{"url": each.server.url, "model": SERVED_NAME, "socket": None},
                    "counters": counters,
                }
                for each in sides
            },
            "tokenizer": str(arguments.sides[0].model),
            "loads": [vars(load) for load in arguments.load],
            "output": str(work / "loads.jsonl"),
            "deadline": arguments.until or 0.0,
        }
        (work / "spec.json").write_text(json.dumps(spec))
        words = [serving_python(arguments.profile), HERE / "loads.py", work / "spec.json"]
        subprocess.run(
            [str(word) for word in words],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE.parents[1])},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        starts = {each.side.name: each.found for each in sides}
    rows = [json.loads(line) for line in (work / "loads.jsonl").read_text().splitlines()]
    found = summarize(rows, [side.name for side in arguments.sides])
    for name, load in found.items():
        tell(f"{name}: {json.dumps(load)}")
    return {"starts": starts, "driver": driver_facts(), "loads": found}


def summarize(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return medians by load and side, and each side's ratio to the first in the same pass.

    The first pass warms up; it counts where it is the only one.
    """
    found: dict[str, Any] = {}
    for load in dict.fromkeys(row["load"] for row in rows):
        of = [row for row in rows if row["load"] == load]
        passes = sorted({row["pass"] for row in of})
        counted = passes[1:] or passes
        sides: dict[str, Any] = {}
        rates: dict[str, dict[int, float]] = {}
        for name in names:
            mine = [row for row in of if row["side"] == name and row["pass"] in counted]
            rates[name] = {row["pass"]: row["output_tokens_per_s"] for row in mine}
            ratios = [
                rate / rates[names[0]][number]
                for number, rate in rates[name].items()
                if number in rates[names[0]]
            ]
            sides[name] = {
                key: statistics.median(row[key] for row in mine) if mine else None
                for key in ("output_tokens_per_s", "ttft_ms", "tpot_ms")
            } | {
                **{"failed": sum(row["failed"] for row in mine), "passes": len(mine)},
                **{"ratio": statistics.median(ratios) if ratios else None, "ratios": ratios},
            }
        found[load] = sides
    return found


def compare_starts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start one after another with all of the GPU's memory; compare `prepare plan`'s figures."""
    baseline = next(side.model for side in arguments.sides if side.name == "bf16")
    profile = arguments.profile if arguments.profile != "cpu" else arguments.gpu
    plan = prepare("plan", str(baseline), "--gpu", arguments.gpu, "--profile", profile)
    planned = {fit["variant"]: fit["tokens"] for fit in plan.get("fits", [])}
    found = {}
    for side in arguments.sides:
        with serve([side], arguments.profile, arguments.work) as (started,):
            found[side.name] = {
                **started.found,
                "kv_tokens_planned": planned.get(RECIPES[side.name]),
                "driver": driver_facts(),
                "log": telling_lines(arguments.work / f"{side.name}.log"),
            }
        facts = found[side.name]["facts"]
        tell(f"{side.name}: {facts}, planned {found[side.name]['kv_tokens_planned']} KV tokens")
    return {"servers": found, "plan": plan}


def telling_lines(log: Path) -> list[str]:
    """Return lines that warn, or name a kernel, a backend or a graph."""
    words = ("WARNING", "ernel", "backend", "raph", "KV cache", "compil")
    lines = log.read_text(errors="replace").splitlines()
    return [line[-300:] for line in lines if any(word in line for word in words)][:80]


def prepare(*words: str) -> Any:
    """Return the command's JSON output, for any exit code."""
    command = [sys.executable, "-P", "-m", "pipeline.cli.main", *words, "--json"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return json.loads(answer.stdout)
    except ValueError:
        return {"exit_code": answer.returncode, "said": answer.stdout[-2000:]}


if __name__ == "__main__":
    sys.exit(main())
