"""Exports for one machine, for gateways and for canaries, by what reads them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_export import deployable, exported, files, request
from test_kubernetes_export import HOSTILE

from artifacts.exports.exported_version import ExportRequest
from artifacts.exports.targets import FETCHING, TARGETS
from recipes.catalog import load_policy


def parsed(target: str, name: str, made: ExportRequest | None = None) -> Any:
    return yaml.safe_load(files(target, made)[name])


def hostile(text: str) -> ExportRequest:
    judged = deployable(engine_arguments={"max-model-len": text}, environment={"VLLM_X": text})
    return request(exported(judged), image=text, source=text, registry=text)


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_has_its_origin_at_the_top(target: str) -> None:
    tuple_ = exported().deployable.digest
    for name, text in files(target).items():
        assert tuple_ in text
        if not name.endswith(".json"):
            assert "# Written by `prepare export` for Some.model version 3" in text


@pytest.mark.parametrize("target", [*sorted({*FETCHING} - {"kubernetes"}), "systemd"])
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


class TestCompose:
    @pytest.mark.parametrize("text", ["plain", *HOSTILE])
    def test_the_schema_accepts_it(self, text: str, tmp_path: Path) -> None:
        """Hostile values are read as themselves."""
        file = tmp_path / "compose.yaml"
        file.write_text(files("compose", hostile(text))["compose.yaml"])
        server = yaml.safe_load(file.read_text())["services"]["some-model-v3"]
        assert server["environment"]["VLLM_X"].replace("$$", "$") == text
        assert "$" not in server["environment"]["VLLM_X"].replace("$$", "")
        if text == "plain":
            command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
            subprocess.run([*command, "vendor.compose-spec", file], check=True, timeout=60)

    def test_the_server_waits_for_the_files_and_needs_a_key(self) -> None:
        services = parsed("compose", "compose.yaml")["services"]
        server = services["some-model-v3"]
        assert server["depends_on"] == {"fetch": {"condition": "service_completed_successfully"}}
        assert server["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
        assert server["ports"] == ["127.0.0.1:8000:8000"]
        assert server["healthcheck"]["start_period"] == "285s"

    def test_gpus(self) -> None:
        server = parsed("compose", "compose.yaml")["services"]["some-model-v3"]
        (device,) = server["deploy"]["resources"]["reservations"]["devices"]
        assert device["count"] == 2
        cpu = request(exported(deployable("cpu")))
        assert "deploy" not in parsed("compose", "compose.yaml", cpu)["services"]["some-model-v3"]


class TestSystemd:
    NAME = "some-model-v3.service"

    @pytest.mark.skipif(
        shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
    )
    def test_systemd_accepts_it(self, tmp_path: Path) -> None:
        """The program is not installed here, and the user does not exist."""
        text = files("systemd", hostile("a b%n$HOME\"'\\\n"))[self.NAME]
        text = text.replace("/usr/local/bin/prepare", "/bin/true")
        unit = tmp_path / self.NAME
        unit.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_values_are_one_word(self, text: str) -> None:
        unit = files("systemd", hostile(text))[self.NAME]
        (line,) = [each for each in unit.split("\n") if each.startswith("ExecStart=")]
        assert line.replace("%%", "").count("%") == 0
        assert line.replace("$$", "").count("$") == 0
        (word,) = [each for each in shlex.split(line) if each.startswith("--registry=")]
        read = word.removeprefix("--registry=").replace("%%", "%").replace("$$", "$")
        if not set(text) & set("\n\"'\x00"):  # systemd's escapes, which a shell does not read
            assert read == text
        assert "\n" not in word

    def test_an_engine_that_ends_is_started_again(self) -> None:
        """`prepare serve` ends with 1 then, and with 2 where its options are wrong."""
        unit = files("systemd")[self.NAME]
        assert "RestartPreventExitStatus=2\n" in unit
        assert "--registry=http://mlflow.example.com:5000" in unit


class TestKserve:
    def test_a_group_with_weights(self) -> None:
        spec = parsed("kserve", "llm-inference-service.yaml")["spec"]
        assert spec["router"]["route"] == {"group": "some-model", "weight": 90}
        (container,) = spec["template"]["containers"]
        assert container["name"] == "main"
        assert spec["storageInitializer"] == {"enabled": False}


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
