"""Targets of exports: the module that writes the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from artifacts.exports import (
    argo_rollouts,
    kubernetes,
    litellm,
    monitoring,
)
from artifacts.exports.exported_version import ExportRequest

TARGETS: Mapping[str, Callable[[ExportRequest], dict[str, str]]] = {
    "kubernetes": kubernetes.export,
    "argo-rollouts": argo_rollouts.export,
    "litellm": litellm.export,
    "monitoring": monitoring.export,
}
# Those whose servers start elsewhere, and fetch their files from a registry.
FETCHING = ("kubernetes", "argo-rollouts")
