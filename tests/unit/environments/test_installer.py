from __future__ import annotations

import ensurepip
import os
import signal
import subprocess
import sys
import textwrap
import time
import venv
from pathlib import Path

import pytest
from tiny_environment import write_source, write_wheel

from pipeline.environments import installer
from pipeline.environments.build import describe
from pipeline.environments.installer import (
    installer_variables,
    pip_settings,
    run_uv,
)
from prepare.errors import EnvironmentBuildError


def test_lines_are_heard_and_a_failure_quotes_them(tmp_path: Path) -> None:
    lines: list[str] = []
    run_uv(["--version"], folder=tmp_path, on_line=lines.append)
    assert lines[0].startswith("uv ")
    with pytest.raises(EnvironmentBuildError) as caught:
        run_uv(["venv", "--python", "/nowhere/python", str(tmp_path / "e")], folder=tmp_path)
    assert "/nowhere/python" in caught.value.message
    assert " venv --python /nowhere/python" in caught.value.where
    assert "UV_DEFAULT_INDEX" in caught.value.hint


def test_a_configuration_file_of_a_folder_above_has_no_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can write one into a folder that they share, and name an index of theirs."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    write_wheel(theirs, "tiny_thing", "1.0", "print('code of another user')\n")
    (tmp_path / "uv.toml").write_text(f'find-links = ["{theirs}"]\nno-index = true\n')
    home = tmp_path / "shared" / "home"
    home.mkdir(parents=True)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    run_uv(["venv", "--no-project", "--python", sys.executable, "made"], folder=home)
    with pytest.raises(EnvironmentBuildError):
        run_uv(["pip", "install", "--python", "made/bin/python", "tiny-thing"], folder=home)
    assert not list(home.glob("made/lib/python3*/site-packages/tiny_thing.py"))


BACKEND = """
import os
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise SystemExit("has: " + " ".join(sorted(os.environ)))
"""


