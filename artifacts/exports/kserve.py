"""Export for KServe: an LLMInferenceService in a group of versions that share the requests."""

from __future__ import annotations

from artifacts.exports import kubernetes
from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import ExportRequest
from pipeline.serving.serving_names import SERVED_NAME

CONTAINER = "main"  # the server's, by KServe's rules


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    version = request.version
    note = "Relative to the group's other versions."
    if request.canary is not None:
        note += f" Give version {request.canary} the weight {request.canary_weight} in its export."
    uri = Noted(
        "A name; the initial container below fetches and checks the files.",
        f"hf://prepare/{version.service}",
    )
    route = {
        "group": Noted("Versions of one group share its requests.", version.app),
        "weight": Noted(note, request.shares[version.version]),
    }
    spec = {
        "model": {"uri": uri, "name": SERVED_NAME},
        "storageInitializer": {"enabled": False},
        "replicas": 1,
        "router": {"gateway": {}, "route": route},
        "template": kubernetes.pod_spec(request, CONTAINER),
    }
    service = kubernetes.manifest(
        "serving.kserve.io/v1alpha2", "LLMInferenceService", kubernetes.metadata(request), spec
    )
    purpose = "One version of the model, for KServe 0.21"
    return {"llm-inference-service.yaml": to_yaml(service, header=request.header(purpose))}
