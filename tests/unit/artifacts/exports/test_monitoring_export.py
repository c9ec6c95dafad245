"""Rules and dashboard: `promtool` accepts them, and each alert fires in its own unit test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from some_export import CERTIFIED, deployable, exported, files, request

from artifacts.exports.exported_version import Certified, CertifiedLimit
from artifacts.exports.signals import Signals
from recipes.engines import find_engine

BARE = exported(deployable(speculative=None), certified=Certified())


def written(folder: Path, **changes: object) -> Path:
    for name, text in files("monitoring", request(exported(**changes))).items():
        (folder / name).write_text(text)
    return folder


def promtool(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("certified", [CERTIFIED, Certified()])
def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path, certified: Certified) -> None:
    folder = written(tmp_path, certified=certified)
    promtool(folder, "check", "rules", "--lint-fatal", "rules.yaml")
    promtool(folder, "check", "config", "--syntax-only", "scrape.yaml")
    assert "SUCCESS" in promtool(folder, "test", "rules", "rules-test.yaml")


def test_every_alert_has_a_test_that_fires_and_one_that_does_not() -> None:
    made = files("monitoring")
    (group,) = yaml.safe_load(made["rules.yaml"])["groups"]
    alerts = [each["alert"] for each in group["rules"] if "alert" in each]
    assert len(alerts) == len(set(alerts)) == 5 + 2 + 2 * 3
    tests = [
        each["alert_rule_test"][0] for each in yaml.safe_load(made["rules-test.yaml"])["tests"]
    ]
    for fires in (True, False):
        found = [each["alertname"] for each in tests if bool(each["exp_alerts"]) is fires]
        assert found == alerts


def test_both_forms_have_the_same_rules() -> None:
    made = files("monitoring")
    plain, wrapped = (yaml.safe_load(made[f"{name}.yaml"]) for name in ("rules", "prometheusrule"))
    assert wrapped["spec"] == plain


def test_panels_have_every_expression() -> None:
    dashboard = json.loads(files("monitoring")["dashboard.json"])
    shown = [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    assert shown == [each.expression for each in Signals(exported()).recordings]
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]}
    assert len(corners) == len(shown)


def test_only_what_was_certified_and_is_used_is_watched() -> None:
    signals = Signals(BARE)
    assert not any("draft" in each.name for each in signals.recordings)
    assert [each.name for each in signals.alerts] == [
        *("PrepareServerDown", "PrepareEngineStuck", "PrepareKvCacheNearlyFull"),
        *("PrepareQueueNeverEmpty", "PreparePreemptions"),
    ]


def test_a_limit_is_compared_at_the_next_bound_of_a_bucket() -> None:
    signals = Signals(exported())
    limit = CertifiedLimit(gate="slo.0", measure="ttft", percentile=95, seconds=0.3)
    assert signals.bound(limit) == 0.5
    assert signals.bound(limit.model_copy(update={"seconds": 0.5})) == 0.5
    assert signals.bound(limit.model_copy(update={"seconds": 9e9})) is None


def test_the_names_are_those_of_the_engine() -> None:
    engine = find_engine("vllm")
    names = {*engine.counters.values(), *engine.monitored.values()}
    text = files("monitoring")["rules.yaml"]
    assert {name for name in names if name not in text} == set()
