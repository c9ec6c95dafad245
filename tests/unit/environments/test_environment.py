"""Building, reusing and mending a real (tiny) environment."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_environment import Heard, TinySource, write_wheel

from pipeline.core.errors import EnvironmentBuildError, UsageError
from pipeline.core.events import NullProgress
from pipeline.environments.definition import Accelerator, define
from pipeline.environments.environment import (
    Environment,
    ensure,
    ensure_defined,
    identity,
    interpreters,
)
from pipeline.environments.folders import environment_folder, hold, is_held
from pipeline.environments.record import RECORD_NAME, read_record
from pipeline.environments.settings import EnvironmentOverride, Settings
from pipeline.environments.status import EnvironmentState, defined_status, status


def site_packages(environment: Environment) -> Path:
    return next(environment.python.parent.parent.glob("lib/python3*/site-packages"))


def state(tiny: TinySource, home: Path) -> EnvironmentState:
    return defined_status(tiny.definition, home).state


def test_built_on_first_use(tiny: TinySource, home: Path, heard: Heard) -> None:
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
    assert told.stdout.strip() == str(environment_folder(home, tiny.definition))
    assert heard.notes == ["building the serve-cpu environment (once)"]
    assert ("install serve-cpu", 1, 1, "packages") in heard.events
    assert heard.events[-1] == ("check serve-cpu", 1, 1, "imports")
    record = read_record(environment.python.parent.parent)
    assert record is not None
    assert record.size_bytes > 0
    assert record.python.startswith(".".join(map(str, sys.version_info[:3])))


def test_reused_without_a_word(
    tiny: TinySource, home: Path, heard: Heard, built: Environment
) -> None:
    inode = built.python.parent.stat().st_ino
    assert ensure_defined(tiny.definition, home, heard) == built
    assert built.python.parent.stat().st_ino == inode
    assert heard.notes == []


def test_use_is_remembered(tiny: TinySource, home: Path, built: Environment) -> None:
    record = built.python.parent.parent / RECORD_NAME
    os.utime(record, (0, 0))
    ensure_defined(tiny.definition, home, NullProgress())
    assert time.time() - record.stat().st_mtime < 60


def damage_metadata(environment: Environment) -> None:
    (site_packages(environment) / "tiny_thing-1.0.dist-info" / "METADATA").unlink()


def damage_module(environment: Environment) -> None:
    (site_packages(environment) / "tiny_thing.py").unlink()


def damage_interpreter(environment: Environment) -> None:
    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python")


def damage_record(environment: Environment) -> None:
    (environment.python.parent.parent / RECORD_NAME).write_text('{"schema_version": 1')


def add_package(environment: Environment) -> None:
    other = site_packages(environment) / "stranger-3.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 3.0\n")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_metadata, "its packages changed since it was built: tiny-thing"),
        (damage_module, "modules are missing: tiny_thing"),
        (damage_interpreter, "a Python interpreter does not respond"),
        (damage_record, "its build did not finish"),
        (add_package, "its packages changed since it was built: stranger"),
    ],
)
def test_damage_is_noticed(
    tiny: TinySource,
    home: Path,
    built: Environment,
    damage: Callable[[Environment], None],
    reason: str,
) -> None:
    assert state(tiny, home) is EnvironmentState.READY
    damage(built)
    found = defined_status(tiny.definition, home)
    assert found.state is EnvironmentState.BROKEN
    assert reason in found.reason


def test_damage_is_mended(tiny: TinySource, home: Path, built: Environment, heard: Heard) -> None:
    damage_interpreter(built)
    assert ensure_defined(tiny.definition, home, heard) == built
    (note,) = heard.notes
    assert note.startswith("rebuilding the serve-cpu environment: a Python interpreter does not")
    assert state(tiny, home) is EnvironmentState.READY


def test_damaged_and_in_use_is_left_alone(tiny: TinySource, home: Path, built: Environment) -> None:
    user = subprocess.Popen([built.python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        damage_module(built)
        with pytest.raises(EnvironmentBuildError, match=r"damaged .* and in use") as caught:
            ensure_defined(tiny.definition, home, NullProgress())
        assert str(user.pid) in caught.value.hint
        assert built.python.exists()
    finally:
        user.communicate(b"\n")


@pytest.fixture
def read_only(home: Path, built: Environment) -> Iterator[Environment]:
    """The built one on a file system that nobody writes to, as in a pod's image."""
    mounts = (["mount", "--bind", home, home], ["mount", "-o", "remount,bind,ro", home])
    if os.geteuid() != 0 or subprocess.run(mounts[0], check=False).returncode:
        pytest.skip("this user, or this machine, mounts nothing")
    try:
        subprocess.run(mounts[1], check=True)
        yield built
    finally:
        subprocess.run(["umount", home], check=True)


