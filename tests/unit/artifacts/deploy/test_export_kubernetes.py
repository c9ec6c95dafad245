"""The manifests for Kubernetes: what they promise, and kustomize's reading."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_export import deployable, exported, files

from artifacts.deploy.export import TARGETS
from prepare.errors import UsageError


def documents(made: dict[str, str]) -> list[dict[str, Any]]:
    return [each for text in made.values() for each in yaml.safe_load_all(text)]


def of_kind(kind: str, made: dict[str, str] | None = None) -> Any:
    found = documents(made or files("kubernetes"))
    return next(each for each in found if each["kind"] == kind)


def pod(made: dict[str, str] | None = None) -> Any:
    return of_kind("Deployment", made)["spec"]["template"]["spec"]


def test_the_server_is_the_judged_tuple() -> None:
    (server,) = pod()["containers"]
    command = server["command"]
    assert command[0] == f"/var/lib/prepare/environments/serve-cuda-{'1' * 16}/bin/python"
    assert command[command.index("--kv-cache-dtype") + 1] == "fp8"
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert {"name": "VLLM_X", "value": "1"} in server["env"]
    assert server["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert pod()["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


@pytest.mark.parametrize(("variables", "place"), [({}, "none"), ({"PREPARE_NVCC": "1"}, "toolkit")])
def test_the_compiler_is_the_judged_environment_s_and_no_variable_of_prepare(
    variables: dict[str, str], place: str
) -> None:
    made = exported(deployable(environment=variables))
    (server,) = pod(files("kubernetes", made))["containers"]
    environment = f"/var/lib/prepare/environments/serve-cuda-{'1' * 16}"
    assert {"name": "CUDA_HOME", "value": f"{environment}/cuda/{place}"} in server["env"]
    assert "PREPARE_NVCC" not in str(server["env"])
    assert "CUDA_HOME" not in exported(deployable("cpu")).variables


def test_weights_are_fetched_by_digest() -> None:
    command = pod()["initContainers"][0]["command"]
    assert command[4:8] == ["prepare", "pull", exported().source, "/weights/model"]
    assert f"--require=prepare.manifest={'a' * 64}" in command
    registry = pod(files("kubernetes", exported(source="http://mlflow:5000")))
    assert registry["initContainers"][0]["command"][6:9] == [
        *("Some.model@3", "/weights/model", "--registry=http://mlflow:5000")
    ]


def test_no_rights() -> None:
    found = pod()
    assert found["automountServiceAccountToken"] is False
    assert found["securityContext"]["runAsNonRoot"] is True
    for container in (*found["initContainers"], *found["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_public_server_has_a_key() -> None:
    (server,) = pod()["containers"]
    key = server["env"][-1]
    assert key["name"] == "VLLM_API_KEY"
    assert "optional" not in key["valueFrom"]["secretKeyRef"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_all_of_it(tmp_path: Path) -> None:
    made = files("kubernetes")
    for name, text in made.items():
        uncommented = re.sub("^# - (.*?)  #.*", r"- \1", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(uncommented)
    built = subprocess.run(
        ["kubectl", "kustomize", tmp_path], check=True, capture_output=True, text=True, timeout=60
    )
    kinds = {each["kind"] for each in yaml.safe_load_all(built.stdout)}
    assert kinds == {each["kind"] for each in documents(made)} - {"Kustomization"}


HOSTILE = [
    *("'\"", "a\nb: c", "{{ 1 }}", "$(PATH)", "${PATH}", "$PATH", "&a", "*a", "!!python/x", "%n"),
    *("\u2028", "\x00", "# a", "- a", "true", "1e3", "`id`", "; id", "\U0001f600"),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused(target: str, text: str) -> None:
    for changes in ({"name": f"a {text}"}, {"name": text}, {"version": f"3 {text}"}):
        if changes.get("name") != "true":
            with pytest.raises(UsageError):
                files(target, exported(**changes))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_are_data(text: str) -> None:
    judged = deployable(engine_arguments={"max-model-len": text}, environment={"VLLM_X": text})
    made = files("kubernetes", exported(judged, image=text, source=text))
    found = pod(made)
    (server,) = found["containers"]
    value = next(each["value"] for each in server["env"] if each["name"] == "VLLM_X")
    escaped = text.replace("$", "$$")  # which Kubernetes reads as one
    assert value == escaped
    assert server["command"][server["command"].index("--max-model-len") + 1] == escaped
    assert server["image"] == text
    assert f"--registry={escaped}" in found["initContainers"][0]["command"]
