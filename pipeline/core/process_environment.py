"""Which environment variables a process that we start is given: those of a list, and no others.

A shell holds tokens, `LD_PRELOAD` and another engine's settings. A checkpoint's own code may run in
workers and in the model server, and what a shell happens to set would change what is measured
without being part of any key. So nothing is inherited that does not stand here, and a credential
goes only to a process that has to show it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from pipeline.core.redaction import ADDRESSES_VARIABLE
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE


class NetworkAccess(StrEnum):
    """What a process has to reach that asks for a credential, or lies behind a proxy."""

    HUB = "hub"
    REGISTRY = "registry"
    ENDPOINT = "endpoint"
    PACKAGES = "packages"
    STORE = "store"


# A name that ends in '*' stands for all that begin so.
_ALWAYS_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TMP", "TEMP", "TZ", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*"),
    # Where a driver's libraries lie that the system's own list does not name, as in containers.
    "LD_LIBRARY_PATH",
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("NCCL_*", "GLOO_SOCKET_IFNAME"),
    # Threads. What of the CPU is used is in the keys, so PREPARE_CPU_FEATURES says it alone.
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_*"),
    # Compilers that an engine calls, and where it keeps what they made.
    *("CC", "CXX", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
    # Where models, data sets and word lists that were downloaded before are found.
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_HUB_OFFLINE"),
    *("HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "NLTK_DATA"),
    *("NO_PROXY", "no_proxy"),
)
_NETWORK_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_HUB = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_*")
ENDPOINT_KEY = "OPENAI_API_KEY"
_BY_NETWORK_ACCESS: dict[NetworkAccess, tuple[str, ...]] = {
    NetworkAccess.HUB: _HUB,
    # MLflow's client reads its own; what a managed server or a database asks for beside.
    NetworkAccess.REGISTRY: (
        *(ADDRESSES_VARIABLE, "MLFLOW_*", "DATABRICKS_*", "PGPASSWORD", "PGPASSFILE", "PGSSL*"),
        *("AWS_*", "GOOGLE_*", "AZURE_*"),
        *_HUB,
        *("GITHUB_ACTOR", "GITLAB_USER_LOGIN"),
    ),
    NetworkAccess.ENDPOINT: (ENDPOINT_KEY, ADDRESSES_VARIABLE),
    # uv installs, and takes pip's index and links for its own; an index may ask for a password.
    NetworkAccess.PACKAGES: ("UV_*", "PIP_*", "NETRC"),
    # As object stores' own clients read them.
    NetworkAccess.STORE: (*("AWS_*", "GOOGLE_*", "AZURE_*"), REMOTE_STORE_VARIABLE),
}
_LOADS_CODE = ("OMP_TOOL",)  # names of libraries, which a process would load
# A stage runs in our own interpreter; of our variables it has no use for credentials.
_STAGE_VARIABLES = ("PREPARE_*", "PYTHON*", "CI", "COLUMNS")
_NEVER_FOR_STAGES = (
    *("PREPARE_KEY_PASSWORD", "PREPARE_REGISTRY", "PREPARE_BASELINE", "PREPARE_CANDIDATE"),
    ADDRESSES_VARIABLE,
)
_MACHINE_VARIABLES = (
    *("PREPARE_HOME", "PREPARE_STORE", "PREPARE_SETTINGS"),
    *("UV_CACHE_DIR", "UV_CONFIG_FILE", "PIP_CACHE_DIR", "PIP_CONFIG_FILE", "NETRC"),
)
# Stages whose process has to reach something; their workers are given less, see `run_worker`.
_STAGE_ACCESS: dict[str, tuple[NetworkAccess, ...]] = {
    "demo_checkpoint": (NetworkAccess.PACKAGES,),
    "questions": (NetworkAccess.HUB,),
    "quantize": (NetworkAccess.HUB,),
    "dry_run": (NetworkAccess.HUB,),
    "promote": (NetworkAccess.REGISTRY,),
    # It builds the environments of its stages where they are not there, on whatever node.
    "sitting": (NetworkAccess.PACKAGES,),
}
# The folder that the command is given in is no place to import from: it may be one that was pulled,
# with Python code beside the weights. Python 3.10 and older knows no such variable.
SAFE_PATH_VARIABLES = {"PYTHONSAFEPATH": "1"}
# Variables that keep a server or worker from phoning home, or looking on the Hub for a local model.
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
    """Variables of a model server or worker: the listed ones, offline, then its own.

    Args:
        base: the environment that we run in.
        own: what a profile sets, or a stage for its worker; wins.
        python: the interpreter that runs there; programs beside it are found first.
        needs: what it has to reach; with the Hub among them it is not offline.
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


def stage_environment(
    base: Mapping[str, str], stage: str, needs: Collection[NetworkAccess] = ()
) -> dict[str, str]:
    """Variables of the process that runs one of our stages, in which no foreign code runs.

    Args:
        needs: beside what that stage always has to reach.
    """
    asked = [*_stage_access(stage, base), *needs]
    return dict(_select_listed(base, asked, (*_ALWAYS_PASSED, *_STAGE_VARIABLES)))


def forwarded_environment(
    base: Mapping[str, str], stage: str, needs: Collection[NetworkAccess] = ()
) -> dict[str, str]:
    """Variables that go with a stage to another node, whose own they replace there.

    The user's credentials for what the stage has to reach, where packages come from, since the node
    may have to build an environment, and what of our own says nothing of one machine.

    Args:
        needs: beside what that stage always has to reach.
    """
    needs = {*_stage_access(stage, base), *needs, NetworkAccess.PACKAGES}
    names = [name for need in needs for name in _BY_NETWORK_ACCESS[need]]
    found = _select_listed(base, (), ("PREPARE_*", *names))
    return {name: value for name, value in found if name not in _MACHINE_VARIABLES}


def merge_node_environment(node: Mapping[str, str], travelled: Mapping[str, str]) -> dict[str, str]:
    """Variables on a node of what came there: its own, and those that travelled, which win.

    A node that says itself where packages come from, in whatever variable, knows better.
    """
    if any(_select_listed(node, [], _BY_NETWORK_ACCESS[NetworkAccess.PACKAGES])):
        sources = dict(_select_listed(travelled, [], _BY_NETWORK_ACCESS[NetworkAccess.PACKAGES]))
        travelled = {name: each for name, each in travelled.items() if name not in sources}
    return {**node, **travelled}


def _stage_access(stage: str, base: Mapping[str, str]) -> list[NetworkAccess]:
    of_store = [NetworkAccess.STORE] if base.get(REMOTE_STORE_VARIABLE) else []
    return [*_STAGE_ACCESS.get(stage, ()), *of_store]


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
        if name in exact or (name.startswith(beginnings) and name not in _NEVER_FOR_STAGES):
            yield name, value
