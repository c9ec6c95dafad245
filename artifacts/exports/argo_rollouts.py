"""Export for Argo Rollouts: a canary that goes on only if `prepare gate` passes it."""

from __future__ import annotations

from typing import Any

from artifacts.exports import kubernetes
from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import PORT, WEIGHTS, ExportRequest
from pipeline.core.process_environment import ENDPOINT_KEY

POLICY = "/policy/policy.yaml"


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    app = request.version.app
    policy = to_yaml(request.version.policy.model_dump(mode="json", exclude_unset=True))
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{app}-policy"},
        "data": {"policy.yaml": policy},
    }
    services = [
        kubernetes.service(f"{app}-{role}", {"app.kubernetes.io/name": app})
        for role in ("stable", "canary")
    ]
    return {
        "rollout.yaml": to_yaml(
            _rollout(request), *services, header=request.header("A canary, and then all servers")
        ),
        "analysis.yaml": to_yaml(
            _analysis(request),
            config,
            header=request.header("The gate of the canary against the stable version"),
        ),
    }


def _rollout(request: ExportRequest) -> dict[str, Any]:
    app = request.version.app
    gate = {"analysis": {"templates": [{"templateName": f"{app}-gate"}]}}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": Noted(
            "A Deployment of `--for kubernetes`; naming the next version's starts its canary.",
            request.version.service,
        ),
        "scaleDown": "onsuccess",
    }
    canary = {
        "stableService": f"{app}-stable",
        "canaryService": f"{app}-canary",
        "steps": [{"setWeight": request.canary_weight}, gate, {"setWeight": 100}],
    }
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app.kubernetes.io/name": app}},
        "workloadRef": workload,
        "strategy": {"canary": canary},
    }
    return kubernetes.manifest("argoproj.io/v1alpha1", "Rollout", app, spec)


def _analysis(request: ExportRequest) -> dict[str, Any]:
    app = request.version.app
    gate = [
        *("prepare", "gate", f"--baseline=http://{app}-stable:{PORT}"),
        *(f"--candidate=http://{app}-canary:{PORT}", f"--tokenizer={WEIGHTS}"),
        *(f"--policy={POLICY}", f"--family={request.version.family}"),
    ]
    pod = kubernetes.pod_spec(request)
    (server,) = pod["containers"]
    key = next(each for each in server["env"] if "valueFrom" in each)
    container = {
        "name": "gate",
        "image": request.image,
        "command": Noted("Exit code 0: passed. 4 and 5, failed and undecided, end it.", gate),
        "env": [
            {"name": "PREPARE_STORE", "value": "/tmp/store"},  # noqa: S108
            {**key, "name": ENDPOINT_KEY},
        ],
        "securityContext": server["securityContext"],
        "volumeMounts": [
            {"name": "weights", "mountPath": "/weights", "readOnly": True},
            {"name": "policy", "mountPath": "/policy", "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    volumes = [each for each in pod["volumes"] if each["name"] in ("weights", "temporary")]
    kept = ("automountServiceAccountToken", "securityContext", "initContainers")
    job = {
        **{key: pod[key] for key in kept},
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [*volumes, {"name": "policy", "configMap": {"name": f"{app}-policy"}}],
    }
    metric = {
        "name": "gate",
        "failureLimit": 0,
        "provider": {"job": {"spec": {"backoffLimit": 0, "template": {"spec": job}}}},
    }
    spec = {"metrics": [metric]}
    return kubernetes.manifest("argoproj.io/v1alpha1", "AnalysisTemplate", f"{app}-gate", spec)
