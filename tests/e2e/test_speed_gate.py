"""`prepare gate` puts two real servers under load: the slow one fails its ratio, and the one
without a prefix cache is refused where hits are declared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from port_server import EXACT, served
from prepare_command import prepare

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from recipes.schema import ServingProfile

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.of_everything,
    # A load that other work disturbs is refused, rightly, and a CI's machine may be busy.
    pytest.mark.skipif(
        "not config.getoption('everything')", reason="measures speed; `make test-all` runs it"
    ),
]

SUMMARIES = {
    **{"kind": "rouge", "margins": {"fp8": 0.15}, "sources": ["builtin"]},
    **{"questions": 64, "max_tokens": 8},
}
AT_ONCE = {"concurrency": 8}
SMALL = {"kind": "random", "input_tokens": 16, "output_tokens": 8, "arrivals": AT_ONCE}
SHARED = {
    **{"kind": "shared_prefix", "prefix_tokens": 128, "suffix_tokens": 16, "output_tokens": 4},
    **{"hit_rate": 0.88, "arrivals": AT_ONCE},
}
SPEED = {
    "ratio": {"min_ratio": 0.8, "workloads": ["small", "shared"], "blocks": 5},
    "workloads": {
        "small": {**SMALL, "seconds": 1.0},
        "shared": {**SHARED, "seconds": 1.0},
    },
}


@pytest.fixture(scope="module")
def narrow(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """As the shared server, with two concurrent requests and no prefix cache."""
    changes = {**EXACT, "max-num-seqs": 2, "no-enable-prefix-caching": True}
    log = tmp_path_factory.mktemp("narrow") / "server.log"
    with served(demo_model, cpu_profile, log, changes=changes) as found:
        yield found


def judge(baseline: Server, candidate: Server, tokenizer: Path, store: Path) -> dict[str, Any]:
    """What the command says of each gate, by its name."""
    store.mkdir()
    policy = store / "policy.yaml"
    described = {"name": "fast", "summary": "speed", "suites": {"rouge": SUMMARIES}}
    policy.write_text(yaml.safe_dump({**described, "speed": SPEED}))
    answer = prepare(
        store,
        "gate",
        *("--baseline", baseline.url, "--baseline-model", SERVED_NAME),
        *("--candidate", candidate.url, "--candidate-model", SERVED_NAME),
        *("--tokenizer", str(tokenizer), "--policy", str(policy), "--json"),
    )
    assert answer.returncode == 4, answer.stderr[-3000:]
    (variant,) = json.loads(answer.stdout)["variants"]
    return {gate["name"].removeprefix("speed "): gate for gate in variant["gates"]}


def test_a_narrow_server_fails_and_one_without_a_cache_is_refused(
    server: Server, narrow: Server, demo_model: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    found = judge(server, narrow, demo_model, store)
    small, shared = found["ratio.small"], found["ratio.shared"]
    assert (small["verdict"], small["starts"]) == ("fail", "once")
    assert small["upper"] < small["threshold"]
    assert shared["verdict"] != "pass"
    assert {cause["kind"] for cause in shared["faults"]} == {"hit_rate"}
    assert {cause["side"] for cause in shared["faults"]} == {"candidate"}
    assert prepare(store, "verify").returncode == 0
    changed = '"output_tokens":[8'
    files = store.glob("stages/speed/*/loads.jsonl")
    (loads,) = (file for file in files if changed in file.read_text())
    loads.write_text(loads.read_text().replace(changed, '"output_tokens":[9', 1))
    assert prepare(store, "verify").returncode == 1
