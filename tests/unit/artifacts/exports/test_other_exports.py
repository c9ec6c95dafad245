"""Exports for gateways and for canaries, by what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_export import exported, files, request

from artifacts.exports.exported_version import ExportRequest
from artifacts.exports.targets import FETCHING, TARGETS
from recipes.catalog import load_policy


def parsed(target: str, name: str, made: ExportRequest | None = None) -> Any:
    return yaml.safe_load(files(target, made)[name])


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_has_its_origin_at_the_top(target: str) -> None:
    tuple_ = exported().deployable.digest
    for name, text in files(target).items():
        assert tuple_ in text
        if not name.endswith(".json"):
            assert "# Written by `prepare export` for Some.model version 3" in text


@pytest.mark.parametrize("target", [*sorted({*FETCHING} - {"kubernetes"})])
def test_files_are_fetched_by_digest(target: str) -> None:
    text = "".join(files(target).values())
    for tag, digest in exported().required_tags.items():
        assert f"--require={tag}={digest}" in text


class TestLiteLlm:
    def test_weights_and_the_fallback(self) -> None:
        config = parsed("litellm", "config.yaml")
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

    def test_one_version_alone(self) -> None:
        config = parsed("litellm", "config.yaml", request(canary=None, previous=None))
        assert [each["model_name"] for each in config["model_list"]] == ["some-model"]
        assert config["router_settings"]["fallbacks"] == []


class TestArgoRollouts:
    def test_the_gate_is_a_job_between_canary_and_stable(self, tmp_path: Path) -> None:
        template, config = yaml.safe_load_all(files("argo-rollouts")["analysis.yaml"])
        (metric,) = template["spec"]["metrics"]
        job = metric["provider"]["job"]["spec"]
        assert job["backoffLimit"] == 0
        command = job["template"]["spec"]["containers"][0]["command"]
        assert command[:2] == ["prepare", "gate"]
        assert "--baseline=http://some-model-stable:8000" in command
        assert "--candidate=http://some-model-canary:8000" in command
        policy = tmp_path / "policy.yaml"
        policy.write_text(config["data"]["policy.yaml"])
        assert json.loads(load_policy(str(policy)).model_dump_json()) == json.loads(
            exported().policy.model_dump_json()
        )

    def test_services_are_those_of_the_rollout(self) -> None:
        rollout, *services = yaml.safe_load_all(files("argo-rollouts")["rollout.yaml"])
        canary = rollout["spec"]["strategy"]["canary"]
        names = {each["metadata"]["name"] for each in services}
        assert names == {canary["stableService"], canary["canaryService"]}
        assert rollout["spec"]["workloadRef"]["name"] == "some-model-v3"
