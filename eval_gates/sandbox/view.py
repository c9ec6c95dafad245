"""Which files a sandboxed program sees: the system's, the interpreter's, and named packages.

Nothing else is there: no home, no store, no working folder, no other installed package. An
environment's package folder is left out on purpose, for it may hold the benchmark with its
solutions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES_FOLDER = "/packages"
PACKAGES = ("numpy", "numpy.libs")

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")


@dataclass(frozen=True)
class View:
    """Folders and files to show.

    Attributes:
        interpreter: the Python to run, outside of any virtual environment.
        binds: pairs (file or folder here, where it appears), in an order in which they can be made.
        links: pairs (what a symbolic link says, where it stands).
        masks: folders that appear empty.
    """

    interpreter: str
    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    masks: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The view as plain data."""
        return asdict(self)


@cache
def view() -> View:
    """What the running interpreter's programs need to see, and no more."""
    roots = [Path("/", name) for name in _SYSTEM]
    shown = [Path("/usr"), *(root for root in roots if root.is_dir() and not root.is_symlink())]
    prefixes = {Path(p).resolve() for p in (sys.base_prefix, sys.base_exec_prefix)}
    shown += [p for p in sorted(prefixes) if not any(p.is_relative_to(root) for root in shown)]
    binds = [(str(path), str(path)) for path in shown]
    binds += [(str(Path(p).resolve()), p) for p in _SETTINGS if Path(p).exists()]
    binds += [(str(path), f"{PACKAGES_FOLDER}/{path.name}") for path in packages()]
    return View(
        interpreter=str(interpreter()),
        binds=tuple(binds),
        links=tuple((str(r.readlink()), str(r)) for r in roots if r.is_symlink()),
        masks=tuple(_other_packages(prefixes)),
    )


def interpreter() -> Path:
    """The running interpreter itself, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


@cache
def packages() -> tuple[Path, ...]:
    """The folders of :data:`PACKAGES` that this environment has; nothing is imported for it."""
    found = find_spec(PACKAGES[0])
    if found is None or found.origin is None:
        return ()
    beside = Path(found.origin).resolve().parents[1]
    return tuple(beside / name for name in PACKAGES if (beside / name).is_dir())


def _other_packages(prefixes: Iterable[Path]) -> list[str]:
    places = [*prefixes, Path("/usr"), Path("/usr/local")]
    folders = {
        folder.resolve()
        for place in places
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
        for folder in place.glob(pattern)
    }
    return [str(folder) for folder in sorted(folders) if folder.is_dir()]
