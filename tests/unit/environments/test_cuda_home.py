from __future__ import annotations

from pathlib import Path

import pytest
from listener import Listener

from pipeline.environments.cuda_home import compiler_variables, make_cuda_home
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    packages = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"
    for name in ("bin/nvcc", "include/cuda.h", "nvvm/cicc", "lib/libcudart.so.13"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(name)
    (packages / "lib" / "libcudadevrt.a").write_text("")
    (packages / "lib" / "libcupti.so").write_text("as it is")
    (packages / "lib" / "libcupti.so.13").write_text("")
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_linkers_find_what_they_look_for(environment: Path) -> None:
    make_cuda_home(environment)
    toolkit = environment / "cuda" / "toolkit"
    assert (toolkit / "bin" / "nvcc").read_text() == "bin/nvcc"
    assert (toolkit / "include" / "cuda.h").is_file()
    assert (toolkit / "lib64" / "libcudart.so").read_text() == "lib/libcudart.so.13"
    assert (toolkit / "lib64" / "libcupti.so").read_text() == "as it is"
    assert "libcuda.so.1" in (toolkit / "lib64" / "stubs" / "libcuda.so").read_text()
    make_cuda_home(environment)  # nothing is left to do


def test_an_environment_without_a_compiler_has_none(tmp_path: Path) -> None:
    make_cuda_home(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert compiler_variables(tmp_path / "bin" / "python", {"PREPARE_NVCC": "1"}) == {}


@pytest.mark.parametrize(("variables", "name"), [({}, "none"), ({"PREPARE_NVCC": "1"}, "toolkit")])
def test_a_server_gets_ours_and_never_the_hosts(
    environment: Path, variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    make_cuda_home(environment)
    python = environment / "bin" / "python"
    python.write_text(
        '#!/bin/sh\necho "CUDA_HOME is $CUDA_HOME"; ls "$CUDA_HOME/bin/nvcc"; exit 1\n'
    )
    python.chmod(0o755)
    log = environment / "log"
    server = Server(python, environment, ServingArguments({}, variables), log)
    with pytest.raises(ServingError):
        server.start(10, Listener())
    assert f"CUDA_HOME is {environment}/cuda/{name}" in log.read_text()
    assert ("cuda/toolkit/bin/nvcc\n" in log.read_text()) == (name == "toolkit")
