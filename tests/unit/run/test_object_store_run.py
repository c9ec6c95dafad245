"""Runs on a store in an object store: what one node has done the next one reuses."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_run import FakeRun
from typer.testing import CliRunner

from artifacts.kept_runs import find_run
from artifacts.registry.registry_address import open_registry
from artifacts.trials import Count, Trials
from pipeline import __version__
from pipeline.cli.main import app
from pipeline.core.origin import cache_folder
from pipeline.core.origin_variable import ORIGIN
from pipeline.environments.settings import Settings
from pipeline.plan.choices import registry_uri


def node(url: str, tmp_path: Path, name: str) -> FakeRun:
    (tmp_path / name).mkdir()
    return FakeRun(cache_folder(url, tmp_path / name), uri=f"sqlite:///{tmp_path}/registry.db")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(ORIGIN, "")
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


def test_trials_are_counted_together(url: str, tmp_path: Path) -> None:
    count = Count(baseline={"weights": "w"}, policy="p")
    first, second = (Trials(node(url, tmp_path, name).root) for name in ("first", "second"))
    with ThreadPoolExecutor(4) as pool:
        begun = pool.map(
            lambda n: (first, second)[n % 2].begin(count, {"a": str(n)}, "r").number, range(8)
        )
        assert sorted(begun) == list(range(1, 9))
    assert second.begin(count, {"a": "3"}, "r").number == first.foresee(count, {"a": "3"}).number
    [latest] = second.latest()
    assert latest.number == 8
    assert len(latest.earlier) == 7


def test_its_registry_is_shared_as_it_is(url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store=cache_folder(url, tmp_path))
    own = registry_uri(None, settings)
    assert own == f"store+{url}"
    assert registry_uri("sqlite:////r.db", settings) == "sqlite:////r.db"
    first, second = node(url, tmp_path, "first"), node(url, tmp_path, "second")
    first.run()
    assert first.promote(own)["moved"]
    [version] = open_registry(own).versions("model")
    assert version.aliases == ("champion",)
    second.run()
    assert not second.promote(own)["moved"]
    pulled = ["pull", "model@champion", str(tmp_path / "pulled"), "--store", str(second.root)]
    result = CliRunner().invoke(app, pulled)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "pulled" / "model.safetensors").is_file()
    assert open_registry(own).history("model")[0].run == first.report.run
    # A node that has nothing of it yet takes the files into its cache.
    fresh = cache_folder(url, tmp_path / "fresh")
    verify = ["verify", "model@champion", "--store", str(fresh)]
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
