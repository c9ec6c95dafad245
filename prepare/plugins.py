"""Capabilities that packages declare as entry points.

An entry point is ``name = "module:object"`` in a group such as ``prepare.suites``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from prepare.errors import UsageError

SUITES = "prepare.suites"
ENGINES = "prepare.engines"
QUANTIZERS = "prepare.quantizers"
ENVIRONMENTS = "prepare.environments"
PLUGINS = "plugins"  # key of a worker's specification
OURS = "prepare-model"
_TREE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Plugin:
    """One declared capability."""

    group: str
    name: str
    value: str  # "module:object", a class but for environments
    package: str  # of which distribution, and its version

    @property
    def words(self) -> str:
        return f"package {self.package}, entry point {self.name} = {self.value} in {self.group}"

    def load(self) -> Any:
        """Import the class or object; raise UsageError if that fails."""
        module, _, attribute = self.value.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except Exception as error:  # code of others may raise anything
            raise UsageError(
                f"the plugin '{self.name}' cannot be loaded: {type(error).__name__}: {error}",
                where=self.words,
                hint=f"install a version of {self.package} that fits, or remove it",
            ) from error

    def for_worker(self) -> dict[str, str]:
        """Return data to import the class in a worker."""
        top = self.value.partition(":")[0].partition(".")[0]
        spec = find_spec(top)
        assert spec is not None  # it was imported
        return {**asdict(self), "file": str(spec.origin)}


_given: dict[tuple[str, str], Plugin] = {}


def use_given(plugin: Mapping[str, str]) -> None:
    """Register a :meth:`Plugin.for_worker` in this process."""
    facts = dict(plugin)
    file = Path(facts.pop("file"))
    given = Plugin(**facts)
    _given[given.group, given.name] = given
    top = given.value.partition(":")[0].partition(".")[0]
    if top in sys.modules:
        return
    folders = [str(file.parent)] if file.name == "__init__.py" else None
    spec = spec_from_file_location(top, file, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[top] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def plugin_names(group: str) -> list[str]:
    """Return the sorted names in a group."""
    return sorted({plugin.name for plugin in _declared(group)})


def find_plugin(group: str, name: str) -> Plugin:
    """Find the capability of that name.

    LookupError: there is none. UsageError: several packages declare it.
    """
    if given := _given.get((group, name)):
        return given
    candidates = [plugin for plugin in _declared(group) if plugin.name == name]
    if not candidates:
        known = ", ".join(f"'{known_name}'" for known_name in plugin_names(group))
        raise LookupError(f"'{name[:80]}' is not known: {known}")
    if len(candidates) > 1:
        raise UsageError(
            f"several packages declare '{name}' in {group}",
            where="; ".join(plugin.words for plugin in candidates),
            hint="remove all but one of them",
        )
    return candidates[0]


def load_class(group: str, name: str, base: Any) -> Any:
    """Import the class of that name; LookupError as :func:`find_plugin`.

    UsageError: it cannot be imported, is not a subclass of `base`, or lacks a method.
    """
    plugin = find_plugin(group, name)
    loaded = plugin.load()
    problem = ""
    if base not in getattr(loaded, "__mro__", ()):
        problem = f"is not a subclass of {base.__module__}.{base.__qualname__}"
    elif missing := sorted(getattr(loaded, "__abstractmethods__", ())):
        problem = f"does not implement {', '.join(missing)}"
    if not problem:
        return loaded
    raise UsageError(
        f"the plugin '{name}' {problem}",
        where=plugin.words,
        hint=f"install a version of {plugin.package} that fits, or remove it",
    )


@cache
def _declared(group: str) -> tuple[Plugin, ...]:
    ours = _read_tree().get(group)
    plugins = [
        Plugin(group, name, value, f"{OURS} of {_TREE}") for name, value in (ours or {}).items()
    ]
    for point in entry_points(
        group=group
    ):  # of two distributions of one name, the first on the path
        if point.dist is not None and not (ours and point.dist.name == OURS):
            package = f"{point.dist.name} {point.dist.version}"
            plugins.append(Plugin(group, point.name, point.value, package))
    return tuple(plugins)


def _read_tree() -> dict[str, dict[str, str]]:
    """Return the source tree's entry points; an installation's may be older."""
    project = _TREE / "pyproject.toml"
    if not project.is_file():
        return {}
    import tomllib

    facts = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
    points: dict[str, dict[str, str]] = facts.get("entry-points", {})
    return points if facts.get("name") == OURS else {}
