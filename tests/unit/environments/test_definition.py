from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tiny_environment import TinySource

from pipeline.environments.definition import (
    define,
    environment_names,
    normalize,
    parse_lock,
    significant_lines,
)
from pipeline.environments.managed import LOCKS
from recipes.accelerator import Accelerator

EVERY = [(name, accelerator) for name in environment_names() for accelerator in Accelerator]


@pytest.mark.parametrize(("name", "accelerator"), EVERY)
def test_every_lock_is_whole_and_names_no_host(name: str, accelerator: Accelerator) -> None:
    definition = define(name, accelerator)
    assert len(definition.pins) > 40
    text = definition.lock.read_text()
    options = set(re.findall(r"--[a-z-]+", text))
    assert options == {"--hash"}, "no option of an index"
    assert "://" not in text
    assert ("+cpu" in text) is (definition.key.endswith("-cpu")), "which of torch's two builds"
    assert ("\ntorch===" in text) is definition.needs_cuda_torch
    hashed = [line for line in significant_lines(text) if "--hash=sha256:" in line]
    assert len(hashed) == len(definition.pins)


@pytest.mark.parametrize("source", sorted(LOCKS.glob("*.in")), ids=lambda path: path.name)
def test_every_exact_wish_is_locked_as_wished(source: Path) -> None:
    pins = parse_lock(source.with_suffix(".txt").read_text())
    for line in significant_lines(source.read_text()):
        name, _, version = re.sub(r"\[.*?\]", "", line).partition("==")
        assert normalize(name) in pins
        if version:
            assert pins[normalize(name)] == version


@pytest.mark.parametrize("file", sorted(LOCKS.glob("*.overrides.txt")), ids=lambda path: path.name)
def test_every_override_agrees_with_its_lock(file: Path) -> None:
    pins = parse_lock(file.with_name(file.name.replace(".overrides", "")).read_text())
    for line in significant_lines(file.read_text()):
        name, _, never = line.partition(" ; ")
        wanted = Requirement(name)
        if never:
            assert normalize(wanted.name) not in pins
        else:
            # An override also replaces the lock's own line: a range takes the index's newest.
            assert str(wanted.specifier) == f"=={pins[normalize(wanted.name)]}"


def test_one_version_reads_tokenizers_in_every_environment() -> None:
    """AutoAWQ's alone are older, and compared with the file before they calibrate."""
    found = {
        file.stem: [parse_lock(file.read_text()).get(n) for n in ("transformers", "tokenizers")]
        for file in LOCKS.glob("*.txt")
        if file.with_suffix(".in").is_file()
    }
    reading = {name: pins for name, pins in found.items() if all(pins) and "autoawq" not in name}
    assert {"evaluate", "quantize-cpu", "quantize-cuda", "serve-cpu", "serve-cuda"} == set(reading)
    assert len(set(map(tuple, reading.values()))) == 1, reading


def test_the_compiler_fits_the_runtime_that_torch_brings() -> None:
    pins = define("serve", Accelerator.CUDA).pins
    runtime = pins["nvidia-cuda-runtime"].rpartition(".")[0]
    for part in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-nvrtc"):
        assert pins[part].rpartition(".")[0] == runtime
    # One older than its modules' own package would overwrite them.
    assert pins["cuda-python"] == pins["cuda-bindings"]


def test_identities_differ() -> None:
    keys = {define(*pair).key: define(*pair).identity for pair in EVERY}
    assert len(keys) == len(set(keys.values())) == 7


class TestIdentity:
    def test_stays(self, tiny: TinySource) -> None:
        before = tiny.definition.identity
        pin = tiny.definition.lock.read_text().replace("tiny-thing", "tiny_thing")
        tiny.definition.lock.write_text(f"# a comment\n\n{pin}")
        source = tiny.definition.plugins[0] / "src" / "tiny_plugin"
        (source / "__pycache__").mkdir()
        (source / "__pycache__" / "x.pyc").write_bytes(b"bytecode")
        assert tiny.definition.identity == before

    @pytest.mark.parametrize("changed", ["the lock", "a plugin"])
    def test_follows_the_sources(self, tiny: TinySource, changed: str) -> None:
        before = tiny.definition.identity
        source = tiny.definition.plugins[0] / "src" / "tiny_plugin" / "__init__.py"
        if changed == "the lock":
            lock = tiny.definition.lock
            lock.write_text(lock.read_text().replace("==1.0", "==1.1"))
        else:
            source.write_text("CHANGED = True\n")
        assert tiny.definition.identity != before

    def test_is_the_same_on_every_python(
        self, tiny: TinySource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Environments have the Python of their locks, not that which runs prepare."""
        before = tiny.definition.identity
        monkeypatch.setattr("sys.version_info", (3, 99, 0))
        assert tiny.definition.identity == before


@pytest.mark.parametrize(
    "line",
    ["torch>=2", "torch", "-e .", "torch @ file:///x", "a==1 ; python_version > '3'", "a==1"],
)
def test_a_line_that_pins_nothing_is_a_mistake(line: str) -> None:
    with pytest.raises(ValueError, match=repr(line)):
        parse_lock(line)
