"""Export for LiteLLM's proxy: this version, its canary, and the version before as a fallback."""

from __future__ import annotations

from typing import Any

from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import PORT, ExportRequest, service_of
from pipeline.serving.serving_names import SERVED_NAME


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    version = request.version
    deployments = [
        _deployment(request, version.app, number, weight=share)
        for number, share in request.shares.items()
    ]
    fallbacks: list[Any] = []
    if request.previous is not None:
        before = f"{version.app}-previous"
        deployments.append(_deployment(request, before, request.previous))
        fallbacks = [{version.app: [before]}]
    config = {
        "general_settings": {
            "master_key": Noted("The proxy's own key.", "os.environ/LITELLM_MASTER_KEY")
        },
        "model_list": deployments,
        "router_settings": {
            "routing_strategy": Noted("It chooses by weight.", "simple-shuffle"),
            "num_retries": 1,
            "fallbacks": Noted("Requests that failed go to the version before.", fallbacks),
        },
    }
    purpose = "Configuration of LiteLLM: `litellm --config config.yaml`"
    return {"config.yaml": to_yaml(config, header=request.header(purpose))}


def _deployment(request: ExportRequest, name: str, number: str, **more: int) -> dict[str, Any]:
    service = service_of(request.version.name, number)
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"hosted_vllm/{SERVED_NAME}",
            "api_base": f"http://{service}:{PORT}/v1",
            "api_key": f"os.environ/{request.version.engine.key_variable}",
            **more,
        },
        "model_info": {"id": service},
    }
