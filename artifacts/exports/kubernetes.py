"""Export for Kubernetes: plain manifests and a kustomization."""

from __future__ import annotations

import math
import re
from typing import Any

from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import (
    CACHES,
    PORT,
    START_MARGIN,
    START_MIN_SECONDS,
    VOLUME,
    ExportRequest,
    service_of,
)
from artifacts.exports.signals import Signals
from pipeline.environments.definition import Accelerator
from recipes.engine_arguments import count_gpus

PROBE_SECONDS = 10
MAX_REPLICAS = 4
WAITING_PER_SERVER = 5
KV_CACHE_PERCENT = 90
VERSION_LABEL = "prepare_version"  # a label of Prometheus too, so without dots
OPTIONAL = {
    "podmonitor.yaml": "needs the Prometheus Operator",
    "scaling.yaml": "needs KEDA; name the address of Prometheus in it",
    "route.yaml": "needs the Gateway API with its inference extension; name the gateway in it",
}


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    files = {
        "deployment.yaml": (_deployment(request), "One server of the judged tuple"),
        "service.yaml": (service(metadata(request), labels(request)), "Address inside the cluster"),
        "network-policy.yaml": (_policy(request), "Who may connect to the servers"),
        "disruption-budget.yaml": (_budget(request), "Drains take one server at a time"),
        "podmonitor.yaml": (_monitor(request), "Scrapes /metrics; rules: `--for monitoring`"),
        "scaling.yaml": (_scaling(request), "Servers by load"),
    }
    texts = {
        name: to_yaml(document, header=request.header(purpose))
        for name, (document, purpose) in files.items()
    }
    texts["route.yaml"] = to_yaml(
        *_routes(request), header=request.header("Shares of the requests, by version")
    )
    needed = [f"- {name}" for name in texts if name not in OPTIONAL]
    more = [f"# - {name}  # {why}" for name, why in OPTIONAL.items()]
    secret = f"{request.version.app}-key"
    head = to_yaml(
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"},
        header=request.header("`kubectl kustomize .` shows it, `kubectl apply -k .` applies it")
        + f"\nFirst: kubectl create secret generic {secret} --from-literal=key=...",
    )
    texts["kustomization.yaml"] = head + "\n".join(["resources:", *needed, *more]) + "\n"
    return texts


def labels(request: ExportRequest) -> dict[str, str]:
    """Return the labels that select this version's pods."""
    version = request.version
    return {"app.kubernetes.io/name": version.app, VERSION_LABEL: version.version}


def pod_spec(request: ExportRequest, container: str = "server") -> dict[str, Any]:
    """Return the pod: an initial container that fetches the weights, and the server."""
    version = request.version
    start = max(START_MARGIN * version.ready_seconds, START_MIN_SECONDS)
    probe = {"httpGet": {"path": version.engine.health, "port": PORT}}
    key = {"secretKeyRef": {"name": f"{version.app}-key", "key": "key"}}
    variables = [
        {"name": name, "value": _literal(value)} for name, value in version.variables.items()
    ]
    mounts = [
        {"name": "weights", "mountPath": VOLUME, "readOnly": True},
        {"name": "caches", "mountPath": CACHES},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
    ]
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": Noted("Such variables could change the engine.", False),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_node_selector(request),
        "initContainers": [
            {
                "name": "fetch",
                "image": request.image,
                "command": Noted(
                    "Fetches the files once, and refuses any but the judged ones.",
                    [_literal(word) for word in request.fetch],
                ),
                "envFrom": Noted(
                    "Credentials of the registry, if it needs any.",
                    [{"secretRef": {"name": f"{version.app}-registry", "optional": True}}],
                ),
                "env": [{"name": "PREPARE_STORE", "value": "/tmp/store"}],  # noqa: S108
                "securityContext": _restricted(),
                "volumeMounts": [
                    {"name": "weights", "mountPath": VOLUME},
                    {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
                ],
            }
        ],
        "containers": [
            {
                "name": container,
                "image": request.image,
                "command": Noted(
                    "The judged arguments, in the judged environment: another image lacks its "
                    "folder.",
                    [_literal(word) for word in version.command],
                ),
                "env": [*variables, {"name": version.engine.key_variable, "valueFrom": key}],
                "ports": [{"name": "http", "containerPort": PORT}],
                "startupProbe": Noted(
                    f"The measured start took {version.ready_seconds:.0f} s.",
                    {
                        **probe,
                        "periodSeconds": PROBE_SECONDS,
                        "failureThreshold": math.ceil(start / PROBE_SECONDS),
                    },
                ),
                "readinessProbe": {**probe, "periodSeconds": PROBE_SECONDS, "timeoutSeconds": 5},
                "livenessProbe": Noted(
                    "Begins after the startup probe has passed, so never while it loads.",
                    {
                        **probe,
                        "periodSeconds": 2 * PROBE_SECONDS,
                        "timeoutSeconds": PROBE_SECONDS,
                        "failureThreshold": 6,
                    },
                ),
                "resources": _resources(request),
                "securityContext": _restricted(),
                "volumeMounts": mounts,
            }
        ],
        "terminationGracePeriodSeconds": 120,
        "volumes": [
            {"name": "weights", "emptyDir": {}},
            {"name": "caches", "emptyDir": {}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "temporary", "emptyDir": {}},
        ],
    }


def manifest(api: str, kind: str, name: str | dict[str, Any], spec: Any) -> dict[str, Any]:
    """Return an object of Kubernetes; a name or all metadata."""
    facts = {"name": name} if isinstance(name, str) else name
    return {"apiVersion": api, "kind": kind, "metadata": facts, "spec": spec}