def test_one_that_is_not_ours_to_build_is_used_as_it_is(
    tiny: TinySource, home: Path, read_only: Environment, heard: Heard
) -> None:
    assert ensure_defined(tiny.definition, home, heard) == read_only
    assert heard.notes == []
    assert state(tiny, home) is EnvironmentState.READY


def test_one_that_is_not_ours_to_build_is_not_mended(
    tiny: TinySource, home: Path, built: Environment, request: pytest.FixtureRequest
) -> None:
    damage_module(built)
    request.getfixturevalue("read_only")
    assert state(tiny, home) is EnvironmentState.BROKEN
    with pytest.raises(EnvironmentBuildError, match=r"not writable"):
        ensure_defined(tiny.definition, home, NullProgress())


def test_its_record_is_for_all_to_read(tiny: TinySource, home: Path) -> None:
    """So any user of an image finds it built."""
    ensure_defined(tiny.definition, home, NullProgress())
    record = environment_folder(home, tiny.definition) / RECORD_NAME
    assert stat.S_IMODE(record.stat().st_mode) == 0o644


def test_nothing_is_missing_and_looking_creates_nothing(tiny: TinySource, home: Path) -> None:
    assert state(tiny, home) is EnvironmentState.MISSING
    assert not home.exists()


def test_being_built(tiny: TinySource, home: Path, built: Environment) -> None:
    folder = environment_folder(home, tiny.definition)
    with hold(folder, "serve-cpu", NullProgress()):
        assert is_held(folder)
        assert state(tiny, home) is EnvironmentState.BUILDING
    assert not is_held(folder)


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
    assert len(environments) == 2
    assert environments[0] == environments[1]
    notes = sorted(note for sink in sinks for note in sink.notes)
    assert notes == [
        "building the serve-cpu environment (once)",
        "waiting for another process that is building serve-cpu",
    ]


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from tiny_environment import Heard, tiny_definition
from pipeline.environments.environment import ensure_defined
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
ensure_defined(tiny_definition(Path(sys.argv[1])), Path(sys.argv[2]), Heard(on_advance=kill))
"""


def test_a_killed_build_is_built_anew(
    tiny: TinySource, tmp_path: Path, home: Path, heard: Heard
) -> None:
    """Killed for real, after the packages are in place and before the record is."""
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
    ensure_defined(tiny.definition, home, heard)
    assert heard.notes == ["rebuilding the serve-cpu environment: its build did not finish"]
    assert state(tiny, home) is EnvironmentState.READY


def test_a_package_that_is_not_to_be_had(tiny: TinySource, home: Path) -> None:
    tiny.definition.lock.write_text("tiny-thing==9.9\n")
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure_defined(tiny.definition, home, NullProgress())
    assert "there is no version of tiny-thing==9.9" in caught.value.message
    assert "UV_DEFAULT_INDEX" in caught.value.hint
    assert state(tiny, home) is EnvironmentState.MISSING


def test_a_package_that_does_not_import(tiny: TinySource, home: Path) -> None:
    write_wheel(tiny.wheels, "tiny_thing", "1.1", "raise OSError('libmissing.so.1: not found')\n")
    tiny.definition.lock.write_text("tiny-thing==1.1\n")
    with pytest.raises(EnvironmentBuildError, match=r"libmissing\.so\.1"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.MISSING


def test_too_little_disk_fails_before_anything_is_done(tiny: TinySource, home: Path) -> None:
    huge = dataclasses.replace(tiny.definition, disk_bytes=10**18)
    with pytest.raises(EnvironmentBuildError, match=r"1000000000\.0 GB of disk"):
        ensure_defined(huge, home, NullProgress())
    assert not environment_folder(home, huge).exists()


def test_a_home_that_cannot_be_made(tiny: TinySource, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure_defined(tiny.definition, tmp_path / "file" / "home", NullProgress())
    assert caught.value.where == str(tmp_path / "file" / "home" / "environments")
    assert "PREPARE_HOME" in caught.value.hint


PLACES = [".", "environments", "environments/{0}", "environments/{0}/bin"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_environment_is_refused_where_others_may_write(
    tiny: TinySource, home: Path, built: Environment, place: str, mode: int
) -> None:
    ran = home / "ran"
    damage = f"#!/bin/sh\ntouch {ran}\n"
    built.python.unlink()
    built.python.write_text(damage)
    built.python.chmod(0o755)
    name = environment_folder(home, tiny.definition).name
    (home / place.format(name)).chmod(mode)
    with pytest.raises(EnvironmentBuildError, match="is not trusted: other users may write"):
        ensure_defined(tiny.definition, home, NullProgress())
    assert state(tiny, home) is EnvironmentState.BROKEN
    assert built.python.read_text() == damage
    assert not ran.exists()


@pytest.mark.parametrize("place", PLACES)
def test_environment_of_another_user_is_refused(
    tiny: TinySource, home: Path, built: Environment, place: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    name = environment_folder(home, tiny.definition).name
    os.chown(home / place.format(name), 12345, -1)
    with pytest.raises(EnvironmentBuildError, match="another user, number 12345"):
        ensure_defined(tiny.definition, home, NullProgress())


def test_environment_is_unwritable_for_others_whatever_the_umask(
    tiny: TinySource, home: Path
) -> None:
    before = os.umask(0o002)
    try:
        environment = ensure_defined(tiny.definition, home, NullProgress())
    finally:
        os.umask(before)
    assert ensure_defined(tiny.definition, home, NullProgress()) == environment
    folder = environment.python.parents[1]
    found = [home, *home.rglob("*")]
    # uv creates its empty lock file for everybody.
    files = [path for path in found if not path.is_symlink() and path.name != ".lock"]
    writable = [path for path in files if path.stat().st_mode & 0o022]
    assert folder.is_dir()
    assert writable == []


def test_versions_that_differ_from_the_lock_are_noticed(
    tiny: TinySource, home: Path, built: Environment, heard: Heard
) -> None:
    """Though the record and the installed metadata agree."""
    record_file = environment_folder(home, tiny.definition) / RECORD_NAME
    record = json.loads(record_file.read_text())
    name, version = next(iter(tiny.definition.pins.items()))
    (metadata,) = site_packages(built).glob(f"{name.replace('-', '_')}-*.dist-info")
    metadata.rename(metadata.with_name(metadata.name.replace(version, "0.0.1")))
    record["versions"][name] = "0.0.1"
    record_file.write_text(json.dumps(record))
    assert state(tiny, home) is EnvironmentState.BROKEN
    assert ensure_defined(tiny.definition, home, heard).versions[name] == version
    assert "differ from the lock" in heard.notes[0]


class TestExternal:
    """A site's own interpreter."""

    def settings(self, home: Path, python: Path) -> Settings:
        override = EnvironmentOverride(python=python)
        return Settings(home=home, store=home / "store", environments={"serve": override})

    def add_vllm(self, built: Environment) -> None:
        (site_packages(built) / "vllm.py").write_text("")

    def test_used_as_it_is(self, built: Environment, tmp_path: Path) -> None:
        self.add_vllm(built)
        settings = self.settings(tmp_path / "other", built.python)
        found = ensure("serve", Accelerator.CPU, settings, NullProgress())
        assert not found.managed
        assert found.python == built.python
        assert found.versions == {"tiny-thing": "1.0", "tiny-plugin": "2.0"}
        assert found.identity == identity("serve", Accelerator.CPU, settings)
        assert status("serve", Accelerator.CPU, settings).state is EnvironmentState.EXTERNAL
        assert not (tmp_path / "other").exists()

    def test_its_interpreter_is_looked_after_once(self, built: Environment, tmp_path: Path) -> None:
        self.add_vllm(built)
        python_of = interpreters(
            Accelerator.CPU, self.settings(tmp_path, built.python), NullProgress()
        )
        assert python_of("serve") == built.python
        (site_packages(built) / "vllm.py").unlink()
        assert python_of("serve") == built.python

    def test_identity_follows_its_packages(self, built: Environment, tmp_path: Path) -> None:
        settings = self.settings(tmp_path, built.python)
        before = identity("serve", Accelerator.CPU, settings)
        add_package(built)
        assert identity("serve", Accelerator.CPU, settings) != before

    def test_lacks_what_the_work_imports(self, built: Environment, tmp_path: Path) -> None:
        settings = self.settings(tmp_path, built.python)
        with pytest.raises(EnvironmentBuildError, match="'serve'"):
            ensure("serve", Accelerator.CPU, settings, NullProgress())
        found = status("serve", Accelerator.CPU, settings)
        assert found.state is EnvironmentState.BROKEN
        assert "vllm" in found.reason

    def test_is_not_there(self, tmp_path: Path) -> None:
        settings = self.settings(tmp_path, tmp_path / "no-python")
        with pytest.raises(EnvironmentBuildError) as caught:
            identity("serve", Accelerator.CPU, settings)
        assert caught.value.where == str(tmp_path / "no-python")
        assert "settings file" in caught.value.hint


def test_identity_of_a_managed_one_builds_nothing(home: Path) -> None:
    settings = Settings(home=home, store=home / "store")
    found = identity("quantize", Accelerator.CUDA, settings)
    assert found == define("quantize", Accelerator.CUDA).identity
    assert not home.exists()


def test_unknown_name(home: Path) -> None:
    settings = Settings(home=home, store=home / "store")
    with pytest.raises(UsageError, match="'train'") as caught:
        ensure("train", Accelerator.CPU, settings, NullProgress())
    assert "quantize, quantize-autoawq, serve, evaluate" in caught.value.hint
