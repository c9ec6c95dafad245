"""A CUDA environment takes a torch that is built for CUDA, or is not ready."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_environment import Heard, TinySource, write_torch

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.events import NullProgress
from pipeline.environments.definition import Accelerator, EnvironmentDefinition, define
from pipeline.environments.environment import ensure_defined
from pipeline.environments.external import require_modules
from pipeline.environments.folders import environment_folder
from pipeline.environments.health import find_fault
from pipeline.environments.record import read_record
from pipeline.environments.settings import EnvironmentOverride


@pytest.fixture
def for_cuda(tiny: TinySource) -> EnvironmentDefinition:
    tiny.definition.lock.write_text("tiny-thing==1.0\ntorch==2.13.0\n")
    write_torch(tiny.wheels, "2.13.0+cpu", None)
    return dataclasses.replace(tiny.definition, key="serve-cuda", accelerator=Accelerator.CUDA)


def test_the_cpu_build_in_find_links_is_not_taken(
    tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path
) -> None:
    write_torch(tiny.wheels, "2.13.0", "13.0")
    # The same lock for the CPU takes the +cpu build, as uv holds it for the newer one.
    assert ensure_defined(tiny.definition, home, NullProgress()).versions["torch"] == "2.13.0+cpu"
    assert ensure_defined(for_cuda, home, NullProgress()).versions["torch"] == "2.13.0"


def test_where_there_is_no_other_the_build_fails(
    for_cuda: EnvironmentDefinition, home: Path
) -> None:
    with pytest.raises(EnvironmentBuildError):
        ensure_defined(for_cuda, home, NullProgress())
    assert not environment_folder(home, for_cuda).exists()


def test_a_build_for_the_cpu_under_the_plain_version_fails(
    tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path
) -> None:
    write_torch(tiny.wheels, "2.13.0", None)
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure_defined(for_cuda, home, NullProgress())
    assert "torch.version.cuda" in caught.value.message


def test_one_that_was_built_before_is_found_and_built_anew(
    tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path, heard: Heard
) -> None:
    write_torch(tiny.wheels, "2.13.0", "13.0")
    built = ensure_defined(for_cuda, home, NullProgress())
    folder = environment_folder(home, for_cuda)
    assert find_fault(for_cuda, folder, read_record(folder)) is None
    version = next(folder.glob("lib/python3*/site-packages/torch/version.py"))
    version.unlink()  # its bytes are those of uv's cache, a hard link
    version.write_text("cuda = None\n")
    assert "torch.version.cuda" in str(find_fault(for_cuda, folder, read_record(folder)))
    assert ensure_defined(for_cuda, home, heard).identity == built.identity
    assert "rebuilding" in heard.notes[0]
    assert find_fault(for_cuda, folder, read_record(folder)) is None


def test_an_interpreter_of_the_sites_is_looked_at_too(
    tiny: TinySource, for_cuda: EnvironmentDefinition, home: Path
) -> None:
    ours = ensure_defined(tiny.definition, home, NullProgress())  # with the +cpu build
    override = EnvironmentOverride(python=ours.python)
    require_modules(tiny.definition, override)
    with pytest.raises(EnvironmentBuildError) as caught:
        require_modules(for_cuda, override)
    assert "not for CUDA" in caught.value.message


def test_which_need_it() -> None:
    needing = {
        define(name, accelerator).key
        for name in ("quantize", "quantize-autoawq", "serve", "evaluate")
        for accelerator in Accelerator
        if define(name, accelerator).needs_cuda_torch
    }
    assert needing == {"quantize-cuda", "quantize-autoawq-cuda", "serve-cuda"}