def metadata(request: ExportRequest) -> dict[str, Any]:
    """Return name, labels and the tuple's digest, by which a running pod can be identified."""
    version = request.version
    return {
        "name": version.service,
        "labels": labels(request),
        "annotations": {"prepare/tuple": version.deployable.digest},
    }


def _deployment(request: ExportRequest) -> dict[str, Any]:
    described = {key: metadata(request)[key] for key in ("labels", "annotations")}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels(request)},
        "template": {"metadata": described, "spec": pod_spec(request)},
    }
    return manifest("apps/v1", "Deployment", metadata(request), spec)


def _literal(text: str) -> str:
    """Return text in which Kubernetes replaces no variable."""
    return text.replace("$", "$$")


def _restricted() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _node_selector(request: ExportRequest) -> dict[str, Any]:
    gpu = request.version.deployable.hardware.gpu
    if gpu is None:
        return {}
    product = re.sub("[^A-Za-z0-9._-]+", "-", gpu)[:63].strip("-._")
    note = "The GPU of the verdict, as NVIDIA's feature discovery labels nodes."
    return {"nodeSelector": Noted(note, {"nvidia.com/gpu.product": product})}


def _resources(request: ExportRequest) -> dict[str, Any]:
    judged = request.version.deployable
    if judged.accelerator is Accelerator.CUDA:
        return {"limits": {"nvidia.com/gpu": count_gpus(judged.serving.engine_arguments)}}
    cores = str(judged.hardware.cores or 1)
    return {"requests": {"cpu": cores}, "limits": {"cpu": cores}}


def service(name: str | dict[str, Any], selector: dict[str, str]) -> dict[str, Any]:
    """Return a Service of the servers with these labels."""
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    return manifest("v1", "Service", name, {"selector": selector, "ports": ports})


def _policy(request: ExportRequest) -> dict[str, Any]:
    """Return the policy; it is for connections, so the engine's paths without a key need it."""
    client = {"namespaceSelector": {}, "podSelector": {"matchLabels": {_client(request): "true"}}}
    source = Noted(
        "The engine's key guards some paths only. Label the pods that may connect: the gateway, "
        "Prometheus, your own proxy.",
        [client],
    )
    spec = {
        "podSelector": {"matchLabels": labels(request)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": source, "ports": [{"port": "http", "protocol": "TCP"}]}],
    }
    return manifest("networking.k8s.io/v1", "NetworkPolicy", metadata(request), spec)


def _client(request: ExportRequest) -> str:
    """Return the label of pods that may connect."""
    return f"{request.version.app}-client"


def _budget(request: ExportRequest) -> dict[str, Any]:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(request)}}
    return manifest("policy/v1", "PodDisruptionBudget", metadata(request), spec)


def _monitor(request: ExportRequest) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": labels(request)},
        "jobLabel": Noted("Rules select this job and version.", "app.kubernetes.io/name"),
        "podTargetLabels": [VERSION_LABEL],
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
    }
    return manifest("monitoring.coreos.com/v1", "PodMonitor", metadata(request), spec)


def _scaling(request: ExportRequest) -> dict[str, Any]:
    version, signals = request.version, Signals(request.version)
    only = f',{VERSION_LABEL}="{version.version}"'
    in_flight = " + ".join(
        f"sum({signals.selector(name, only)})" for name in ("running", "waiting")
    )
    triggers: list[Any] = [
        _trigger(f"sum({signals.selector('waiting', only)})", f"{WAITING_PER_SERVER}"),
        Noted(
            "Percent of the KV cache, on average; a limit for all servers together.",
            {
                **_trigger(
                    f"100 * avg({signals.selector('kv_cache_usage', only)})",
                    f"{KV_CACHE_PERCENT}",
                ),
                "metricType": "Value",
            },
        ),
    ]
    if version.certified.rate is not None:
        query = f"sum(rate({signals.selector('finished', only)}[2m]))"
        note = "Requests/s of one server, as certified."
        triggers.append(Noted(note, _trigger(query, f"{version.certified.rate:g}")))
    if version.certified.concurrency is not None:
        note = "Requests in flight on one server, as certified."
        triggers.append(Noted(note, _trigger(in_flight, f"{version.certified.concurrency}")))
    quiet = max(300, math.ceil(2 * version.ready_seconds))
    behavior = {"scaleDown": {"stabilizationWindowSeconds": Noted("Starts are slow.", quiet)}}
    spec = {
        "scaleTargetRef": {"name": version.service},
        "minReplicaCount": 1,
        "maxReplicaCount": MAX_REPLICAS,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": triggers,
    }
    return manifest("keda.sh/v1alpha1", "ScaledObject", metadata(request), spec)


def _trigger(query: str, threshold: str) -> dict[str, Any]:
    address = "http://prometheus-operated.monitoring.svc:9090"
    metadata = {"serverAddress": address, "query": query, "threshold": threshold}
    return {"type": "prometheus", "metadata": metadata}


def _routes(request: ExportRequest) -> list[dict[str, Any]]:
    version, group = request.version, "inference.networking.k8s.io"
    pools, backends = [], []
    for number, share in request.shares.items():
        name = service_of(version.name, number)
        spec = {
            "targetPorts": [{"number": PORT}],
            "selector": {"matchLabels": {**labels(request), VERSION_LABEL: number}},
            "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": 9002}},
        }
        pools.append(manifest(f"{group}/v1", "InferencePool", name, spec))
        backends.append({"group": group, "kind": "InferencePool", "name": name, "weight": share})
    gateway = {"name": Noted("The cluster's own gateway.", "inference-gateway")}
    public = [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    rule = {
        "matches": Noted("The engine's key guards these paths; it is not asked on others.", public),
        "backendRefs": backends,
    }
    route = {"parentRefs": [gateway], "rules": [rule]}
    return [*pools, manifest("gateway.networking.k8s.io/v1", "HTTPRoute", version.app, route)]
