"""A KV cache of too few bits: short questions are answered as before, long texts are forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from port_server import PortServer
from prepare_command import prepare

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1800)]

PLUGIN = Path(__file__).parent / "few_kv_bits"
BITS = 4
POLICY = """
name: long-texts
summary: the quiz and long texts
suites:
  quiz:
    {kind: mmlu, prompt_format: cloze, num_fewshot: 0, sources: [builtin],
     margins: {int4: 0.2}}
  needles:
    {kind: needles, prompt_format: completion, lengths: [512, 1024], cases: 32, max_tokens: 48,
     margins: {int4: 0.2}}
"""


@pytest.fixture(scope="module")
def few_bits(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The demo model as the shared server has it, with few bits in its cache."""
    folder = tmp_path_factory.mktemp("few_kv_bits")
    about = folder / "few_kv_bits-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: few-kv-bits\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfew_kv_bits = few_kv_bits:register\n"
    )
    arguments = ServingArguments.of(cpu_profile, is_baseline=True)
    exact = {"max-model-len": 4096, "block-size": 32, "dtype": "float32"}
    arguments.engine_arguments.update(exact)
    own = {"PYTHONPATH": f"{folder}:{PLUGIN}", "FEW_KV_BITS": str(BITS)}
    arguments.environment.update(own)
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    server = PortServer(python, demo_model, arguments, folder / "server.log")
    try:
        server.start(cpu_profile.ready_timeout_seconds, NullProgress())
        yield server
    finally:
        server.stop()


def test_needles_fails_and_the_quiz_passes(
    server: Server, few_bits: Server, demo_model: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    answer = prepare(
        tmp_path / "store",
        "gate",
        *("--baseline", server.url, "--baseline-model", SERVED_NAME),
        *("--candidate", few_bits.url, "--candidate-model", SERVED_NAME),
        *("--tokenizer", str(demo_model), "--policy", str(policy), "--family", "int4", "--json"),
    )
    assert answer.returncode == 4, answer.stderr
    (variant,) = json.loads(answer.stdout)["variants"]
    found = {gate["name"]: gate for gate in variant["gates"]}
    print({name: (gate["baseline"], gate["candidate"], gate["n"]) for name, gate in found.items()})
    assert found["quiz"]["verdict"] == "pass"
    needles = found["needles"]
    assert needles["verdict"] == "fail"
    assert needles["baseline"] > 0.5
    groups = {group["group"]: group for group in needles["groups"]}
    assert {"512 tokens", "1024 tokens", "single", "multi key", "multi value"} <= groups.keys()
    assert groups["single"]["candidate"] < groups["single"]["baseline"] - 0.3
