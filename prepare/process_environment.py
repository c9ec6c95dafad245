"""Environment variables of child processes: an allowlist.

Checkpoint code may run in them. Other settings could change measurements without being part of a
key.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from prepare.redaction import ADDRESSES_VARIABLE


class NetworkAccess(StrEnum):
    """Service accessed with a credential or through a proxy."""

    HUB = "hub"
    ENDPOINT = "endpoint"
    PACKAGES = "packages"


# A trailing '*' matches any suffix.
_ALWAYS_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TMP", "TEMP", "TZ", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*"),
    # Driver libraries outside the system's search path, as in containers.
    "LD_LIBRARY_PATH",
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("NCCL_*", "GLOO_SOCKET_IFNAME"),
    # Threads. CPU features are part of keys, so only PREPARE_CPU_FEATURES selects them.
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_*"),
    # An engine's compilers and their caches.
    *("CC", "CXX", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_HUB_OFFLINE"),
    *("HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "NLTK_DATA"),
    *("NO_PROXY", "no_proxy"),
)
_NETWORK_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_HUB = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_*")
# uv's sources, cache and transfers; what changes the choice of packages is not among them.
_PACKAGES = (
    *("UV_INDEX", "UV_INDEX_*", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_NO_INDEX", "UV_OFFLINE", "UV_CACHE_DIR", "UV_NO_CACHE", "UV_LINK_MODE"),
    *("UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_*", "UV_INSECURE_HOST"),
    *("UV_PYTHON_INSTALL_DIR", "UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS"),
    *("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_KEYRING_PROVIDER", "SSL_CLIENT_CERT", "NETRC"),
)
ENDPOINT_KEY = "OPENAI_API_KEY"
_BY_NETWORK_ACCESS: dict[NetworkAccess, tuple[str, ...]] = {
    NetworkAccess.HUB: _HUB,
    # MLflow's own variables, and those of managed servers and databases.
    NetworkAccess.ENDPOINT: (ENDPOINT_KEY, ADDRESSES_VARIABLE),
    NetworkAccess.PACKAGES: _PACKAGES,
}
_LOADS_CODE = ("OMP_TOOL",)  # libraries that a process would load
# For the registry alone: only a run's main copy promotes.
_REGISTRY_ALONE = (
    *("MLFLOW_", "DATABRICKS_", "PGPASSWORD", "PGPASSFILE", "PGSSL"),
    *("PREPARE_REGISTRY", "PREPARE_PRIVATE_KEY", "PREPARE_KEY_PASSWORD"),
)
# Never import from the working directory: it may be a pulled model with Python code. Python 3.10
# and older ignores this variable.
SAFE_PATH_VARIABLES = {"PYTHONSAFEPATH": "1"}
# No telemetry, and no Hugging Face Hub requests for local models.
OFFLINE_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def server_environment(
    base: Mapping[str, str],
    own: Mapping[str, str],
    *,
    python: Path | None = None,
    needs: Collection[NetworkAccess] = (),
) -> dict[str, str]:
    """Return a server's or worker's variables: listed ones, offline mode, then `own`.

    PATH begins with the directory of `python`. The Hub in `needs` ends offline mode.
    """
    given = dict(_select_listed(base, needs, _ALWAYS_PASSED))
    for name in ("NO_PROXY", "no_proxy"):
        given[name] = ",".join(filter(None, [base.get(name, ""), "127.0.0.1,localhost"]))
    if python is not None:
        given["PATH"] = os.pathsep.join(
            filter(None, [str(python.parent), base.get("PATH", os.defpath)])
        )
    given |= OFFLINE_VARIABLES
    if NetworkAccess.HUB in needs:
        del given["HF_HUB_OFFLINE"]
    return {**given, **SAFE_PATH_VARIABLES, **own}


def without_registry(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a copy that promotes nothing."""
    return {name: value for name, value in base.items() if not name.startswith(_REGISTRY_ALONE)}


def registry_variables(base: Mapping[str, str]) -> list[str]:
    """Return the variables that such a copy does not get."""
    return sorted(name for name in base if name.startswith(_REGISTRY_ALONE))


def _select_listed(
    base: Mapping[str, str], needs: Collection[NetworkAccess], names: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    wanted = [*names, *(name for need in needs for name in _BY_NETWORK_ACCESS[need])]
    wanted += _NETWORK_VARIABLES if needs else ()
    exact = {name for name in wanted if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in wanted if name.endswith("*"))
    for name, value in base.items():
        if name.startswith(_LOADS_CODE):
            continue
        if name in exact or name.startswith(beginnings):
            yield name, value
