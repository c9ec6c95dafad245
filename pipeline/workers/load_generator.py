"""One load by the code of `vllm bench serve`, inside the `serve` environment."""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ServingError
from pipeline.workers.bounded_load import BACKEND, bound_load
from pipeline.workers.engine_metrics import MetricsPoller
from pipeline.workers.unix_socket import connect_through

COLUMNS = (
    *("start_s", "ttft_s", "end_s", "longest_pause_s"),
    *("input_tokens", "output_tokens", "error"),
)
MAX_ERROR_CHARACTERS = 300  # letters


@dataclass(frozen=True)
class LoadTarget:
    """What is put under load."""

    url: str  # without `/v1`
    model: str  # as requests call it
    socket: str | None  # of a server that has one
    counters: Mapping[str, str]  # the engine's names of its counters


class LoadGenerator:
    """vLLM's load generator, imported once.

    Args:
        serve: the module `vllm.benchmarks.serve`.
        workload: as in recipes/workload.py, with the file that the stage laid out.
        tokenizer: folder.
        trust_remote_code: run Python code from that folder.
    """

    def __init__(
        self,
        serve: Any,
        workload: dict[str, Any],
        *,
        tokenizer: str,
        trust_remote_code: bool,
    ) -> None:
        self._workload = workload
        self._tokenizer = tokenizer
        self._trust_remote_code = trust_remote_code
        self._serve = serve
        self._prompts = ""
        self._lengths: list[int] = []
        # A tokenizer takes seconds to load, and every load wants it.
        serve.get_tokenizer = functools.cache(serve.get_tokenizer)
        serve.get_samples = self._note_prompts(serve.get_samples)
        serve._align_prompts_to_server_tokenizer = keep_prompts
        bound_load(serve)

    def measure(
        self, endpoint: LoadTarget, *, requests: int, seed: int, rate: float | None = None
    ) -> dict[str, Any]:
        """Send one load and wait until all of it is answered.

        Args:
            endpoint: that answers.
            requests: how many to send.
            seed: of prompts and arrivals.
            rate: requests a second. vLLM's client stretches the gaps until all requests take
                requests / rate, so these two follow from a drawn number and a time.

        Returns:
            fields of a LoadRun (eval_gates/speed/load_run.py) that come from measuring.

        Raises:
            ServingError: not one request was answered.
        """
        connect_through(endpoint.socket)
        parser = argparse.ArgumentParser()
        self._serve.add_cli_args(parser)
        options = parser.parse_args(self.arguments(endpoint, requests, seed, rate))
        watch = MetricsPoller(endpoint.url, endpoint.counters)
        return asyncio.run(self._measure(options, watch))

    async def _measure(self, options: argparse.Namespace, watch: MetricsPoller) -> dict[str, Any]:
        before = await watch.counters()
        clock, unix = time.perf_counter(), time.time()
        result = await watch.poll_during(self._serve.main_async(options))
        begin = min(result["start_times"])
        columns = to_columns(result, begin, self._lengths, is_natural=self._is_natural)
        if all(columns["error"]):
            raise ServingError(
                f"not one of {len(columns['error'])} requests was answered: {columns['error'][0]}"
            )
        end = max(each for each in columns["end_s"] if each is not None)
        # The first requests of a prefix cannot find it in the cache: counted is what follows.
        begun = watch.counters_after(begin + self._warm_after(columns["end_s"]))
        after = await watch.counters()
        return {
            "prompts_sha256": self._prompts,
            "started": unix + begin - clock,
            "seconds": end,
            "requests": columns,
            "before": begun if begun not in (None, after) else before,
            "after": after,
            "samples": watch.queue_between(begin, begin + end),
            **watch.lag_between(begin, begin + end),
            "runnable": watch.runnable_between(begin, begin + end),
            "cpus": os.cpu_count(),
        }

    @property
    def _is_natural(self) -> bool:
        """Whether an answer ends where the model ends it."""
        return self._workload.get("output") == "natural"

    def _warm_after(self, ends: list[float | None]) -> float:
        """Return seconds until the first wave is answered, or a rate's warm-up ends."""
        at_once = self._workload["arrivals"]["concurrency"]
        if at_once:
            return max((each for each in ends[:at_once] if each is not None), default=0.0)
        return float(self._workload["warmup_seconds"])

    def arguments(
        self, endpoint: LoadTarget, requests: int, seed: int, rate: float | None = None
    ) -> list[str]:
        """Return the command line of `vllm bench serve`.

        No request precedes the load: readiness checks and warm-ups of one prompt would be in the
        prefix cache before it begins.
        """
        arrivals = self._workload["arrivals"]
        return [
            *("--backend", BACKEND, "--endpoint", "/v1/completions"),
            *("--base-url", endpoint.url, "--model", endpoint.model),
            *("--tokenizer", self._tokenizer, "--seed", str(seed)),
            *("--num-prompts", str(requests), "--num-warmups", "0"),
            *([] if self._is_natural else ["--ignore-eos"]),
            *("--temperature", "0", "--disable-tqdm", "--save-detailed"),
            *(["--trust-remote-code"] if self._trust_remote_code else []),
            *(["--request-rate", str(rate)] if rate else []),
            *(
                ["--max-concurrency", str(arrivals["concurrency"])]
                if arrivals["concurrency"]
                else []
            ),
            *self._dataset(seed),
        ]

    def _dataset(self, seed: int) -> list[str]:
        workload = self._workload
        if workload["kind"] == "random":
            return [
                *("--dataset-name", "random"),
                *("--random-input-len", str(workload["input_tokens"])),
                *("--random-output-len", str(workload["output_tokens"])),
            ]
        if workload["kind"] == "shared_prefix":
            return [
                *("--dataset-name", "prefix_repetition"),
                *("--prefix-repetition-num-prefixes", str(workload["prefixes"])),
                *("--prefix-repetition-prefix-len", str(workload["prefix_tokens"])),
                *("--prefix-repetition-suffix-len", str(workload["suffix_tokens"])),
                *("--prefix-repetition-output-len", str(workload["output_tokens"])),
            ]
        return ["--dataset-name", "custom"]  # see _read_prompts

    def _read_prompts(self, requests: int, seed: int, tokenizer: Any) -> list[Any]:
        """Return the file's prompts in the load's order.

        vLLM's class for it needs pandas, which the environment lacks. An earlier prompt is in the
        prefix cache, but not under this load's salt.
        """
        with Path(self._workload["file"]).open() as lines:
            prompts = [json.loads(line)["prompt"] for line in lines]
        random.Random(seed).shuffle(prompts)  # noqa: S311  # traffic, no secret
        return [
            self._serve.SampleRequest(
                prompt=prompt,
                prompt_len=len(tokenizer(prompt).input_ids),
                expected_output_len=self._workload["output_tokens"],
                request_overrides={"cache_salt": f"{seed}.{number // len(prompts)}"},
            )
            for number, prompt in zip(range(requests), itertools.cycle(prompts), strict=False)
        ]

    def _note_prompts(self, get_samples: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Wrap the function, and keep a digest of all prompts."""

        def get(options: argparse.Namespace, tokenizer: Any) -> list[Any]:
            if self._workload["kind"] == "requests":
                samples = self._read_prompts(options.num_prompts, options.seed, tokenizer)
            else:
                samples = get_samples(options, tokenizer)
            self._lengths = [each.expected_output_len for each in samples]
            asked = [[each.prompt, each.expected_output_len, each.timestamp] for each in samples]
            self._prompts = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
            return samples

        return get


async def keep_prompts(_url: str, _model: str, requests: list[Any], *_: Any) -> list[Any]:
    """Return the prompts as drawn, instead of vLLM's alignment to the server's tokenizer.

    That alignment uses the endpoint's `/tokenize` and `/detokenize`: a candidate would choose its
    own prompts, and the two sides would get different ones.
    """
    return requests


def to_columns(
    result: Mapping[str, Any], begin: float, lengths: Sequence[int], *, is_natural: bool = False
) -> dict[str, list[Any]]:
    """Return timings of every request in seconds since `begin`, from vLLM's detailed result.

    An answer of another length than requested is a failed request: a shorter one is faster, and a
    server could report more tokens than it sent. A natural answer may be shorter.

    Args:
        result: of `main_async`, in the order of asking.
        begin: second of the client's clock at which the load began.
        lengths: requested tokens of each request.
        is_natural: an answer ends where the model ends it.
    """
    rows = list(_rows(result, begin, lengths, is_natural))
    return {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}


def _rows(
    result: Mapping[str, Any], begin: float, lengths: Sequence[int], is_natural: bool
) -> Iterator[tuple[Any, ...]]:
    columns = ("start_times", "ttfts", "latencies", "itls", "input_lens", "output_lens", "errors")
    rows = zip(*(result[name] for name in columns), lengths, strict=True)
    for start, ttft, latency, pauses, asked, came, error, length in sorted(
        rows, key=lambda row: row[0]
    ):
        since = start - begin
        words = (error.strip().splitlines() or [""])[-1][:MAX_ERROR_CHARACTERS]
        if not words and not (0 < came <= length if is_natural else came == length):
            words = f"{came} tokens came, {length} were asked for" if came else "no token came"
        if words:
            yield since, None, None, None, asked, 0, words
        else:
            yield since, ttft, since + latency, max(pauses, default=0.0), asked, came, None
