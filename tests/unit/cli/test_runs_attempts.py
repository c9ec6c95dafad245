"""`prepare runs attempts`: what was tried."""

from __future__ import annotations

import json
from pathlib import Path

from some_attempt import some_trial
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.core.store import Store
from pipeline.stages.attempts import AttemptLedger, Counted


def test_each_attempt(tmp_path: Path) -> None:
    ledger, runs = AttemptLedger(Store(tmp_path / "store")), CliRunner()
    for name in ("fp8-dynamic", "awq-w4a16"):
        trial = some_trial(variants={name: "k"}, attempts=5)
        ledger.begin(Counted(trial=trial, gate="mmlu", run=f"run {name}"))
    command = ["runs", "attempts", "--store", str(tmp_path / "store")]
    found = json.loads(runs.invoke(app, [*command, "--json"]).stdout)
    assert [each["number"] for each in found] == [1, 2]
    assert [each["trial"]["attempts"] for each in found] == [5, 5]
    shown = runs.invoke(app, command).stdout
    for name in ("fp8-dynamic", "awq-w4a16"):
        assert name in shown
        assert f"run {name}" in shown
    assert "of 5" in shown


def test_an_empty_store_has_none(tmp_path: Path) -> None:
    command = ["runs", "attempts", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
