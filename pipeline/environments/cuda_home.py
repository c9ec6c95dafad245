"""The CUDA_HOME of servers: a managed environment's own toolkit, or none, never the host's.

vLLM 0.33 selects kernels by the nvcc that it finds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from recipes.engine_arguments import COMPILES

FOLDER = "cuda"
TOOLKIT = "toolkit"
WITHOUT_COMPILER = "none"
PARTS = ("bin", "include", "nvvm")
# Resolved at link time, because the driver belongs to the host.
DRIVER_LINKS = "/* GNU ld script: the driver of this host */\nINPUT(-l:libcuda.so.1)\n"


def make_cuda_home(environment: Path) -> None:
    """Lay out the environment's compiler as a toolkit, once.

    Linkers look for library names without a version.
    """
    place = environment / FOLDER
    compiler = next(environment.glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc"), None)
    if compiler is None or place.exists():
        return
    packages = compiler.parent.parent
    made = environment / f"{FOLDER}.partial"
    shutil.rmtree(made, ignore_errors=True)
    libraries = made / TOOLKIT / "lib64"
    (libraries / "stubs").mkdir(parents=True)
    (made / WITHOUT_COMPILER).mkdir()
    for part in PARTS:
        (made / TOOLKIT / part).symlink_to(packages / part)
    for library in sorted((packages / "lib").iterdir()):
        (libraries / library.name).symlink_to(library)
        short = f"{library.name.partition('.so.')[0]}.so"
        if ".so." in library.name and not (packages / "lib" / short).exists():
            (libraries / short).unlink(missing_ok=True)
            (libraries / short).symlink_to(library)
    (libraries / "stubs" / "libcuda.so").write_text(DRIVER_LINKS)
    made.rename(place)


def compiler_variables(python: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return CUDA_HOME for a server; {} without such a folder.

    The profile's `PREPARE_NVCC=1` lets the engine compile kernels.
    """
    home = cuda_home(python, variables)
    return {"CUDA_HOME": str(home)} if home.parent.is_dir() else {}


def cuda_home(python: Path, variables: Mapping[str, str]) -> Path:
    """Return the place of the interpreter's toolkit, or of none."""
    chosen = TOOLKIT if variables.get(COMPILES) == "1" else WITHOUT_COMPILER
    return python.parent.parent / FOLDER / chosen
