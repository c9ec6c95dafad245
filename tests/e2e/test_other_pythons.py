"""The built wheel on the other Pythons that it names, with nothing else installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installed_wheel import ROOT, build_wheel, run_installed
from small_checkpoint import checkpoint_files

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

VERSIONS = ("3.12", "3.13")


def find_python(version: str) -> Path:
    """Return an interpreter of the system or of pyenv, which .ci/run's machines have."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    for candidate in [*installed, *([Path(on_path)] if on_path else [])]:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == version:
            return candidate
    pytest.fail(f"this test needs Python {version}: install it, by pyenv or the system's packages")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module", params=VERSIONS)
def program(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The command in an environment of that Python."""
    environment = tmp_path_factory.mktemp("python") / request.param
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(find_python(request.param))
    subprocess.run([uv, "venv", "--quiet", "--python", python, environment], check=True)
    into = ["--python", str(environment / "bin" / "python")]
    pins = ["--constraint", str(ROOT / "requirements-dev.txt")]
    install = [uv, "pip", "install", "--quiet", *into, *pins, str(wheel)]
    subprocess.run(install, check=True, timeout=600)
    return environment / "bin" / "prepare"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registered version's folder, made by this environment's Python."""
    store = tmp_path_factory.mktemp("judged") / "store"
    paths = [str(ROOT / folder) for folder in ("tests", "tests/unit", ".")]
    code = (
        "import sys, pathlib, fake_run; "
        "print(fake_run.judged_run(pathlib.Path(sys.argv[1])).bundle())"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(store)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(made.stdout.splitlines()[-1])


def test_help_and_doctor(program: Path, tmp_path: Path) -> None:
    assert "doctor" in run_installed(program, "--help", home=tmp_path).stdout
    done = run_installed(program, "doctor", "--json", home=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)


def test_a_folder_is_planned(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name, content in checkpoint_files().items():
        (folder / name).write_bytes(content)
    options = ("--recipe", "fp8-dynamic", "--profile", "cpu", "--policy", "demo", "--json")
    done = run_installed(program, "plan", folder, *options, home=tmp_path)
    said = json.loads(done.stdout)
    assert (done.returncode, said["refused"]) == (0, []), done.stderr
    assert [stage["name"] for stage in said["stages"]]


def test_evidence_is_verified(program: Path, bundle: Path, tmp_path: Path) -> None:
    done = run_installed(program, "verify", bundle, home=tmp_path)
    assert done.returncode == 0, done.stderr
    edited = tmp_path / "edited"
    shutil.copytree(bundle, edited)
    card = edited / "README.md"
    card.write_text(card.read_text().replace("pass", "fail"))
    assert run_installed(program, "verify", edited, home=tmp_path).returncode == 1


def test_environments_have_the_python_of_their_locks(program: Path, tmp_path: Path) -> None:
    """The hashes of torch's wheels are of that Python; a bare machine's is another one."""
    locked = str(Path(sys.executable).resolve().parent)
    path = os.pathsep.join([locked, os.environ["PATH"]])
    words = ("doctor", "--build", "evaluate", "--accelerator", "cpu", "--json")
    done = run_installed(program, *words, home=tmp_path, PATH=path)
    (built,) = json.loads(done.stdout)["built"]
    asked = subprocess.run(
        [built["python"], "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == ["3", "11"]
