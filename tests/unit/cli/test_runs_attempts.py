"""`prepare runs attempts`: what was tried, and the rate that the next attempt has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from some_attempt import SCOPE
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.core.store import Store
from pipeline.stages.attempts import AttemptLedger
from recipes.catalog import load_policy


@pytest.mark.parametrize(
    ("policy", "rates", "following"),
    [
        ("default", [0.05, 0.05], "0.05, and all then have at most 0.15"),
        ("strict", [0.01, 0.005], "0.0017"),
    ],
)
def test_each_attempt_and_the_rate_of_the_next(
    tmp_path: Path, policy: str, rates: list[float], following: str
) -> None:
    ledger, runs = AttemptLedger(Store(tmp_path / "store")), CliRunner()
    for name in ("fp8-dynamic", "awq-w4a16"):
        ledger.begin_attempt(ledger.foresee(SCOPE, {name: "k"}, load_policy(policy), f"run {name}"))
    command = ["runs", "attempts", "--store", str(tmp_path / "store")]
    found = json.loads(runs.invoke(app, [*command, "--json"]).stdout)
    assert [each["number"] for each in found] == [1, 2]
    assert [each["rate"] for each in found] == pytest.approx(rates)
    shown = runs.invoke(app, command).stdout
    for name in ("fp8-dynamic", "awq-w4a16"):
        assert name in shown
        assert f"run {name}" in shown
    assert following in shown


def test_an_empty_store_has_none(tmp_path: Path) -> None:
    command = ["runs", "attempts", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
