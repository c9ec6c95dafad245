"""Export for Compose: one machine with Docker or Podman."""

from __future__ import annotations

import math
from typing import Any

from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import (
    CACHES,
    PORT,
    START_MARGIN,
    START_MIN_SECONDS,
    VOLUME,
    ExportRequest,
)
from pipeline.environments.definition import Accelerator
from recipes.engine_arguments import count_gpus

_RESTRICTED: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}
_PROBE = (
    "import urllib.request as u; "
    "u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:%d%s', timeout=5)"
)


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    version = request.version
    key = version.engine.key_variable
    start = max(START_MARGIN * version.ready_seconds, START_MIN_SECONDS)
    probe = _PROBE % (PORT, version.engine.health)
    fetch = {
        "image": _literal(request.image),
        "entrypoint": Noted(
            "Fetches the files once, and refuses any but the judged ones.",
            [_literal(word) for word in request.fetch],
        ),
        "user": Noted("A new volume belongs to root.", "0:0"),
        "environment": {"PREPARE_STORE": "/tmp/store"},  # noqa: S108
        "env_file": Noted(
            "Credentials of the registry, if it needs any.",
            [{"path": "registry.env", "required": False}],
        ),
        "volumes": [f"weights:{VOLUME}"],
        "tmpfs": ["/tmp"],  # noqa: S108
        "restart": "no",
        **_RESTRICTED,
    }
    server = {
        "image": _literal(request.image),
        "depends_on": {"fetch": {"condition": "service_completed_successfully"}},
        "entrypoint": Noted(
            "The judged arguments, in the judged environment: another image lacks its folder.",
            [_literal(word) for word in version.command],
        ),
        "environment": {
            **{name: _literal(value) for name, value in version.variables.items()},
            key: f"${{{key}:?set a key}}",
        },
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": [f"weights:{VOLUME}:ro"],
        # Docker's default forbids to run what is in it, and engines compile.
        "tmpfs": [f"{place}:exec,mode=1777" for place in ("/tmp", CACHES)],  # noqa: S108
        "shm_size": "8gb",
        "healthcheck": {
            "test": ["CMD", str(version.python), "-c", probe],
            "interval": "20s",
            "timeout": "10s",
            "retries": 6,
            "start_period": Noted(
                f"The measured start took {version.ready_seconds:.0f} s.", f"{math.ceil(start)}s"
            ),
        },
        "restart": "unless-stopped",
        "stop_grace_period": "2m",
        **_RESTRICTED,
        **_gpus(request),
    }
    purpose = f"`{key}=... docker compose up` starts it"
    services = {"fetch": fetch, version.service: server}
    composed = {"name": version.service, "services": services, "volumes": {"weights": {}}}
    return {"compose.yaml": to_yaml(composed, header=request.header(purpose))}


def _literal(text: str) -> str:
    """Return text in which Compose replaces no variable."""
    return text.replace("$", "$$")


def _gpus(request: ExportRequest) -> dict[str, Any]:
    judged = request.version.deployable
    if judged.accelerator is not Accelerator.CUDA:
        return {}
    device = {
        "driver": "nvidia",
        "count": count_gpus(judged.serving.engine_arguments),
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}
