"""`prepare runs` and `prepare registry`, on a real store and a real embedded registry."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_reports import (
    REQUEST,
    RESOLVED,
    failed_variant_report,
    gate_report,
    run_report,
    stage_report,
    variant_report,
)
from typer.testing import CliRunner

from artifacts.registry import MANIFEST_TAG, Cause, Registry
from artifacts.run_record import RunReport
from pipeline.cli.main import app
from pipeline.run.recorder import RunRecorder
from prepare import file_locks
from prepare.errors import PrepareError, StoreError, UsageError
from prepare.private_files import write_atomically
from prepare.store import RUN_RECORD, RunFolders, Store

FIRST, SECOND = "20261120-090000-000001", "20261121-100000-000001"


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of anyone who runs the tests."""
    for name in ("PREPARE_HOME", "PREPARE_STORE", "PREPARE_SETTINGS", "PREPARE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def words(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def value(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def complaint(kind: type[PrepareError], *arguments: str) -> PrepareError:
    with pytest.raises(kind) as caught:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return caught.value


# --- runs ---------------------------------------------------------------------------------------


def put_run(store: Store, report: RunReport) -> None:
    write_atomically(RunFolders(store).make(report.run) / RUN_RECORD, report.model_dump_json())


def test_the_running_stage_is_shown_and_the_next_command_has_the_store(tmp_path: Path) -> None:
    store = tmp_path / "a store"
    log = RunRecorder(Store(store), REQUEST, RESOLVED)
    log.note_running(["baseline: screen", "baseline: evaluate mmlu", "fp8: quantize"])
    lines = words("runs", "latest", "--store", str(store))
    assert any(line.startswith("running: baseline: screen; fp8: quantize") for line in lines)
    assert any(
        line.endswith(f"Next: prepare runs {log.run_id} --follow --store '{store}'")
        for line in lines
    )
    log.finish("finished", 5)


def test_who_attaches_hears_what_the_run_says_until_it_ends(tmp_path: Path) -> None:
    log = RunRecorder(Store(tmp_path / "store"), REQUEST, RESOLVED)
    log.note("before")
    attach = [sys.executable, "-P", "-m", "prepare", "runs", "latest", "--follow"]
    with subprocess.Popen(
        [*attach, "--store", str(tmp_path / "store")], stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stderr is not None
        assert follower.stderr.readline() == "before\n"
        log.note("meanwhile")
        assert follower.stderr.readline() == "meanwhile\n"
        assert follower.poll() is None
        log.finish("finished", 5)
        assert follower.wait(timeout=30) == 5


def test_a_run_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    put_run(store, run_report().model_copy(update={"run": FIRST, "status": "running"}))
    error = complaint(StoreError, "runs", "latest", "--follow", "--store", str(tmp_path / "store"))
    assert FIRST in error.where


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "home" / "store")
    put_run(found, run_report(run=FIRST))
    failed = run_report(
        run=SECOND,
        exit_code=1,
        seconds=12.0,
        request=replace(REQUEST, checkpoint="./mine"),
        resolved=RESOLVED.model_copy(update={"checkpoint": "./mine"}),
        variants=[failed_variant_report()],
        stages=[stage_report(name="quantize", variant="awq-w4a16", status="failed", key="def")],
    )
    put_run(found, failed)
    found.stage_folder("judge", "abc").mkdir(parents=True)
    return found


@pytest.mark.usefixtures("store")
def test_runs_are_listed_newest_last() -> None:
    lines = words("runs")
    assert lines[-2:] == [
        f"{FIRST} finished demo:smollm2-135m fp8-dynamic: pass 372 s",
        f"{SECOND} finished ./mine awq-w4a16: error 12 s",
    ]
    assert value("runs") == [
        {"run": FIRST, "status": "finished", "exit_code": 0, "seconds": 372.4},
        {"run": SECOND, "status": "finished", "exit_code": 1, "seconds": 12.0},
    ]


def test_the_list_names_gates_that_a_pass_does_not_show(tmp_path: Path) -> None:
    gates = [
        gate_report(),
        gate_report(name="humaneval", tier="supporting", verdict="undecided"),
        gate_report(name="rouge", tier="advisory", verdict="fail"),
    ]
    found = Store(tmp_path / "home" / "store")
    put_run(found, run_report(run=FIRST, variants=[variant_report(gates=gates, speed=[])]))
    assert "fp8-dynamic: pass (not shown: humaneval, rouge)" in " ".join(words("runs"))


def test_a_damaged_record_does_not_hide_the_others(store: Store) -> None:
    (store.root / "runs" / FIRST / RUN_RECORD).write_text("{")
    result = CliRunner().invoke(app, ["runs"], catch_exceptions=False)
    assert result.exit_code == 0
    assert SECOND in result.stdout
    assert FIRST in result.stderr
    assert "cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exit_code", 77),
        ("error", {"kind": "x"}),
        *(("stages", key) for key in ("x" * 9_999, "../../..", "a\0")),
    ],
)
@pytest.mark.parametrize("command", ["runs", "report"])
def test_a_record_that_is_odd_is_no_defect(
    store: Store, command: str, key: str, value: Any, tmp_path: Path
) -> None:
    file = store.root / "runs" / SECOND / RUN_RECORD
    record = json.loads(file.read_text())
    record[key] = [{**record["stages"][0], "key": value}] if key == "stages" else value
    file.write_text(json.dumps(record))
    output = ["--output", str(tmp_path / "r.html")] if command == "report" else []
    with contextlib.suppress(PrepareError):
        CliRunner().invoke(app, [command, SECOND, *output], catch_exceptions=False)


