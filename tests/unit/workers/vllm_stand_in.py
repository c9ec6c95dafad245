"""A stand-in for the module `vllm.benchmarks.serve`: it takes the options and answers."""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any

# The options of vLLM 0.32 and 0.33 that are used.
OPTIONS = (
    *("backend", "endpoint", "base-url", "model", "tokenizer", "request-rate", "max-concurrency"),
    *(
        "dataset-name",
        "dataset-path",
        "random-input-len",
        "random-output-len",
    ),
    *(
        "prefix-repetition-num-prefixes",
        "prefix-repetition-prefix-len",
    ),
    *("prefix-repetition-suffix-len", "prefix-repetition-output-len", "temperature"),
    *("timed-trace-chunk-hash-size", "timed-trace-sec-multiplier"),
)
COUNTS = ("seed", "num-prompts", "num-warmups")
FLAGS = (
    *("ignore-eos", "disable-tqdm", "save-detailed", "trust-remote-code", "skip-chat-template"),
    "no-self-timed",
)


@dataclass
class Sample:
    prompt: str
    prompt_len: int = 8
    expected_output_len: int = 3
    timestamp: float | None = None
    request_overrides: dict[str, Any] = field(default_factory=dict)


class Tokenizer:
    def __call__(self, text: str) -> Any:
        return argparse.Namespace(input_ids=text.split())


@dataclass
class Serve:
    """Answers a request in a second; the endpoint named `dead` answers none."""

    asked: list[argparse.Namespace] = field(default_factory=list)
    sent: list[list[Sample]] = field(default_factory=list)
    tokenizers: int = 0
    SampleRequest = Sample

    def __post_init__(self) -> None:
        self.aiohttp = argparse.Namespace(ClientSession=object, ClientTimeout=dict)
        self.ASYNC_REQUEST_FUNCS: dict[str, Any] = {"openai": None}

    def add_cli_args(self, parser: argparse.ArgumentParser) -> None:
        for name in OPTIONS:
            parser.add_argument(f"--{name}")
        for name in COUNTS:
            parser.add_argument(f"--{name}", type=int)
        for name in FLAGS:
            parser.add_argument(f"--{name}", action="store_true")

    def get_tokenizer(self, name: str, **_: Any) -> Tokenizer:
        self.tokenizers += 1
        return Tokenizer()

    def get_samples(self, options: argparse.Namespace, tokenizer: Any) -> list[Sample]:
        chance = random.Random(options.seed)
        return [Sample(str(chance.random())) for _ in range(options.num_prompts)]

    async def _align_prompts_to_server_tokenizer(
        self, _url: str, _model: str, requests: list[Sample], _ssl: Any = None
    ) -> list[Sample]:
        """As a server would have them whose `/tokenize` finds them too long."""
        return [replace(each, prompt="short") for each in requests]

    async def main_async(self, options: argparse.Namespace) -> dict[str, Any]:
        self.asked.append(options)
        await asyncio.sleep(0)  # the poller has begun
        samples = self.get_samples(options, self.get_tokenizer(options.tokenizer))
        url = options.base_url
        self.sent.append(await self._align_prompts_to_server_tokenizer(url, "m", samples, None))
        n = len(self.sent[-1])
        is_dead = "dead" in options.base_url
        at_once = int(options.max_concurrency or n)
        return {
            "start_times": [100.0 + place // at_once for place in range(n)],
            "ttfts": [0.25] * n,
            "itls": [[0.25, 0.5]] * n,
            "latencies": [1.0] * n,
            "input_lens": [8] * n,
            "output_lens": [0 if is_dead else each.expected_output_len for each in self.sent[-1]],
            "errors": ["Traceback\nOSError: no server\n" if is_dead else ""] * n,
        }
