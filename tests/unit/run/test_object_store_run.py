"""Runs on a store in an object store: what one node has done the next one reuses."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from fake_run import FakeRun, policy
from typer.testing import CliRunner

from artifacts.run_loader import find_run
from pipeline import __version__
from pipeline.cli.main import app
from pipeline.core.errors import AttemptChangedError, UsageError
from pipeline.core.remote_store import cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import registry_uri
from pipeline.stages.attempts import AttemptLedger, AttemptScope


def node(url: str, tmp_path: Path, name: str) -> FakeRun:
    (tmp_path / name).mkdir()
    return FakeRun(cache_folder(url, tmp_path / name), uri=f"sqlite:///{tmp_path}/registry.db")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(REMOTE_STORE_VARIABLE, "")
    return f"file://{tmp_path}/bucket"


def test_another_node_reuses_every_stage_and_promotes(url: str, tmp_path: Path) -> None:
    first, second = node(url, tmp_path, "first"), node(url, tmp_path, "second")
    done = first.run()
    assert {stage.status for stage in done.stages} == {"ran"}
    tasks = [json.loads(f.read_text()) for f in first.root.glob("runs/*/stages/*.json")]
    assert tasks
    assert {task["prepare"] for task in tasks} == {__version__}
    assert find_run(second.store, done.run) == done
    again = second.run()
    assert {stage.status for stage in again.stages} == {"reused"}
    assert [v.verdict for v in again.variants] == [v.verdict for v in done.variants]
    second.promote()
    assert second.registry.aliases("model") == {"champion": "1"}


def test_attempts_are_counted_together(url: str, tmp_path: Path) -> None:
    scope = AttemptScope(baseline={"weights": "w"}, policy="p")
    first, second = (AttemptLedger(node(url, tmp_path, name).store) for name in ("one", "two"))

    def begin(n: int) -> int:
        while True:
            attempt = (first, second)[n % 2].foresee(scope, {"a": str(n)}, policy())
            with suppress(AttemptChangedError):
                first.begin_attempt(attempt)
                return attempt.number

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(begin, range(8))) == list(range(1, 9))
    assert second.attempts(scope) == first.attempts(scope)


def test_a_registry_must_be_named(url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store=cache_folder(url, tmp_path))
    with pytest.raises(UsageError) as caught:
        registry_uri(None, settings)
    assert caught.value.where == url
    assert registry_uri("sqlite:////r.db", settings) == "sqlite:////r.db"


def test_a_node_without_the_files_fetches_them_into_its_cache(url: str, tmp_path: Path) -> None:
    first, registry = node(url, tmp_path, "first"), f"oci://{tmp_path}/registry"
    first.run()
    assert first.promote(registry)["moved"]
    fresh = cache_folder(url, tmp_path / "fresh")
    verify = ["verify", "model@champion", "--store", str(fresh), "--registry", registry]
    result = CliRunner().invoke(app, verify)
    assert result.exit_code == 0, result.output
    assert list(fresh.glob("stages/evidence/*/output/model.safetensors"))


@pytest.mark.parametrize("how", ["option", "variable", "settings"])
def test_a_url_that_is_none_is_refused_at_once(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, arguments = "sftp://bucket", list[str]()
    if how == "option":
        arguments = ["--store", wrong]
    elif how == "variable":
        monkeypatch.setenv("PREPARE_STORE", wrong)
    else:
        file = tmp_path / "prepare.yaml"
        file.write_text(f"store: {wrong}\n")
        monkeypatch.setenv("PREPARE_SETTINGS", str(file))
        monkeypatch.delenv("PREPARE_STORE", raising=False)
    result = CliRunner().invoke(app, ["runs", "list", *arguments])
    assert result.exit_code != 0
    where = getattr(result.exception, "where", "") or result.output
    assert {"option": "--store", "variable": "STORE", "settings": "key store"}[how] in where
