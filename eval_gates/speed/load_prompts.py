"""Prompts of a load, drawn by vLLM's dataset readers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One request of a load."""

    text: str
    input_tokens: int
    output_tokens: int
    overrides: dict[str, Any] = field(default_factory=dict)  # of the request's body


@dataclass(frozen=True)
class PromptSource:
    """Prompts of a workload.

    `datasets` is `vllm.benchmarks.datasets`. Both sides share `tokenizer`: a candidate's could
    choose its prompts.
    """

    datasets: Any
    workload: dict[str, Any]
    tokenizer: Any

    def draw(self, number: int, seed: int) -> Sequence[Prompt]:
        """Draw a load's prompts, which differ by seed."""
        workload = self.workload
        if workload["kind"] == "requests":
            return self._of_file(number, seed)
        if workload["kind"] == "random":
            reader = self.datasets.RandomDataset(random_seed=seed)
            lengths = {"input_len": workload["input_tokens"]}
            drawn_number = number
        else:
            reader = self.datasets.PrefixRepetitionRandomDataset(random_seed=seed)
            lengths = {
                "num_prefixes": workload["prefixes"],
                "prefix_len": workload["prefix_tokens"],
                "suffix_len": workload["suffix_tokens"],
            }
            # The data set draws equally many prompts for each prefix, and would leave a rest out.
            drawn_number = -(-number // workload["prefixes"]) * workload["prefixes"]
        drawn = reader.sample(
            tokenizer=self.tokenizer,
            num_requests=drawn_number,
            output_len=workload["output_tokens"],
            **lengths,
        )
        return [
            Prompt(sample.prompt, sample.prompt_len, sample.expected_output_len)
            for sample in drawn[:number]
        ]

    def _of_file(self, number: int, seed: int) -> Sequence[Prompt]:
        """Return the file's prompts in the load's order, under its cache salt."""
        with Path(self.workload["file"]).open() as lines:
            prompts = [json.loads(line)["prompt"] for line in lines]  # noqa: TID251
        random.Random(seed).shuffle(prompts)  # noqa: S311  # traffic, no secret
        return [
            Prompt(
                prompt,
                len(self.tokenizer(prompt).input_ids),
                self.workload["output_tokens"],
                {"cache_salt": f"{seed}.{place // len(prompts)}"},
            )
            for place, prompt in zip(range(number), itertools.cycle(prompts), strict=False)
        ]


def open_source(
    workload: dict[str, Any], tokenizer: str, *, trust_remote_code: bool
) -> PromptSource:
    """Return the workload's prompts; the tokenizer is read once."""
    from vllm.benchmarks import datasets
    from vllm.tokenizers import get_tokenizer

    return PromptSource(
        datasets, workload, get_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    )
