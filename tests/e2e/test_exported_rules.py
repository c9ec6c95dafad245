"""The exported command serves; a real Prometheus finds a series for each exported expression."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from free_port import free_port

from artifacts.deploy.export import CACHES, WEIGHTS, Export
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.serving_arguments import ServingArguments
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.schema import ServingProfile

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from some_export import CERTIFIED, deployable, exported, files

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.of_everything,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
FIRES = "PrepareAboveCertifiedRate"
KEY = "a key"


@dataclass(frozen=True)
class Exported:
    """A version, and the server that its export starts."""

    version: Export
    url: str


@pytest.fixture(scope="module")
def served(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exported]:
    """The demo model by the exported command and variables alone, with drafts by n-grams."""
    profile = cpu_profile.model_copy(update={"kv_cache_dtype": cpu_profile.baseline_kv_cache_dtype})
    serving = ServingArguments.of(profile, is_baseline=False).to_dict()
    serving["engine_arguments"]["max-model-len"] = 1024
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    judged = deployable("cpu", **{**serving, "speculative": speculative})
    # The load exceeds the rate, so that the alert fires.
    version = exported(judged, certified=CERTIFIED.model_copy(update={"rate": 0.001}))
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    here = {
        str(version.python.parent): str(python.parent),
        WEIGHTS: str(demo_model),
        CACHES: str(folder),
        "0.0.0.0": "127.0.0.1",
        "8000": str(port),
    }

    def localize(text: str) -> str:
        for theirs, ours in here.items():
            text = text.replace(theirs, ours)
        return text.replace("$$", "$")

    deployment = yaml.safe_load(files("kubernetes", version)["deployment.yaml"])
    (made,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: localize(each["value"]) for each in made["env"] if "value" in each}
    # The image has this one.
    environment = {**variables, "VLLM_API_KEY": KEY, "HOME": str(folder)}
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [localize(word) for word in made["command"]],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=10) as client:
            wait_for(client, "/health", server, folder / "log", 600)
        yield Exported(version, url)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@pytest.fixture(scope="module")
def prometheus(
    served: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Prometheus with the exported job and rules, faster than in use, after some load."""
    folder = tmp_path_factory.mktemp("prometheus")
    made = files("monitoring", served.version)
    rules = yaml.safe_load(made["rules.yaml"])
    for rule in rules["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = "1s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = yaml.safe_load(made["scrape.yaml"])
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [served.url.removeprefix("http://")]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = ["rules.yaml"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30) as client:
            wait_for(client, "/-/ready", process, folder / "log", 60)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda _: ask(served.url), range(24)))
            time.sleep(3)  # two scrapes more, and an evaluation of the rules
            yield client
    finally:
        process.terminate()
        process.wait(30)


def wait_for(
    client: httpx.Client, path: str, process: subprocess.Popen[bytes], log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if client.get(path).is_success:
                return
        except httpx.HTTPError:
            pass
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)


def ask(url: str) -> None:
    """Ask for text that repeats, of which n-grams are found."""
    body = {"model": "model", "prompt": "one two three " * 40, "max_tokens": 24, "temperature": 0}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(
        f"{url}/v1/completions", json=body, headers=headers, timeout=300, trust_env=False
    )
    answer.raise_for_status()


def series(client: httpx.Client, expression: str) -> list[Any]:
    answer = client.get("/api/v1/query", params={"query": expression})
    answer.raise_for_status()
    found: list[Any] = answer.json()["data"]["result"]
    return found


def test_every_expression_returns_a_series(prometheus: httpx.Client, served: Exported) -> None:
    made = files("monitoring", served.version)
    rules = yaml.safe_load(made["rules.yaml"])["groups"][0]["rules"]
    panels = json.loads(made["dashboard.json"])["panels"]
    expressions = {rule["expr"] for rule in rules if "record" in rule}
    expressions |= {rule["record"] for rule in rules if "record" in rule}
    expressions |= {target["expr"] for panel in panels for target in panel["targets"]}
    # Without their comparison, which is true only where something is wrong.
    conditions = [each for rule in rules if "alert" in rule for each in rule["expr"].split(" and ")]
    expressions |= {re.split(" (?:<|>|<=) ", condition)[0] for condition in conditions}
    scaling = yaml.safe_load(files("kubernetes", served.version)["scaling.yaml"])
    expressions |= {each["metadata"]["query"] for each in scaling["spec"]["triggers"]}
    empty = sorted(each for each in expressions if not series(prometheus, each))
    assert not empty
    assert len(expressions) > 40


def test_values_are_those_of_the_load(prometheus: httpx.Client) -> None:
    def value(name: str) -> float:
        ((_, text),) = [each["value"] for each in series(prometheus, f"prepare:{name}")]
        return float(text)

    assert 0 < value("prefix_cache_hit_ratio") < 1
    assert value("requests_per_server") > 0.001
    assert value("draft_acceptance_length") >= 1
    assert value("ttft_seconds:p95") > 0
    assert 0 <= value("ttft_p95_slo_0:excess_ratio_5m") <= 1


def test_an_alert_fires_when_its_condition_is_true(prometheus: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while True:
        alerts = prometheus.get("/api/v1/alerts").json()["data"]["alerts"]
        firing = {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}
        if FIRES in firing:
            break
        assert time.monotonic() < deadline, alerts
        time.sleep(1)
    assert "PrepareServerDown" not in firing
