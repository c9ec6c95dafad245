"""Exported manifests by the schemas of those that read them, without a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from locked_environment import make_environment

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from some_export import deployable, exported, files

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(600)]
LOCK = Path(__file__).parent / "exports" / "validators.txt"
CORE = ("deployment.yaml", "service.yaml", "disruption-budget.yaml")
# Models of cloudcoil ignore what they do not know, which is then missing in their data.
MODELS = """
import sys, yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

for file in sys.argv[1:]:
    data = yaml.safe_load(open(file))
    read = globals()[data["kind"]].model_validate(data)
    read = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read["spec"] == data["spec"], (read["spec"], data["spec"])
"""
NPM = ("argo-rollouts@2.0.0", "gateway-api@2.0.0")
VALIDATE = """
const folders = {
  Rollout: "argo-rollouts/argoproj.io/v1alpha1",
  AnalysisTemplate: "argo-rollouts/argoproj.io/v1alpha1",
  HTTPRoute: "gateway-api/gateway.networking.k8s.io/v1",
};
for (const each of JSON.parse(process.argv[2])) {
  const found = await import(`@kubernetes-models/${folders[each.kind]}/${each.kind}`);
  new found[each.kind](each).validate();
}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("validators"), LOCK)


def write(folder: Path, target: str, accelerator: str = "cuda") -> list[Path]:
    version = exported(deployable(accelerator))
    made = []
    for name, text in files(target, version).items():
        made.append(folder / name)
        # With all that the kustomization offers.
        made[-1].write_text(re.sub("^# - (.*?)  #.*", r"- \1", text, flags=re.MULTILINE))
    return made


@pytest.mark.parametrize("accelerator", ["cuda", "cpu"])
def test_the_core_of_kubernetes(python: Path, tmp_path: Path, accelerator: str) -> None:
    write(tmp_path, "kubernetes", accelerator)
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(list(yaml.safe_load_all(files("argo-rollouts")["analysis.yaml"]))[1])
    )
    for version in ("1.35", "1.36", "1.37"):
        command = [python.with_name("kubernetes-validate"), "--strict", "-k", version]
        subprocess.run([*command, *CORE, "config.yaml"], cwd=tmp_path, check=True, timeout=120)


def test_jobs_of_the_analysis(python: Path, tmp_path: Path) -> None:
    """Its jobs, as objects of Kubernetes."""
    texts = files("argo-rollouts").values()
    objects = [each for text in texts for each in yaml.safe_load_all(text)]
    (template,) = [each for each in objects if each["kind"] == "AnalysisTemplate"]
    spec = template["spec"]["metrics"][0]["provider"]["job"]["spec"]
    found = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(found))
    command = [python.with_name("kubernetes-validate"), "--strict", "pod.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)


def test_kustomize(python: Path, tmp_path: Path) -> None:
    write(tmp_path, "kubernetes")
    command = [python.with_name("kubectl"), "kustomize", tmp_path]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert len(list(yaml.safe_load_all(built))) == 9


def test_operators(python: Path, tmp_path: Path) -> None:
    written = [*write(tmp_path, "kubernetes"), *write(tmp_path, "monitoring")]
    names = ("podmonitor.yaml", "scaling.yaml", "prometheusrule.yaml")
    chosen = [file for file in written if file.name in names]
    assert len(chosen) == 3
    subprocess.run([python, "-c", MODELS, *chosen], check=True, timeout=120)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_rollouts_and_routes(tmp_path: Path) -> None:
    texts = [*files("argo-rollouts").values(), files("kubernetes")["route.yaml"]]
    objects = [each for text in texts for each in yaml.safe_load_all(text)]
    kinds = ("Rollout", "AnalysisTemplate", "HTTPRoute")
    chosen = [each for each in objects if each["kind"] in kinds]
    assert len(chosen) == 3
    (tmp_path / "package.json").write_text("{}")
    packages = [f"@kubernetes-models/{name}" for name in NPM]
    install = ["npm", "install", "--silent", "--ignore-scripts", *packages]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=300)
    (tmp_path / "validate.mjs").write_text(VALIDATE)
    command = ["node", "validate.mjs", json.dumps(chosen)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    (rollout,) = [each for each in chosen if each["kind"] == "Rollout"]
    broken = [{**rollout, "spec": {"replicas": "two"}}]
    done = subprocess.run(
        [*command[:2], json.dumps(broken)], cwd=tmp_path, check=False, capture_output=True
    )
    assert done.returncode != 0