def test_builds_of_packages_get_listed_variables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_source(tmp_path, "tiny_source", "1.0", BACKEND)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    secrets = ("HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "PREPARE_KEY_PASSWORD", "OTHER")
    for name in (*secrets, "UV_CONSTRAINT", "UV_CONFIG_FILE", "PYTHONPATH"):
        monkeypatch.setenv(name, "/nowhere")
    run_uv(["venv", "--no-project", "--python", sys.executable, "made"], folder=tmp_path)
    archive = str(tmp_path / "tiny_source-1.0.tar.gz")
    with pytest.raises(EnvironmentBuildError) as caught:
        run_uv(["pip", "install", "--python", "made/bin/python", archive], folder=tmp_path)
    told = set(caught.value.message.partition("has: ")[2].split())
    assert {"PATH", "HOME"} <= told
    assert not told & {*secrets, "UV_CONSTRAINT", "UV_CONFIG_FILE", "PYTHONPATH"}


def test_uv_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """`uv run` waits for a program here, as an install would for the network."""
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from pipeline.environments.installer import run_uv
        run_uv(
            ["run", "--no-project", "--offline", "--python", {sys.executable!r}, "python", "-c",
             "import os, time; print(os.getppid(), flush=True); time.sleep(60)"],
            folder=Path({str(tmp_path)!r}),
            on_line=lambda line: print(line, flush=True),
        )
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    uv = int(parent.stdout.readline())
    try:
        assert Path(f"/proc/{uv}/exe").resolve().name == "uv"
        parent.kill()
        parent.wait()
        for _ in range(100):
            if not _runs(uv):
                break
            time.sleep(0.05)
        assert not _runs(uv)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("settings", "environment", "added"),
    [
        (
            {"find-links": "/settings"},
            {"PIP_FIND_LINKS": "/wheels  /more", "PIP_INDEX_URL": "https://mirror/simple"},
            {"UV_FIND_LINKS": "/wheels,/more", "UV_DEFAULT_INDEX": "https://mirror/simple"},
        ),
        ({"find-links": "\n/wheels\n/more"}, {}, {"UV_FIND_LINKS": "/wheels,/more"}),
        ({"index-url": "https://a"}, {"UV_DEFAULT_INDEX": "b"}, {"UV_DEFAULT_INDEX": "b"}),
        ({}, {}, {}),
    ],
)
def test_package_sources_of_pip_are_handed_on(
    settings: dict[str, str],
    environment: dict[str, str],
    added: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "UV_FIND_LINKS", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(installer, "pip_settings", lambda: settings)
    found = installer_variables()
    chosen = {name: found[name] for name in ("UV_FIND_LINKS", "UV_DEFAULT_INDEX") if name in found}
    assert chosen == added


def test_real_pip_is_asked_and_no_pip_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://global\nfind-links =\n    /one\n    /two\n"
        "[install]\nindex-url = https://install\n[freeze]\nfind-links = /three\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    venv.create(tmp_path / "made", with_pip=False)
    python = str(tmp_path / "made" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(sys, "_base_executable", "/nowhere/python")
    assert pip_settings() == {}
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    (packages,) = (tmp_path / "made").glob("lib/python3*/site-packages")
    (packages / "pip.pth").write_text(f"{wheel}\n")
    found = pip_settings()
    assert found["find-links"].split() == ["/one", "/two"]
    assert found["index-url"] == "https://install"


@pytest.mark.parametrize("says", ["", "hello", "[" * 9000, "NaN", "1", "true", "{}"])
def test_a_program_that_is_no_python_is_an_expected_error(tmp_path: Path, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentBuildError) as caught:
        describe(python, ["vllm"])
    assert str(python) in caught.value.where


def test_pips_certificates_and_proxy_count_where_no_variable_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"cert": "/etc/my certificates.pem", "proxy": "http://proxy:8080"}
    monkeypatch.setattr(installer, "pip_settings", lambda: settings)
    for name in ("PIP_CERT", "PIP_PROXY", "SSL_CERT_FILE", "UV_SYSTEM_CERTS", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = installer_variables()
    assert found["SSL_CERT_FILE"] == "/etc/my certificates.pem"
    assert found["HTTPS_PROXY"] == "http://proxy:8080"
    monkeypatch.setenv("UV_SYSTEM_CERTS", "true")
    monkeypatch.setenv("https_proxy", "http://other:1")
    found = installer_variables()
    assert "SSL_CERT_FILE" not in found
    assert "HTTPS_PROXY" not in found


def test_the_cache_is_on_the_environments_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home of 300 MB, and PREPARE_HOME on a large disk."""
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    told: list[str] = []
    home = tmp_path / "home"
    (home / "environments").mkdir(parents=True)

    def ask() -> None:
        command = ["cache", "dir"]
        folder = home / "environments"
        run_uv(command, folder=folder, cache=home / "uv-cache", on_line=told.append)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ask()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/shm")  # another disk
    ask()
    with monkeypatch.context() as offline:
        offline.setenv("UV_OFFLINE", "1")
        ask()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "named"))
    ask()
    assert told == [
        str(tmp_path / "cache" / "uv"),
        str(home / "uv-cache"),
        "/dev/shm/uv",
        str(tmp_path / "named"),
    ]


@pytest.mark.parametrize(
    ("printed", "cure"),
    [
        ("error: failed to write: No space left on device (os error 28)", "larger disk"),
        ("invalid peer certificate: UnknownIssuer", "SSL_CERT_FILE"),
        ("failed to fetch github.com/astral-sh/python-build-standalone", "Python 3.11"),
        ("tcp connect error: tunnel error: unsuccessful", "proxy"),
        ("404 https://nexus/repository/pypi-proxy/torch", "UV_DEFAULT_INDEX"),
    ],
)
def test_what_to_do_follows_from_what_uv_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, cure: str
) -> None:
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\necho '{printed}'\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
    with pytest.raises(EnvironmentBuildError) as caught:
        run_uv(["sync"], folder=tmp_path)
    assert cure in (caught.value.hint or "")
