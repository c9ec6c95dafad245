"""FP8 by our stream, compared with llm-compressor's model_free_ptq and with plain copying.

    .venv/bin/python benchmarks/fp8_stream.py
    .venv/bin/python benchmarks/fp8_stream.py --gigabytes 6 --rounds 2 --folder /data/scratch

A synthetic bf16 checkpoint (layers of an 8B Llama's shapes cut down, three shards) lies in the page
cache. In turn, each in a separate process in the managed quantize environment, and for some
rounds, it is quantized to FP8_DYNAMIC by model_free_ptq and by us, and the roof is measured: as
many bytes read as the checkpoint has, as many written as the variant has, side by side in two
threads with a third that flushes, nothing computed. It is done in pieces of several sizes, through
the page cache and past it (O_DIRECT); the fastest of these is the round's roof.

Our finished files are on the disk (fsync), since a resumed run trusts them; so are the roof's.
model_free_ptq does not wait for the disk, which is to its advantage here. Two more lines show what
is left without the disk: us and the roof with all flushing turned off. Time is counted from after
the imports to the end of the call; "CPU" is what the process used of the cores in it, which says
more than the clock where others use them too; memory is the process's largest resident set, torch
(some 300 MB) included. The order changes from round to round: on a virtual machine the first to
write pays for memory that the host has taken back, which can cost more than all else.

Takes about 3 minutes on 2 idle cores. The last line is JSON with the ratios of the medians, and
whether the targets are met: 3 times faster than model_free_ptq, 0.8 of the roof.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEME = "FP8_DYNAMIC"
IGNORE = ["lm_head"]
RESULT = "RESULT "
WANTED_RATIO = 3.0
WANTED_SHARE = 0.8
CHUNKS_BYTES = (2**20, 2**22, 2**25)
DIRECT_BYTES = 2**12  # what O_DIRECT wants lengths to be multiples of
PUSH_BYTES = 2**26
WAYS = {
    "model_free_ptq": "llm-compressor's model_free_ptq",
    "ours": "ours",
    "roof": "the roof",
    "ours_unflushed": "ours, not waiting for the disk",
    "roof_unflushed": "the roof, not waiting for the disk",
}
HIDDEN, INTERMEDIATE, KEYS, VOCABULARY, SHARDS = 4096, 14336, 1024, 32768, 3


def main() -> int:
    """Measure all ways in turn, print; 0 where the targets are met."""
    arguments = parse_arguments()
    if arguments.step:
        print(RESULT + json.dumps(run_step(json.loads(arguments.step))))
        return 0
    python = quantize_python()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="fp8-stream-") as temporary:
        found = measure(python, Path(temporary), arguments)
    summary = summarize(found)
    print_table(found, summary)
    print(json.dumps(summary))
    return 0 if summary["targets_met"] else 1


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the script calls itself with --step in the quantize environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.7, help="of the source (default 1.7)")
    parser.add_argument("--rounds", type=int, default=3, help="of all ways (default 3)")
    parser.add_argument("--folder", type=Path, help="for the files (default: the system's)")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args()


def quantize_python() -> Path:
    """Return the interpreter of the managed quantize environment."""
    sys.path.insert(0, str(ROOT))
    from pipeline.cli.display import open_display
    from pipeline.environments.definition import detect_accelerator
    from pipeline.environments.environment import ensure
    from pipeline.environments.settings import load_settings

    accelerator = detect_accelerator()
    with open_display() as progress:
        return ensure("quantize", accelerator, load_settings(), progress).python


def measure(python: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds; a list of what each way took."""
    source = folder / "source"
    made = run_in_environment(
        python, {"way": "make", "source": str(source), "gigabytes": arguments.gigabytes}
    )
    found: dict[str, Any] = {"source_bytes": made["bytes"], **{way: [] for way in WAYS}}
    # Not counted, but the roof has to know what we write.
    sizes = measure_way(python, "ours", source, folder / "output", [])["sizes"]
    for number in range(arguments.rounds):
        order = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        for way in order:
            answer = measure_fastest(python, way, source, folder / "output", sizes)
            found[way].append(answer)
            found["versions"] = answer["versions"]
            print(f"round {number + 1}, {WAYS[way]}: {answer['seconds']:.2f} s", file=sys.stderr)
    found["output_bytes"] = sum(sizes)
    return found


