"""`prepare verify --live` against the real server: the settings that it reports, and its scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from artifacts.deployable import Deployable
from pipeline.core.events import NullProgress
from pipeline.core.hardware import hardware
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.release.live import LiveCheck, check_live
from pipeline.serving.engine_version import engine_version
from pipeline.serving.server import Server
from pipeline.stages.coherence import CoherenceResult
from pipeline.stages.coherence.run import CoherenceProbe

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(900)]
# As `conftest.server` is started.
ARGUMENTS = {"max-model-len": 4096, "block-size": 32, "kv-cache-dtype": "auto"}


@pytest.fixture(scope="module")
def version() -> str:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    return engine_version("vllm", python)


@pytest.fixture(scope="module")
def recorded(server: Server) -> CoherenceResult:
    """What the stage `coherence` records of this server."""
    probe = CoherenceProbe(server.url, "model")
    return CoherenceResult(perplexity=probe.passage_perplexity(), sample=probe.complete())


def check(
    server: Server, result: CoherenceResult, version: str, arguments: dict[str, Any]
) -> LiveCheck:
    judged = Deployable.model_validate(
        {
            "weights": "a" * 64,
            "engine_version": version,
            "environment.quantize": "0" * 64,
            "environment.serve": "1" * 64,
            "environment.evaluate": "2" * 64,
            "serving": {"engine_arguments": ARGUMENTS | arguments, "environment": {}},
            "hardware": hardware("cpu"),
        }
    )
    stage = SimpleNamespace(result=result)
    past: Any = SimpleNamespace(deployable=judged, judged=SimpleNamespace(coherence=stage))
    return check_live(past, server.url)


def test_it_is_what_was_recorded(server: Server, recorded: CoherenceResult, version: str) -> None:
    found = check(server, recorded, version, {})
    assert found.verdict == "same", found
    assert set(ARGUMENTS) <= set(found.compared)


@pytest.mark.parametrize(
    "arguments", [{"max-model-len": 2048}, {"block-size": 16}, {"kv-cache-dtype": "fp8"}]
)
def test_other_arguments_are_named(
    server: Server, recorded: CoherenceResult, version: str, arguments: dict[str, Any]
) -> None:
    (difference,) = check(server, recorded, version, arguments).differences
    assert difference.startswith(f"{next(iter(arguments))}:")


def test_another_engine_version_is_named(server: Server, recorded: CoherenceResult) -> None:
    (difference,) = check(server, recorded, "0.1.0", {}).differences
    assert difference.startswith("engine version:")


def test_other_weights_are_named(server: Server, recorded: CoherenceResult, version: str) -> None:
    """The demo model's FP8 weights have 0.98 times the perplexity of its bf16 weights."""
    assert recorded.perplexity is not None
    other = recorded.model_copy(update={"perplexity": 0.98 * recorded.perplexity})
    (difference,) = check(server, other, version, {}).differences
    assert difference.startswith("log-probabilities:")
