"""Formats of the KV cache next to each other, by one command of the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prepare_command import prepare

from prepare.hardware import cpu_features

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.of_everything,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "avx512f" not in cpu_features(), reason="vLLM has no FP8 KV cache on a CPU without AVX-512"
    ),
]
POLICY = """
name: pairs
summary: conversations alone
suites:
  traffic:
    {kind: fidelity, prompt_format: chat, sources: [builtin], max_tokens: 16, questions: 64,
     scored_tokens: 512, margins: {fp8: 0.4}, at_depth: 32}
"""
WEIGHTS = "fp8-dynamic"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "policy.yaml").write_text(POLICY)
    return folder


def asked(root: Path, *words: str) -> list[str]:
    return [
        *("demo:smollm2-135m", "--policy", str(root / "policy.yaml"), "--recipe", WEIGHTS),
        *("--kv", "fp8,auto", "--name", "pairs", "--json", *words),
    ]


def test_a_screening_tells_what_each_format_stores(root: Path) -> None:
    done = prepare(root / "store", "model", *asked(root, "--ablate"))
    assert done.returncode == 0, done.stderr
    arms = {arm["name"]: arm for arm in json.loads(done.stdout)["screened"]}
    one_byte, two_bytes = (arms[f"{WEIGHTS}.kv-{kv_format}"] for kv_format in ("fp8", "auto"))
    assert one_byte["cache"]["kv_cache"] == "fp8"
    assert two_bytes["cache"]["kv_cache"] == arms["baseline"]["cache"]["kv_cache"]
    bytes_a_token = [float(arm["cache"]["kv_bytes_a_token"]) for arm in (one_byte, two_bytes)]
    assert bytes_a_token[1] in (2 * bytes_a_token[0], 4 * bytes_a_token[0])
    assert one_byte["effect"]["nats"] > two_bytes["effect"]["nats"]
    # The weights alone are a pair already; the cache alone stores what the pair's does.
    (part,) = (arm for arm in arms.values() if arm["is_part"])
    assert part["name"] == "baseline.kv-fp8"
    assert part["cache"]["kv_bytes_a_token"] == one_byte["cache"]["kv_bytes_a_token"]
    made = one_byte["stages"], two_bytes["stages"]
    assert made[0]["weights"] == made[1]["weights"]
    assert made[0]["first_texts"] != made[1]["first_texts"]


def test_a_promoted_pair_is_served_with_its_format(root: Path) -> None:
    done = prepare(root / "store", "model", *asked(root))
    assert done.returncode == 0, done.stderr
    variants = {each["recipe"]: each for each in json.loads(done.stdout)["variants"]}
    assert variants.keys() == {f"{WEIGHTS}.kv-fp8", f"{WEIGHTS}.kv-auto"}
    assert all("traffic beyond 32 tokens" in str(each["gates"]) for each in variants.values())
    (champion,) = (name for name, each in variants.items() if each["promoted"])
    checked = prepare(root / "store", "serve", "pairs@champion", "--check", "--json")
    assert checked.returncode == 0, checked.stderr
    told = json.loads(checked.stdout)
    assert told["arguments"]["engine_arguments"]["kv-cache-dtype"] == champion.rpartition("kv-")[2]
    assert (told["started_with"]["kv_cache"] == "fp8") == champion.endswith("fp8")


def test_a_format_that_the_engine_lacks_here_is_refused_by_plan(root: Path) -> None:
    words = asked(root)
    words[words.index("fp8,auto")] = "fp8,int4_per_token_head"
    words.remove("--name")
    words.remove("pairs")
    done = prepare(root / "store", "plan", *words)
    assert done.returncode == 2, done.stdout
    assert "int4_per_token_head" in done.stderr + done.stdout