def measure_fastest(
    python: Path, way: str, source: Path, output: Path, sizes: list[int]
) -> dict[str, Any]:
    """Measure one way; of the roof the fastest of its kinds, as no single one is it everywhere."""
    kinds: list[dict[str, Any]] = [{}]
    if way.startswith("roof"):
        kinds = [
            {"chunk": chunk, "direct": past} for chunk in CHUNKS_BYTES for past in (False, True)
        ]
    answers = [measure_way(python, way, source, output, sizes, **kind) for kind in kinds]
    return min(answers, key=lambda answer: float(answer["seconds"]))


def measure_way(
    python: Path, way: str, source: Path, output: Path, sizes: list[int], **kind: Any
) -> dict[str, Any]:
    """Measure one way, into a separate folder that is removed again."""
    output.mkdir()
    os.sync()
    spec = {"way": way, "source": str(source), "output": str(output), "sizes": sizes, **kind}
    answer = run_in_environment(python, spec)
    shutil.rmtree(output)
    return answer


def run_in_environment(python: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Run one step in a process of the quantize environment."""
    command = [str(python), "-I", str(Path(__file__)), "--step", json.dumps(spec)]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{spec['way']} failed:\n{answer.stderr[-3000:]}")
    line = next(line for line in answer.stdout.splitlines() if line.startswith(RESULT))
    result: dict[str, Any] = json.loads(line.removeprefix(RESULT))
    return result


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the last line, by medians."""
    seconds = {way: statistics.median(run["seconds"] for run in found[way]) for way in WAYS}
    faster = seconds["model_free_ptq"] / seconds["ours"]
    share = seconds["roof"] / seconds["ours"]
    return {
        "source_bytes": found["source_bytes"],
        "output_bytes": found["output_bytes"],
        "cores": len(os.sched_getaffinity(0)),
        "versions": found["versions"],
        "seconds": seconds,
        "cpu_seconds": {
            way: statistics.median(run["cpu_seconds"] for run in found[way]) for way in WAYS
        },
        "peak_memory_bytes": {way: max(run["peak"] for run in found[way]) for way in WAYS},
        "vs_model_free_ptq": faster,
        "of_roof": share,
        "of_roof_unflushed": seconds["roof_unflushed"] / seconds["ours_unflushed"],
        "targets_met": faster >= WANTED_RATIO and share >= WANTED_SHARE,
    }


def print_table(found: dict[str, Any], summary: dict[str, Any]) -> None:
    """All ways, one a line."""
    versions = ", ".join(f"{name} {value}" for name, value in summary["versions"].items())
    print(f"\n{found['source_bytes'] / 1e9:.2f} GB in bf16 to {found['output_bytes'] / 1e9:.2f} GB")
    print(f"{summary['cores']} cores, {versions}\n")
    print(f"{'':36}{'seconds':>9}{'fastest':>9}{'slowest':>9}{'CPU':>7}{'peak MB':>9}{'GB/s':>7}")
    for way, name in WAYS.items():
        times = [run["seconds"] for run in found[way]]
        rate = found["source_bytes"] / 1e9 / summary["seconds"][way]
        peak = summary["peak_memory_bytes"][way] / 1e6
        print(
            f"{name:36}{summary['seconds'][way]:>9.2f}{min(times):>9.2f}{max(times):>9.2f}"
            f"{summary['cpu_seconds'][way]:>7.2f}{peak:>9.0f}{rate:>7.2f}"
        )
    print(
        f"\n{summary['vs_model_free_ptq']:.1f} times faster than model_free_ptq "
        f"(wanted: {WANTED_RATIO:.0f}), {summary['of_roof']:.2f} of the roof's speed "
        f"(wanted: {WANTED_SHARE}), {summary['of_roof_unflushed']:.2f} without the disk\n"
    )


# --- in the quantize environment ----------------------------------------------------------------


def run_step(spec: dict[str, Any]) -> dict[str, Any]:
    """Make the checkpoint, or measure one way."""
    sys.path.insert(0, str(ROOT))  # the environment does not have this project
    source = Path(spec["source"])
    if spec["way"] == "make":
        return {"bytes": make_checkpoint(source, spec["gigabytes"])}
    output = Path(spec["output"])
    if spec["way"].endswith("_unflushed"):
        os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
    way = spec["way"].removesuffix("_unflushed")
    if way == "roof":
        sources = sorted(source.glob("*.safetensors"))

        def work() -> None:
            roof(sources, output, spec["sizes"], spec["chunk"], direct=spec["direct"])
    else:
        work = prepare(way, source, output)
    used, started = time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - used,
        "peak": peak_memory_bytes(),
        "sizes": [file.stat().st_size for file in sorted(output.glob("*.safetensors"))],
        "versions": versions(),
    }


