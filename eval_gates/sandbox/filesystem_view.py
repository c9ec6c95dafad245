"""Files that a sandboxed program can read: system, interpreter, and named packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Any

PACKAGES_FOLDER = "/packages"
PACKAGES = ("numpy", "numpy.libs")

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OF_USR = (*_SYSTEM, "libexec", "share/zoneinfo")
_OF_PREFIX = ("bin", "lib", "lib64")
_LIBRARY = Path(os.__file__).resolve().parent
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")


@dataclass(frozen=True)
class FilesystemView:
    """Folders and files to show.

    Attributes:
        interpreter: the Python to run, outside of any virtual environment.
        binds: pairs (path outside, path inside), in an order in which they can be made.
        links: pairs (target, path) of symbolic links.
        masks: folders that appear empty.
    """

    interpreter: str
    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    masks: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@cache
def view(hidden: tuple[str, ...] = ()) -> FilesystemView:
    """Return the minimal view for the running interpreter; `hidden` folders appear empty."""
    roots = [Path("/", name) for name in _SYSTEM]
    shown = [Path("/usr", name) for name in _OF_USR] + roots
    shown = [path for path in shown if path.is_dir() and not path.is_symlink()]
    prefixes = {Path(p).resolve() for p in (sys.base_prefix, sys.base_exec_prefix)}
    needed = [prefix / name for prefix in sorted(prefixes) for name in _OF_PREFIX]
    needed.append(interpreter().parent)
    for path in needed:
        if path.is_dir() and not _is_within(path, shown):
            shown.append(path)
    links = [*roots, *(Path("/usr", name) for name in _OF_USR)]
    binds = [(str(path), str(path)) for path in shown]
    binds += [(str(Path(p).resolve()), p) for p in _SETTINGS if Path(p).exists()]
    binds += [(str(path), f"{PACKAGES_FOLDER}/{path.name}") for path in packages()]
    return FilesystemView(
        interpreter=str(interpreter()),
        binds=tuple(binds),
        links=tuple((str(r.readlink()), str(r)) for r in links if r.is_symlink()),
        masks=tuple(_select_masks([*_other_packages(prefixes), *_find_private(hidden)], shown)),
    )


def _is_within(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _find_private(hidden: Iterable[str]) -> Iterator[Path]:
    yield from (Path(folder).resolve() for folder in (*hidden, gettempdir()))
    with suppress(RuntimeError):  # a user without a home
        yield Path.home().resolve()
    with suppress(FileNotFoundError):  # it has been removed
        yield Path.cwd()
    if sys.prefix != sys.base_prefix:  # a virtual environment
        yield Path(sys.prefix).resolve()


def _select_masks(folders: Iterable[Path], shown: list[Path]) -> list[str]:
    masked: list[Path] = []
    for folder in sorted(folders):
        hides_too_much = _is_within(_LIBRARY, [folder]) or _is_within(interpreter(), [folder])
        is_visible = _is_within(folder, shown) and not _is_within(folder, masked)
        if is_visible and folder not in shown and not hides_too_much and folder.is_dir():
            masked.append(folder)
    return [str(folder) for folder in masked]


def interpreter() -> Path:
    """Return the running interpreter itself, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


@cache
def packages() -> tuple[Path, ...]:
    """Return this environment's folders of :data:`PACKAGES`, without an import."""
    found = find_spec(PACKAGES[0])
    if found is None or found.origin is None:
        return ()
    site = Path(found.origin).resolve().parents[1]
    return tuple(site / name for name in PACKAGES if (site / name).is_dir())


def _other_packages(prefixes: Iterable[Path]) -> set[Path]:
    places = [*prefixes, Path("/usr"), Path("/usr/local")]
    return {
        folder.resolve()
        for place in places
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
        for folder in place.glob(pattern)
    }
