from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import declare

from pipeline.core.errors import ServingError, UsageError
from pipeline.core.events import NullProgress
from pipeline.core.plugins import ENGINES
from pipeline.serving.argument_check import engine_version
from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from recipes.catalog import load_profile
from recipes.schema import ServingProfile

PROFILE = """\
name: second
summary: another engine
accelerator: cpu
engine: tiny
kv_cache_dtype: auto
engine_arguments: {slots: 3}
environment: {TINY_SPEED: "9"}
"""


@pytest.fixture(autouse=True)
def second_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, ENGINES, "tiny", "tiny_engine:Tiny")


def profile(folder: Path, text: str = PROFILE) -> ServingProfile:
    (folder / "second.yaml").write_text(text)
    return load_profile(str(folder / "second.yaml"))


def server_of(folder: Path, text: str = PROFILE) -> Server:
    weights = folder / "weights"
    weights.mkdir()
    (weights / "text").write_text("The capital of France is Paris and Paris is Paris .")
    arguments = ServingArguments.of(profile(folder, text), is_baseline=False)
    return Server(Path(sys.executable), weights, arguments, folder / "server.log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    served = server_of(tmp_path)
    (tmp_path / "server.log").write_text("tiny: 9 slots, at an earlier start\n")
    try:
        served.start(30, NullProgress())
        yield served
    finally:
        served.stop()


def test_it_serves_and_answers_as_the_profile_says(server: Server) -> None:
    server.check_alive()
    assert server.facts() == {"slots": "3"}
    with server.client(timeout_seconds=10) as client:
        request = {"model": SERVED_NAME, "prompt": "France", "max_tokens": 2}
        answer = client.post("/v1/completions", json=request).json()
    assert answer["choices"][0]["text"] == " is Paris"


def test_its_failures_have_its_hints(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        server_of(tmp_path, PROFILE.replace("slots: 3", "slots: 0")).start(30, NullProgress())
    assert caught.value.hint == "give it a slot"


def test_it_tells_its_version() -> None:
    assert engine_version("tiny", Path(sys.executable)) == "0.7"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("engine", PROFILE.replace("tiny", "nosuch")),
        ("engine_arguments", PROFILE.replace("slots: 3", "listen: everywhere")),
        ("environment", PROFILE.replace("engine: tiny\n", "")),
        ("environment", PROFILE.replace("TINY_SPEED", "VLLM_SPEED")),
        ("environment", PROFILE.replace("TINY_SPEED", "TINY_SECRET")),
        (
            "cpu_overrides",
            PROFILE
            + "cpu_overrides: {f: {if_missing: amx, reason: x, environment: {VLLM_A: '1'}}}\n",
        ),
    ],
    ids=["unknown", "ours", "of the first", "variable", "key", "fallback"],
)
def test_a_profile_is_checked_by_its_engine(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile(tmp_path, text)
    assert f"'{key}" in caught.value.message