def prepare(way: str, source: Path, output: Path) -> Any:
    """Return the work to measure, with all its imports done."""
    if way == "model_free_ptq":
        from llmcompressor import model_free_ptq
        from loguru import logger

        logger.remove()
        return lambda: model_free_ptq(source, output, scheme=SCHEME, ignore=IGNORE)
    import compressed_tensors.quantization.lifecycle.forward  # noqa: F401

    from pipeline.core.events import NullProgress
    from pipeline.workers.fp8_stream.stream import stream_fp8

    return lambda: stream_fp8(source, output, SCHEME, IGNORE, NullProgress())


def roof(
    sources: list[Path], output: Path, sizes: list[int], chunk: int, *, direct: bool = False
) -> None:
    """Read the sources in one thread, write files of these sizes in another.

    Args:
        sources: to read.
        output: folder to write to.
        sizes: bytes of each file to write.
        chunk: bytes of a read or write.
        direct: past the page cache.
    """
    reading = threading.Thread(target=read_all, args=(sources, chunk, direct))
    reading.start()
    noise = mmap.mmap(-1, chunk)  # whose address suits O_DIRECT
    noise.write(os.urandom(chunk))
    with ThreadPoolExecutor(1) as flusher:
        for number, size in enumerate(sizes):
            write_file(output / f"{number}.safetensors", size, memoryview(noise), flusher, direct)
    reading.join()


def read_all(sources: list[Path], chunk: int, direct: bool) -> None:
    """Read every byte into one buffer."""
    room = mmap.mmap(-1, chunk)
    for path in sources:
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        while os.readv(descriptor, [room]):
            pass
        os.close(descriptor)


def write_file(
    path: Path, size: int, noise: memoryview, flusher: ThreadPoolExecutor, direct: bool
) -> None:
    """Write a file of that size, flushed by another thread as it grows."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0))
    os.posix_fallocate(descriptor, 0, size)
    unpushed = 0
    for start in range(0, size, len(noise)):
        piece = noise[: size - start]
        if direct and len(piece) % DIRECT_BYTES:  # the last one
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        unpushed += os.pwrite(descriptor, piece, start)
        if unpushed >= PUSH_BYTES:
            flusher.submit(os.fdatasync, descriptor)
            unpushed = 0

    def finish() -> None:
        os.fsync(descriptor)
        os.close(descriptor)

    flusher.submit(finish)


def make_checkpoint(folder: Path, gigabytes: float) -> int:
    """Write layers until the size is reached; returns the bytes of weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.empty(rows, columns)
        return values.normal_(0, 0.02, generator=generator).to(torch.bfloat16)

    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KEYS, HIDDEN),
        "self_attn.v_proj": (KEYS, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    layer_bytes = 2 * sum(rows * columns for rows, columns in shapes.values())
    outside = 2 * VOCABULARY * HIDDEN * 2
    layers = max(1, round((gigabytes * 1e9 - outside) / layer_bytes))
    owners = [number * SHARDS // layers for number in range(layers)]
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(SHARDS):
        tensors: dict[str, Any] = {}
        if shard == 0:
            tensors["model.embed_tokens.weight"] = matrix(VOCABULARY, HIDDEN)
        if shard == SHARDS - 1:
            tensors["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
            tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for layer in (number for number, owner in enumerate(owners) if owner == shard):
            prefix = f"model.layers.{layer}"
            for name, shape in shapes.items():
                tensors[f"{prefix}.{name}.weight"] = matrix(*shape)
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{prefix}.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        if not tensors:
            continue
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    return total


def peak_memory_bytes() -> int:
    """Largest resident set of this process so far."""
    from pipeline.workers.protocol import peak_memory_bytes as peak

    return peak()


def versions() -> dict[str, str]:
    """Sizes and types of what is compared."""
    from importlib.metadata import version

    return {name: version(name) for name in ("llmcompressor", "compressed-tensors", "torch")}


if __name__ == "__main__":
    sys.exit(main())
