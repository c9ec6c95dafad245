"""Exports for gateways, canaries and Prometheus, read as their readers read them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_export import CERTIFIED, deployable, exported, files

from artifacts.deploy.export import TARGETS, Certified, write_export
from artifacts.requests import GateRequest
from prepare.errors import UsageError
from recipes.catalog import load_policy
from recipes.engines import find_engine


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_names_its_origin(target: str) -> None:
    tuple_ = exported().deployable.digest
    for name, text in files(target).items():
        assert tuple_ in text
        if not name.endswith(".json"):
            assert "# Written by `prepare export` for Some.model version 3" in text


def test_litellm_shares_and_fallback() -> None:
    config = yaml.safe_load(files("litellm")["config.yaml"])
    found = {
        each["model_info"]["id"]: (each["model_name"], each["litellm_params"].get("weight"))
        for each in config["model_list"]
    }
    assert found == {
        "some-model-v3": ("some-model", 90),
        "some-model-v4": ("some-model", 10),
        "some-model-v2": ("some-model-previous", None),
    }
    assert config["router_settings"]["fallbacks"] == [{"some-model": ["some-model-previous"]}]
    alone = yaml.safe_load(files("litellm", exported(canary=None, previous=None))["config.yaml"])
    assert [each["model_name"] for each in alone["model_list"]] == ["some-model"]
    assert alone["router_settings"]["fallbacks"] == []


def test_argo_asks_the_gate_with_the_judged_policy(tmp_path: Path) -> None:
    template, config = yaml.safe_load_all(files("argo-rollouts")["analysis.yaml"])
    (metric,) = template["spec"]["metrics"]
    job = metric["provider"]["job"]["spec"]
    assert job["backoffLimit"] == 0
    command = job["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["prepare", "gate"]
    assert "--baseline=http://some-model-stable:8000" in command
    policy = tmp_path / "policy.yaml"
    policy.write_text(config["data"]["policy.yaml"])
    assert load_policy(str(policy)).model_dump() == exported().policy.model_dump()
    rollout, *services = yaml.safe_load_all(files("argo-rollouts")["rollout.yaml"])
    canary = rollout["spec"]["strategy"]["canary"]
    names = {each["metadata"]["name"] for each in services}
    assert names == {canary["stableService"], canary["canaryService"]}
    assert rollout["spec"]["workloadRef"]["name"] == "some-model-v3"


def test_a_watch_compares_the_server_with_the_version_that_it_serves() -> None:
    """By an alias that has moved it would be compared with another version's record."""
    made = exported(source="http://mlflow:5000")
    job, claim = yaml.safe_load_all(files("watch", made)["cronjob.yaml"])
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    spec = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    (fetch,) = pod["initContainers"]
    assert "Some.model@3" in fetch["command"]
    (watch,) = pod["containers"]
    program, kind, *words = watch["command"]
    assert (program, kind) == ("prepare", "gate")
    given = dict(word.split("=", 1) for word in words)
    assert given["--baseline"] == "Some.model@3"
    assert given["--candidate"] == "http://some-model-v3:8000"
    flags = {option.flag for option in GateRequest.options().values()}
    assert given.keys() <= flags
    (store,) = [volume for volume in pod["volumes"] if volume["name"] == "store"]
    assert store["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_a_watch_needs_a_registry(tmp_path: Path) -> None:
    for source in (exported().source, "sqlite:////folder/registry.db"):
        with pytest.raises(UsageError):
            write_export(exported(source=source), "watch", tmp_path / "watch")


def rules(**changes: Any) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(files("monitoring", exported(**changes))["rules.yaml"])["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("certified", [CERTIFIED, Certified()])
def test_promtool_accepts_the_rules(tmp_path: Path, certified: Certified) -> None:
    for name, text in files("monitoring", exported(certified=certified)).items():
        (tmp_path / name).write_text(text)
    for words in (
        ("check", "rules", "--lint-fatal", "rules.yaml"),
        ("check", "config", "--syntax-only", "scrape.yaml"),
    ):
        done = subprocess.run(
            ["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(("late", "fires"), [(0, False), (0.5, True)])
def test_a_limit_that_is_exceeded_fires(tmp_path: Path, late: float, fires: bool) -> None:
    """Half of the requests exceed the bucket of the certified limit, or none does."""
    (tmp_path / "rules.yaml").write_text(files("monitoring")["rules.yaml"])
    series = 'vllm:time_to_first_token_seconds_{}{{job="some-model",prepare_version="3"{}}}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": series.format("count", ""), "values": "0+100x60"},
            {"series": series.format("bucket", ',le="0.5"'), "values": f"0+{100 - 100 * late}x60"},
        ],
        "promql_expr_test": [
            {
                "expr": 'count(ALERTS{alertname="PrepareSlo0TtftP95Ticket",alertstate="firing"})',
                "eval_time": "50m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_monitoring_watches_what_was_certified_and_is_used() -> None:
    alerts = [each["alert"] for each in rules() if "alert" in each]
    assert len(alerts) == len(set(alerts)) == 5 + 2 + 2 * 3
    bare = rules(judged=deployable(speculative=None), certified=Certified())
    assert not any("draft" in each.get("record", "") for each in bare)
    assert len([each for each in bare if "alert" in each]) == 5
    engine = find_engine("vllm")
    text = files("monitoring")["rules.yaml"]
    assert all(name in text for name in {*engine.counters.values(), *engine.monitored.values()})


def test_operator_rules_and_panels_are_the_same_rules() -> None:
    made = files("monitoring")
    plain, wrapped = (yaml.safe_load(made[f"{name}.yaml"]) for name in ("rules", "prometheusrule"))
    assert wrapped["spec"] == plain
    panels = json.loads(made["dashboard.json"])["panels"]
    shown = [panel["targets"][0]["expr"] for panel in panels]
    assert shown == [each["expr"] for each in rules() if "record" in each]
    assert len({(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}) == len(shown)
