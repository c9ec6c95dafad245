"""Addresses of model registries, and the class of each scheme."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from artifacts.registry.registry import Registry
from pipeline.core.plugins import REGISTRIES, load_class

MLFLOW = "mlflow"  # has several schemes, and addresses without one


def open_registry(uri: str) -> Registry:
    """Return the registry at that address; raises RegistryError if it cannot be opened."""
    return registry_class(uri)(uri)


def registry_class(uri: str) -> type[Registry]:
    """Return the class of the URI's scheme, or MLflow's; raises UsageError if it cannot load."""
    scheme, separator, _ = uri.partition("://")
    try:
        found: type[Registry] = load_class(REGISTRIES, scheme if separator else MLFLOW, Registry)
    except LookupError:
        found = load_class(REGISTRIES, MLFLOW, Registry)
    return found


def check_registry(uri: str, name: str) -> None:
    """Check in advance that results can be registered; write nothing.

    Raises:
        RegistryError: they cannot; other causes show only at the write.
    """
    registry_class(uri).check(uri, name)


def still_has(uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]) -> bool:
    """Return whether the registry still has these versions and these aliases.

    Raises:
        RegistryError: it does not answer.
    """
    return registry_class(uri).has(uri, name, versions, aliases)
