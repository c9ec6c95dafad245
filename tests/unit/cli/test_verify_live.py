"""`prepare verify --live`: whether a server is what the version was judged as."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_run import NAME, RECIPE, FakeRun, judged_run
from http_stand_in import HttpStandIn, SilentHandler
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.core.errors import ServingError, UsageError
from recipes.engines import find_engine

ENGINE_VERSION = "0.33.0"
SERVING = {
    "engine_arguments": {"max-model-len": 2048, "block-size": 32, "kv-cache-dtype": "fp8"},
    "environment": {},
}


@dataclass(frozen=True)
class Served:
    """What a server shows; by default what was judged."""

    version: str = ENGINE_VERSION
    length: int = 2048
    # A real server's are long.
    metrics: str = (
        "# HELP of another metric\n" * 999
        + 'vllm:cache_config_info{block_size="32",cache_dtype="fp8",engine="0"} 1.0\n'
    )
    perplexities: list[float] = field(default_factory=lambda: [10.0, 10.0, 10.0])
    sample: str = ""  # as of the pretended model


class Server(HttpStandIn):
    def __init__(self, served: Served) -> None:
        perplexities = iter(served.perplexities)

        class Handler(SilentHandler):
            def do_GET(self) -> None:
                answers: dict[str, Any] = {
                    "/version": {"version": served.version},
                    "/v1/models": {"data": [{"id": "model", "max_model_len": served.length}]},
                }
                text = json.dumps(answers[self.path]) if self.path in answers else served.metrics
                self.send(200 if text else 404, text.encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                scores = {}
                if asked.get("echo"):
                    value = next(perplexities, None)
                    if value is None:
                        self.send(400, b"{}")
                        return
                    score = -math.log(value) if value > 1e-300 else 1e300
                    scores = {"token_logprobs": [None, *[score] * 80, -1.0]}
                choice = {"text": served.sample, "logprobs": scores}
                self.send(200, json.dumps({"choices": [choice]}).encode())

        super().__init__(Handler)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(
        tmp_path_factory.mktemp("run") / "store",
        {RECIPE: 0},
        engine_version=ENGINE_VERSION,
        serving=SERVING,
    )
    made.promote(variant=RECIPE)
    return made


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of anyone who runs the tests."""
    for name in ("PREPARE_STORE", "PREPARE_SETTINGS", "PREPARE_REGISTRY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))


def verify(
    run: FakeRun, url: str, reference: str = f"{NAME}@champion", *more: str
) -> tuple[int, Any]:
    where = ["--store", str(run.root), "--registry", run.uri, "--live", url, "--json", *more]
    done = CliRunner().invoke(app, ["verify", reference, *where], catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)


ATTENTION = "INFO [cuda.py:9] Using {} attention backend out of potential backends: []\n"


@pytest.mark.parametrize(
    ("log", "code", "words"),
    [
        (None, 0, "kernels, which the server's log has"),
        (ATTENTION.format("FLASH_ATTN"), 0, "kernels"),
        (ATTENTION.format("FLASHINFER"), 4, "attention: judged FLASH_ATTN, here FLASHINFER"),
        ("nothing", 5, "the log does not name them"),
    ],
    ids=["no log", "as judged", "another", "other log"],
)
def test_kernels_are_compared_by_the_server_s_log(
    tmp_path: Path, log: str | None, code: int, words: str
) -> None:
    made = judged_run(
        tmp_path / "store",
        {RECIPE: 0},
        engine_version=ENGINE_VERSION,
        serving=SERVING,
        kernels={"attention": "FLASH_ATTN"},
    )
    made.promote(variant=RECIPE)
    (tmp_path / "server.log").write_text(log or "")
    more = ["--server-log", str(tmp_path / "server.log")] if log is not None else []
    with Server(Served()) as server:
        found_code, found = verify(made, server.url, f"{NAME}@champion", *more)
    assert found_code == code, found
    place = {0: "compared" if log else "not_reported", 4: "differences", 5: "unknown"}[code]
    assert any(words in each for each in found[place])


def test_the_judged_tuple(run: FakeRun) -> None:
    with Server(Served()) as server:
        code, found = verify(run, server.url)
    assert (code, found["verdict"]) == (0, "same"), found
    names = ["engine version", "max-model-len", "kv-cache-dtype", "block-size"]
    assert found["compared"] == [*names, "log-probabilities", "greedy answer"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("engine version", {"version": "0.34.0"}),
        ("max-model-len", {"length": 4096}),
        ("kv-cache-dtype", {"metrics": Served().metrics.replace("fp8", "auto")}),
        ("block-size", {"metrics": Served().metrics.replace("32", "16")}),
        ("log-probabilities", {"perplexities": [10.2, 10.2, 10.2]}),
        ("log-probabilities", {"perplexities": [9.0, 9.0, 9.0]}),
    ],
)
def test_a_difference_is_named(run: FakeRun, name: str, changes: dict[str, Any]) -> None:
    with Server(replace(Served(), **changes)) as server:
        code, found = verify(run, server.url)
    assert (code, found["verdict"]) == (4, "differs")
    (difference,) = found["differences"]
    assert difference.startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kv-cache-dtype", {"metrics": ""}),
        ("log-probabilities", {"perplexities": [10.02, 10.02, 10.02]}),
        ("log-probabilities", {"perplexities": [10.3, 10.2, 10.3]}),
        ("log-probabilities", {"perplexities": [1e-320, 10.0, 10.0]}),
        ("log-probabilities", {"perplexities": []}),
        ("greedy answer", {"sample": " Rome."}),
    ],
)
def test_what_does_not_decide(run: FakeRun, name: str, changes: dict[str, Any]) -> None:
    with Server(replace(Served(), **changes)) as server:
        code, found = verify(run, server.url)
    assert (code, found["verdict"]) == (5, "undecided")
    assert any(each.startswith(f"{name}:") for each in found["unknown"])


def test_noise_of_the_server_is_the_tolerance(run: FakeRun) -> None:
    with Server(replace(Served(), perplexities=[10.02, 10.0, 10.03])) as server:
        assert verify(run, server.url)[0] == 0


def test_no_server(run: FakeRun) -> None:
    with Server(Served()) as server:
        url = server.url
    with pytest.raises(ServingError):
        verify(run, url)


def test_a_run_is_no_version(run: FakeRun) -> None:
    with pytest.raises(UsageError):
        verify(run, "http://127.0.0.1:1", "latest")


def test_labels_of_vllm() -> None:
    engine = find_engine("vllm")
    text = (
        "# HELP vllm:cache_config_info Information\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",engine="0"} 1.0\n'
    )
    assert engine.settings_in(text) == {"kv-cache-dtype": "fp8_e4m3", "block-size": "16"}
    assert engine.settings_in("vllm:other 1") == {}
