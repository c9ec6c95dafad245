"""What the address of a model registry leads to: the kind of it, by its scheme."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from artifacts.registry.registry import Registry


def open_registry(uri: str) -> Registry:
    """The registry at that address; raises RegistryError when it cannot be opened."""
    from artifacts.registry.mlflow_registry import MlflowRegistry

    return (_find_kind(uri) or MlflowRegistry)(uri)


def _find_kind(uri: str) -> Callable[[str], Registry] | None:
    """The class whose scheme the URI has; None for MLflow's, which has several."""
    from artifacts.registry import hub_registry, oci_layout_registry

    kinds: dict[str, Callable[[str], Registry]] = {
        hub_registry.SCHEME: hub_registry.HubRegistry,
        oci_layout_registry.SCHEME: oci_layout_registry.OciLayoutRegistry,
    }
    return next((kind for scheme, kind in kinds.items() if uri.startswith(scheme)), None)


def check_registry(uri: str, name: str) -> None:
    """Look before hours of work whether their outcome can be registered; nothing is written.

    MLflow makes tables in a database, and folders for a path, as soon as it opens them, so those
    are not looked at.

    Raises:
        RegistryError: it is plain that it cannot; other causes show only when it is written.
    """
    from artifacts.registry.embedded_database import EMBEDDED, check_embedded
    from artifacts.registry.mlflow_registry import is_server

    if uri.startswith(EMBEDDED):
        check_embedded(uri)
    elif _find_kind(uri) or is_server(uri):
        open_registry(uri).check_writable(name)


def still_has(uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]) -> bool:
    """Whether the registry still has these versions of a model, and its aliases point so.

    Raises:
        RegistryError: it does not answer.
    """
    from artifacts.registry.embedded_database import EMBEDDED, embedded_has

    if uri.startswith(EMBEDDED):
        answer = embedded_has(uri, name, versions, aliases)
        if answer is not None:
            return answer
    registry = open_registry(uri)
    known = {version.version for version in registry.versions(name)}
    pointers = registry.aliases(name)
    return known >= set(versions) and pointers.items() >= aliases.items()