# --- registry -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("registry")
    made = Registry(f"sqlite:///{folder / 'registry.db'}")
    for recipe in ("awq-w4a16", "fp8-dynamic"):
        weights = folder / recipe
        weights.mkdir()
        version = made.register(
            "smollm2-135m", weights, {MANIFEST_TAG: recipe, "prepare.recipe": recipe}
        )
        before = made.aliases("smollm2-135m").get("champion")
        cause = Cause("promote", "ann", run="20261121-1", verdict="pass", reason="all gates passed")
        made.move(
            "smollm2-135m",
            "champion",
            version,
            cause,
            replaces=before,
            previous_alias="previous",
        )
    return made


def test_registered_versions_are_listed(registry: Registry) -> None:
    lines = words("registry", "--registry", registry.uri)
    assert lines[0] == "name version aliases recipe verdict not_shown policy run"
    assert lines[2:4] == [
        "smollm2-135m 2 champion fp8-dynamic",
        "smollm2-135m 1 previous awq-w4a16",
    ]
    listed = value("registry", "--registry", registry.uri)
    assert [(v["name"], v["version"], v["aliases"]) for v in listed] == [
        ("smollm2-135m", "2", ["champion"]),
        ("smollm2-135m", "1", ["previous"]),
    ]
    assert all(Path(version["source"]).is_dir() for version in listed)


def test_the_history_is_told(registry: Registry) -> None:
    lines = words("registry", "smollm2-135m", "--history", "--registry", registry.uri)
    assert lines[0] == "when (UTC) who action move run verdict reason"
    assert lines[2].startswith("1 20")
    assert lines[2].endswith("ann promote champion: 1 20261121-1 pass all gates passed")
    assert "champion: 1 to 2" in lines[3]
    told = value("registry", "smollm2-135m", "--history", "--registry", registry.uri)
    assert [(entry["replaced"], entry["version"]) for entry in told] == [(None, "1"), ("1", "2")]


def test_rolling_back_and_nothing_further(registry: Registry, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copyfile(registry.uri.removeprefix("sqlite:///"), copy)
    at = ("--registry", f"sqlite:///{copy}")
    lines = words("rollback", "smollm2-135m", "--reason", "too slow", *at)
    assert lines[0] == "smollm2-135m@champion is version 1 again, replacing version 2"
    error = complaint(UsageError, "rollback", "smollm2-135m", *at)
    assert "has no version to go back to" in error.message
    assert error.hint.endswith("moves it to one of 2")
    unknown = complaint(UsageError, "rollback", "smollm2-135m", "--alias", "chanpion", *at)
    assert unknown.hint == "its aliases: champion"
    assert value("rollback", "smollm2-135m", "--to", "2", *at)["version"] == "2"
    told = value("registry", "smollm2-135m", "--history", *at)
    assert [(entry["action"], entry["reason"]) for entry in told[2:]] == [
        ("rollback", "too slow"),
        ("rollback", ""),
    ]


def test_versions_that_were_all_deleted_in_mlflow(registry: Registry, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copyfile(registry.uri.removeprefix("sqlite:///"), copy)
    with closing(sqlite3.connect(copy)) as database:
        database.execute("UPDATE model_versions SET current_stage = 'Deleted_Internal'")
        database.execute("DELETE FROM registered_model_aliases")
        database.commit()
    at = ("--registry", f"sqlite:///{copy}")
    (line,) = words("registry", "smollm2-135m", *at)
    assert "has no version; --history" in line
    assert len(words("registry", "smollm2-135m", "--history", *at)) == 4
    error = complaint(UsageError, "rollback", "smollm2-135m", "--to", "1", *at)
    assert "version 1, version 2 was deleted" in error.hint


@pytest.mark.parametrize(
    "command",
    [
        ["runs"],
        ["runs", "latest"],
        ["runs", "latest", "--follow"],
        ["verify"],
        ["report"],
        ["gc"],
        ["promote", "latest"],
    ],
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [("fuse.s3fs", []), ("nfs4", ["local_lock=all"]), ("lustre", ["localflock"])],
)
def test_a_store_without_locks_is_refused(
    command: list[str], kind: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "find_mount", lambda *_: ("/store", kind, options))
    with pytest.raises(StoreError) as caught:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert "store_locks: trusted" in (caught.value.hint or "")
