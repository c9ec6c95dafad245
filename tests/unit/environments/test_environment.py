from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_environment import (
    Heard,
    TinySource,
    write_engine,
    write_lock,
    write_source,
    write_torch,
    write_wheel,
)

from pipeline.environments.build import RECORD_NAME, read_record
from pipeline.environments.definition import (
    SOURCE_BUILDS,
    EnvironmentDefinition,
    environment_folder,
    parse_lock,
)
from pipeline.environments.environment import (
    Environment,
    EnvironmentState,
    defined_status,
    ensure,
    ensure_defined,
    identity,
    lock_file,
    status,
)
from pipeline.environments.settings import EnvironmentOverride, Settings
from prepare.errors import EnvironmentBuildError
from prepare.events import NullProgress
from prepare.file_locks import locked
from recipes.accelerator import Accelerator
from recipes.engines.vllm import ENTRY_MODULE


def site_packages(environment: Environment) -> Path:
    return next(environment.python.parent.parent.glob("lib/python3*/site-packages"))


def state(tiny: TinySource, home: Path) -> EnvironmentState:
    return defined_status(tiny.definition, home).state


def test_built_on_first_use_then_trusted(tiny: TinySource, home: Path, heard: Heard) -> None:
    assert state(tiny, home) is EnvironmentState.MISSING
    assert not home.exists()
    plugin = tiny.definition.plugins[0]
    sources = sorted(plugin.rglob("*"))
    environment = ensure_defined(tiny.definition, home, heard)
    assert sorted(plugin.rglob("*")) == sources, "building leaves nothing in the sources"
    assert environment.versions == {"tiny-thing": "1.0", "tiny-plugin": "2.0"}
    assert environment.identity == tiny.definition.identity
    assert environment.managed
    told = subprocess.run(
        [environment.python, "-c", "import tiny_thing, sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    folder = environment_folder(home, tiny.definition)
    assert told.stdout.strip() == str(folder)
    assert heard.notes[0] == "building the serve-cpu environment (once)"
    assert any(note.startswith("serve-cpu: Installed 1 package") for note in heard.notes)
    record = read_record(folder)
    assert record is not None
    assert record.size_bytes > 0
    assert record.python.startswith(".".join(map(str, sys.version_info[:3])))
    assert stat.S_IMODE((folder / RECORD_NAME).stat().st_mode) == 0o644, "for an image's users"
    heard.notes.clear()
    os.utime(folder / RECORD_NAME, (0, 0))
    assert ensure_defined(tiny.definition, home, heard) == environment
    assert heard.notes == []
    assert time.time() - (folder / RECORD_NAME).stat().st_mtime < 60, "gc sees the use"


def test_damage_is_mended_by_force(
    tiny: TinySource, home: Path, built: Environment, heard: Heard
) -> None:
    (site_packages(built) / "tiny_thing.py").unlink()
    assert ensure_defined(tiny.definition, home, heard, force=True) == built
    assert (site_packages(built) / "tiny_thing.py").exists()
    assert state(tiny, home) is EnvironmentState.READY


def test_one_in_use_is_not_built_again(tiny: TinySource, home: Path, built: Environment) -> None:
    program = "print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    user = subprocess.Popen([built.python, "-c", program], **pipes)
    try:
        assert user.stdout is not None
        assert user.stdout.readline()
        with pytest.raises(EnvironmentBuildError, match="in use") as caught:
            ensure_defined(tiny.definition, home, NullProgress(), force=True)
        assert str(user.pid) in caught.value.hint
        assert state(tiny, home) is EnvironmentState.READY
    finally:
        user.communicate(b"\n")


@pytest.mark.parametrize("text", ['{"key": "serve-cpu"', "{}", ""])
def test_a_damaged_record_is_an_unfinished_build(
    tiny: TinySource, home: Path, built: Environment, heard: Heard, text: str
) -> None:
    (environment_folder(home, tiny.definition) / RECORD_NAME).write_text(text)
    assert state(tiny, home) is EnvironmentState.BROKEN
    assert ensure_defined(tiny.definition, home, heard) == built
    assert "building the serve-cpu environment (once)" in heard.notes


@pytest.fixture
def read_only(home: Path, built: Environment) -> Iterator[Environment]:
    mounts = (["mount", "--bind", home, home], ["mount", "-o", "remount,bind,ro", home])
    if os.geteuid() != 0 or subprocess.run(mounts[0], check=False).returncode:
        pytest.skip("this user, or this machine, mounts nothing")
    try:
        subprocess.run(mounts[1], check=True)
        yield built
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_read_only_one_is_used_and_not_mended(
    tiny: TinySource, home: Path, read_only: Environment, heard: Heard
) -> None:
    assert ensure_defined(tiny.definition, home, heard) == read_only
    assert heard.notes == []
    assert state(tiny, home) is EnvironmentState.READY
    with pytest.raises(EnvironmentBuildError, match="cannot be written to"):
        ensure_defined(tiny.definition, home, NullProgress(), force=True)


def test_being_built(tiny: TinySource, home: Path, built: Environment) -> None:
    with locked(lock_file(environment_folder(home, tiny.definition))):
        assert state(tiny, home) is EnvironmentState.BUILDING
    assert state(tiny, home) is EnvironmentState.READY


def test_two_at_once_build_once(tiny: TinySource, home: Path) -> None:
    sinks = [Heard(), Heard()]
    environments: list[Environment] = []
    threads = [
        threading.Thread(
            target=lambda sink=sink: environments.append(
                ensure_defined(tiny.definition, home, sink)
            )
        )
        for sink in sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert environments[0] == environments[1]
    notes = [note for sink in sinks for note in sink.notes]
    assert notes.count("building the serve-cpu environment (once)") == 1


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from tiny_environment import Heard, tiny_definition
from pipeline.environments.environment import ensure_defined
def kill(text):
    if "Installed" in text:
        os.kill(os.getpid(), signal.SIGKILL)
ensure_defined(tiny_definition(Path(sys.argv[1])), Path(sys.argv[2]), Heard(on_note=kill))
"""


def test_a_killed_build_starts_again(tiny: TinySource, tmp_path: Path, home: Path) -> None:
    """Killed after the packages are in place and before the record is."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BUILD, str(tmp_path), str(home)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = environment_folder(home, tiny.definition)
    assert list(folder.glob("lib/python3*/site-packages/tiny_thing.py"))
    found = defined_status(tiny.definition, home)
    assert found.state is EnvironmentState.BROKEN
    assert found.size_bytes > 0
    ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.READY


def test_a_failed_build_leaves_nothing(tiny: TinySource, home: Path) -> None:
    write_lock(tiny.definition.lock, tiny.wheels, "tiny-thing==9.9")
    with pytest.raises(EnvironmentBuildError, match="no version of tiny-thing==9"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.MISSING
    write_wheel(tiny.wheels, "tiny_thing", "1.1", "raise OSError('libmissing.so.1: not found')\n")
    write_lock(tiny.definition.lock, tiny.wheels, "tiny-thing==1.1")
    with pytest.raises(EnvironmentBuildError, match=r"libmissing\.so\.1"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.MISSING
    huge = dataclasses.replace(tiny.definition, disk_bytes=10**18)
    with pytest.raises(EnvironmentBuildError, match=r"1\.0 EB of disk"):
        ensure_defined(huge, home, NullProgress())


def test_another_file_of_a_locked_version_is_refused(tiny: TinySource, home: Path) -> None:
    write_wheel(tiny.wheels, "tiny_thing", "1.0", "print('code of another user')\n")
    with pytest.raises(EnvironmentBuildError, match=r"(?i)hash mismatch"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.MISSING


def test_what_builds_a_package_is_locked_too(tiny: TinySource, tmp_path: Path, home: Path) -> None:
    ran = tmp_path / "ran"
    setuptools = parse_lock(SOURCE_BUILDS.read_text())["setuptools"]
    write_wheel(tiny.wheels, "setuptools", setuptools, f"open({str(ran)!r}, 'w')\n")
    write_source(tiny.wheels, "tiny_source", "1.0")
    write_lock(tiny.definition.lock, tiny.wheels, "tiny-thing==1.0", "tiny-source==1.0")
    with pytest.raises(EnvironmentBuildError, match=r"(?i)hash mismatch"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert not ran.exists()


PLACES = [".", "environments", "environments/{0}", "environments/{0}/bin"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777, None])
def test_one_that_others_may_change_is_refused(
    tiny: TinySource, home: Path, built: Environment, place: str, mode: int | None
) -> None:
    ran = home / "ran"
    built.python.unlink()
    built.python.write_text(f"#!/bin/sh\ntouch {ran}\n")
    built.python.chmod(0o755)
    changed = home / place.format(environment_folder(home, tiny.definition).name)
    if mode is not None:
        changed.chmod(mode)
    elif os.geteuid() == 0:
        os.chown(changed, 12345, -1)
    else:
        pytest.skip("only root may give files away")
    with pytest.raises(EnvironmentBuildError, match=r"not trusted: (other users may|.* 12345)"):
        ensure_defined(tiny.definition, home, NullProgress(), force=True)
    assert state(tiny, home) is EnvironmentState.BROKEN
    assert not ran.exists()


def test_unwritable_for_others_whatever_the_umask(tiny: TinySource, home: Path) -> None:
    before = os.umask(0o002)
    try:
        environment = ensure_defined(tiny.definition, home, NullProgress())
    finally:
        os.umask(before)
    assert ensure_defined(tiny.definition, home, NullProgress()) == environment
    # uv creates its empty lock file for everybody.
    found = [path for path in home.rglob("*") if not path.is_symlink() and path.name != ".lock"]
    assert [path for path in (home, *found) if path.stat().st_mode & 0o022] == []


class TestCudaTorch:
    @pytest.fixture
    def for_cuda(self, tiny: TinySource) -> EnvironmentDefinition:
        write_torch(tiny.wheels, "2.13.0+cpu", None)
        write_torch(tiny.wheels, "2.13.0", "13.0")
        write_lock(tiny.definition.lock, tiny.wheels, "tiny-thing==1.0", "torch===2.13.0")
        return dataclasses.replace(tiny.definition, key="serve-cuda", accelerator=Accelerator.CUDA)

    def test_the_cpu_build_in_find_links_is_not_taken(
        self, tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path
    ) -> None:
        assert ensure_defined(for_cuda, home, NullProgress()).versions["torch"] == "2.13.0"

    @pytest.mark.parametrize("has_plain", [False, True])
    def test_where_there_is_no_other_the_build_fails(
        self, tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path, has_plain: bool
    ) -> None:
        (tiny.wheels / "torch-2.13.0-py3-none-any.whl").unlink()
        if has_plain:
            write_torch(tiny.wheels, "2.13.0", None)
            write_lock(tiny.definition.lock, tiny.wheels, "tiny-thing==1.0", "torch===2.13.0")
        said = r"torch\.version\.cuda" if has_plain else "uv could not install"
        with pytest.raises(EnvironmentBuildError, match=said):
            ensure_defined(for_cuda, home, NullProgress())
        assert not environment_folder(home, for_cuda).exists()


class TestExternal:
    def settings(self, home: Path, python: Path) -> Settings:
        override = EnvironmentOverride(python=python)
        return Settings(home=home, store=home / "store", environments={"serve": override})

    def test_used_as_it_is(self, built: Environment, tmp_path: Path) -> None:
        write_engine(site_packages(built))
        settings = self.settings(tmp_path / "other", built.python)
        found = ensure("serve", Accelerator.CPU, settings, NullProgress())
        assert not found.managed
        assert found.python == built.python
        assert found.versions == {"tiny-thing": "1.0", "tiny-plugin": "2.0"}
        assert found.identity == identity("serve", Accelerator.CPU, settings)
        assert status("serve", Accelerator.CPU, settings).state is EnvironmentState.EXTERNAL
        assert not (tmp_path / "other").exists()
        with pytest.raises(EnvironmentBuildError, match="built for CUDA"):
            ensure("serve", Accelerator.CUDA, settings, NullProgress())

    def test_another_version(self, built: Environment, tmp_path: Path) -> None:
        """Its first start would fail, after hours of quantizing."""
        packages = site_packages(built)
        (packages / "vllm").mkdir()
        (packages / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
        (packages / "vllm-0.26.0.dist-info").mkdir()
        (packages / "vllm-0.26.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.26.0")
        settings = self.settings(tmp_path, built.python)
        with pytest.raises(EnvironmentBuildError, match=f"has vllm 0.26.0.*{ENTRY_MODULE}"):
            ensure("serve", Accelerator.CPU, settings, NullProgress())
        with pytest.raises(EnvironmentBuildError):  # `plan` refuses it too
            identity("serve", Accelerator.CPU, settings)
        assert status("serve", Accelerator.CPU, settings).state is EnvironmentState.BROKEN

    def test_one_without_the_modules(self, built: Environment, tmp_path: Path) -> None:
        settings = self.settings(tmp_path, built.python)
        with pytest.raises(EnvironmentBuildError, match="'serve' lacks vllm"):
            ensure("serve", Accelerator.CPU, settings, NullProgress())
        found = status("serve", Accelerator.CPU, settings)
        assert found.state is EnvironmentState.BROKEN
        assert "vllm" in found.reason
