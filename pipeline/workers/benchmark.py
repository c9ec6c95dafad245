"""Worker: `vllm bench serve` as a library call, inside the `serve` environment."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.engine_metrics import DraftCount
from pipeline.workers.unix_socket import connect_through

# What `vllm bench serve` names the lists that it keeps of single requests.
PER_REQUEST = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure the endpoint under the workload.

    Args:
        spec: workload (as in a profile), url, model (served name), tokenizer (folder), socket (of
            a server that has one), counters (the engine's names of them, where it drafts).
        output: receives requests.json, with start and timings of every request in seconds.

    Returns:
        output tokens/s, request counts, percentiles of TTFT, TPOT and ITL in milliseconds, and
        what was drafted.
    """
    connect_through(spec.get("socket"))  # before the load generator is imported
    import vllm
    from vllm.benchmarks.serve import add_cli_args, main

    follow_bars(progress)
    count = DraftCount(spec["url"], spec["counters"])
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    result_file = output / "bench.json"
    main(parser.parse_args(arguments(spec, result_file)))
    measured = json.loads(result_file.read_text())
    result_file.unlink()
    requests = {name: measured.get(name) for name in PER_REQUEST}
    (output / "requests.json").write_text(json.dumps(requests))
    latencies = {
        f"{name}_ms_p{percentile}": measured[f"p{percentile}_{name}_ms"]
        for name in ("ttft", "tpot", "itl")
        for percentile in (50, 99)
    }
    return {
        "output_tokens_per_s": measured["output_throughput"],
        "requests_per_s": measured["request_throughput"],
        "requests": spec["workload"]["requests"],
        "failed_requests": spec["workload"]["requests"] - measured["completed"],
        "duration_seconds": measured["duration"],
        "engine_version": vllm.__version__,
        **count.facts(),
        **latencies,
    }


def arguments(spec: dict[str, Any], result_file: Path) -> list[str]:
    """The command line of `vllm bench serve` for this workload."""
    workload = spec["workload"]
    return [
        *("--backend", "openai", "--endpoint", "/v1/completions"),
        *("--base-url", spec["url"], "--model", spec["model"], "--tokenizer", spec["tokenizer"]),
        *("--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(workload["input_tokens"])),
        *("--random-output-len", str(workload["output_tokens"])),
        *("--num-prompts", str(workload["requests"])),
        *("--max-concurrency", str(workload["concurrency"])),
        *("--num-warmups", str(workload["warmup_requests"])),
        *("--seed", str(workload["seed"])),
        *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"),
        *("--save-result", "--save-detailed"),
        *(["--trust-remote-code"] if spec["trust_remote_code"] else []),
        *("--result-dir", str(result_file.parent), "--result-filename", result_file.name),
    ]


def follow_bars(progress: Progress) -> None:
    """Turn the benchmark's own progress bar into events."""
    import tqdm.std

    original = tqdm.std.tqdm.update

    def update(bar: Any, n: float | None = 1) -> Any:
        shown = original(bar, n)
        if bar.total:
            progress.advance("benchmark", int(bar.n), int(bar.total), "requests")
        return shown

    tqdm.std.tqdm.update = update
