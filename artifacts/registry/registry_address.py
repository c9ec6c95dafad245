"""What the address of a model registry leads to: the class that is declared for its scheme."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from artifacts.registry.registry import Registry
from pipeline.core.plugins import REGISTRIES, load_class

MLFLOW = "mlflow"  # has several schemes, and addresses without one


def open_registry(uri: str) -> Registry:
    """The registry at that address; raises RegistryError when it cannot be opened."""
    return registry_class(uri)(uri)


def registry_class(uri: str) -> type[Registry]:
    """The class of the URI's scheme, or MLflow's; raises UsageError if it cannot be loaded."""
    scheme, separator, _ = uri.partition("://")
    try:
        found: type[Registry] = load_class(REGISTRIES, scheme if separator else MLFLOW, Registry)
    except LookupError:
        found = load_class(REGISTRIES, MLFLOW, Registry)
    return found


def check_registry(uri: str, name: str) -> None:
    """Look before hours of work whether their outcome can be registered; nothing is written.

    Raises:
        RegistryError: it is plain that it cannot; other causes show only when it is written.
    """
    registry_class(uri).check(uri, name)


def still_has(uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]) -> bool:
    """Whether the registry still has these versions of a model, and its aliases point so.

    Raises:
        RegistryError: it does not answer.
    """
    return registry_class(uri).has(uri, name, versions, aliases)
