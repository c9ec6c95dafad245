"""A real environment small enough for unit tests: one wheel and one plugin, no network."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.environments.definition import EnvironmentDefinition
from recipes.accelerator import Accelerator
from recipes.engines.vllm import ENTRY_MODULE

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, name: str, version: str, code: str = "") -> None:
    information = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": code,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": WHEEL,
    }
    record = "".join(f"{member},,\n" for member in [*members, f"{information}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for member, text in {**members, f"{information}/RECORD": record}.items():
            archive.writestr(member, text)


def write_source(folder: Path, name: str, version: str, backend: str = "") -> None:
    """Write a source archive that setuptools builds, or a package that has its backend."""
    build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    if backend:
        build = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    top = f"{name}-{version}"
    members = {
        "pyproject.toml": f'{build}[project]\nname = "{name}"\nversion = "{version}"\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "own.py": backend,
    }
    with tarfile.open(folder / f"{top}.tar.gz", "w:gz") as archive:
        for member, text in members.items():
            entry = tarfile.TarInfo(f"{top}/{member}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def write_lock(lock: Path, wheels: Path, *pins: str) -> None:
    """Lock these versions with the hashes of every file here."""
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(wheels.iterdir())]
    lines = [" ".join([pin, *(f"--hash=sha256:{digest}" for digest in hashes)]) for pin in pins]
    lock.write_text("\n".join(lines) + "\n")


@dataclasses.dataclass(frozen=True)
class TinySource:
    wheels: Path
    definition: EnvironmentDefinition


class Heard:
    def __init__(self, on_note: Callable[[str], None] = lambda text: None) -> None:
        self.notes: list[str] = []
        self._on_note = on_note

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._on_note(text)


def write_torch(folder: Path, version: str, cuda: str | None) -> None:
    information = f"torch-{version}.dist-info"
    members = {
        "torch/__init__.py": "",
        "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda!r}\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{information}/WHEEL": WHEEL,
    }
    record = "".join(f"{member},,\n" for member in [*members, f"{information}/RECORD"])
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        for member, text in {**members, f"{information}/RECORD": record}.items():
            archive.writestr(member, text)


def make_tiny_source(folder: Path) -> TinySource:
    wheels = folder / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "tiny_thing", "1.0")
    lock = folder / "tiny.txt"
    write_lock(lock, wheels, "tiny-thing==1.0")
    plugin = folder / "plugin"
    (plugin / "src" / "tiny_plugin").mkdir(parents=True)
    (plugin / "src" / "tiny_plugin" / "__init__.py").write_text("")
    (plugin / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["uv_build>=0.9,<1"]\nbuild-backend = "uv_build"\n'
        '[project]\nname = "tiny-plugin"\nversion = "2.0"\n'
    )
    return TinySource(wheels, tiny_definition(folder))


def tiny_definition(folder: Path) -> EnvironmentDefinition:
    return EnvironmentDefinition(
        key="serve-cpu",
        name="serve",
        accelerator=Accelerator.CPU,
        lock=folder / "tiny.txt",
        plugins=(folder / "plugin",),
        modules=("tiny_thing", "tiny_plugin"),
        disk_bytes=10**6,
    )


def let_uv_find(source: TinySource, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "UV_FIND_LINKS": str(source.wheels),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
    }.items():
        monkeypatch.setenv(name, value)


def write_engine(packages: Path) -> None:
    """An engine's modules, without code."""
    entry = packages.joinpath(*ENTRY_MODULE.split(".")).with_suffix(".py")
    entry.parent.mkdir(parents=True)
    entry.touch()
    (packages / "vllm" / "__init__.py").touch()
