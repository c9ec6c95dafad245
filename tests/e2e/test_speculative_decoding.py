"""Speculative decoding on the real engine: greedy answers stay the model's own, and the engine
counts what was drafted and accepted."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from port_server import PortServer

from eval_gates.engine_metrics import counters_in
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.checkpoints.checkpoint import inspect_folder
from recipes.engines.vllm import ACCEPTANCE, DRAFTING, REFUSED_DRAFTING, Vllm
from recipes.schema import ServingProfile
from recipes.speculative import SpeculativeConfig

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.of_everything,
]

# Each says things twice, so that n-grams of the prompt come again.
PROMPTS = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef add(a, b):\n",
    "one two three four five six seven eight one two three four five six seven",
    "Roses are red, violets are blue. Roses are red, violets are",
)
TOKENS = 48
LISTS = """
import json, sys
from dataclasses import fields
from typing import get_args
from vllm.config import speculative
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
asked = parser.parse_args(["--model", "m", "--speculative-config", sys.argv[1]])
print(json.dumps({
    "methods": get_args(speculative.SpeculativeMethod),
    "rules": get_args(speculative.RejectionSampleMethod),
    "keys": [field.name for field in fields(speculative.SpeculativeConfig)],
    "asked": asked.speculative_config,
}))
"""
WAYS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3, "model": "demo"},
}


@pytest.fixture(params=WAYS)
def drafting(
    request: pytest.FixtureRequest,
    demo_model: Path,
    cpu_profile: ServingProfile,
    tmp_path: Path,
) -> Iterator[tuple[str, Server]]:
    """As the shared server, with speculative decoding; the model drafts for itself."""
    settings = load_settings()
    profile = cpu_profile.model_copy(
        update={
            "speculative": SpeculativeConfig.model_validate(WAYS[request.param]),
            "kv_cache_dtype": cpu_profile.baseline_kv_cache_dtype,
        }
    )
    drafts = profile.speculative is not None and profile.speculative.model is not None
    digest = inspect_folder(demo_model, settings.digests).digest
    arguments = ServingArguments.of(profile, is_baseline=False, draft=digest if drafts else None)
    arguments.engine_arguments.update({"max-model-len": 4096, "block-size": 32, "dtype": "float32"})
    server = PortServer(
        ensure("serve", Accelerator.CPU, settings, NullProgress()).python,
        demo_model,
        arguments,
        tmp_path / "server.log",
        draft=demo_model if drafts else None,
    )
    try:
        server.start(profile.ready_timeout_seconds, NullProgress())
        yield request.param, server
    finally:
        server.stop()


def answers(server: Server) -> list[str]:
    """What it goes on with after each prompt, greedily."""

    def ask(prompt: str) -> str:
        asked = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=300)
        return str(answer.raise_for_status().json()["choices"][0]["text"])

    return [ask(prompt) for prompt in PROMPTS]


def counters(server: Server) -> dict[str, Any]:
    """What the engine has counted."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        return counters_in(answer.read().decode(), Vllm.counters)


def test_the_locked_engine_has_what_a_profile_may_name(cpu_profile: ServingProfile) -> None:
    """Methods, rules and keys, by its own parser and lists; no server is started."""
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    drafting = SpeculativeConfig.model_validate(WAYS["ngram"])
    profile = cpu_profile.model_copy(update={"speculative": drafting})
    told = ServingArguments.of(profile, is_baseline=False).for_engine()["speculative-config"]
    asked = subprocess.run(
        [python, "-c", LISTS, str(told)], capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(asked.stdout.splitlines()[-1])
    here = {n for n, each in {**DRAFTING, **ACCEPTANCE}.items() if "cpu" in each.on}
    assert here | set(REFUSED_DRAFTING) <= {*found["methods"], *found["rules"]}
    assert found["asked"] == json.loads(str(told))
    keys = {*SpeculativeConfig.model_fields}
    assert keys <= set(found["keys"])


@pytest.mark.skipif(
    "not config.getoption('everything')", reason="three servers; `make test-all` runs it"
)
def test_greedy_answers_stay_the_models_own(server: Server, drafting: tuple[str, Server]) -> None:
    way, speculating = drafting
    assert "drafts" not in counters(server)
    begun = counters(speculating)
    assert answers(speculating) == answers(server)
    found = {name: value - begun[name] for name, value in counters(speculating).items()}
    assert found["draft_tokens"] >= found["drafts"] > 0
    assert 0 < found["accepted_tokens"] <= found["draft_tokens"]
    if way == "draft_model":  # it drafts what it would say itself
        assert found["accepted_tokens"] > 0.8 * found["draft_tokens"]
    print(way, found)
