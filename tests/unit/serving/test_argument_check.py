from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.serving.argument_check import check_engine_arguments, engine_version
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError, UsageError

SERVED = [("identity", ServingArguments({"max-num-seqs": 4}, {}))]


class Interpreter:
    def __init__(self, folder: Path, code: int, words: str = "", told: str = "") -> None:
        self.calls = folder / "calls"
        self.path = folder / "python"
        lines = ("#!/bin/sh", f'echo "begins $*" >> {self.calls}', f'echo "{words}" >&2')
        self.path.write_text("\n".join((*lines, f"echo {told}", f"exit {code}", "")))
        self.path.chmod(0o755)

    def check(self, accepted: Path, served: list[tuple[str, ServingArguments]] = SERVED) -> int:
        check_engine_arguments(served, lambda name: self.path, accepted)
        return self.calls.read_text().count("--max-num-seqs") if self.calls.exists() else 0

    def starts(self) -> int:
        return self.calls.read_text().count("begins")


def test_accepted_arguments_are_read_once(tmp_path: Path) -> None:
    python, accepted = Interpreter(tmp_path, 0), tmp_path / "accepted"
    assert [python.check(accepted) for _ in range(3)] == [1, 1, 1]
    assert python.check(accepted, [("another environment", SERVED[0][1])]) == 2
    assert python.check(accepted, [("identity", ServingArguments({"max-num-seqs": 5}, {}))]) == 3


def test_a_folder_that_cannot_be_written_to_remembers_nothing(tmp_path: Path) -> None:
    """PREPARE_HOME of an image is read-only."""
    python = Interpreter(tmp_path, 0)
    (tmp_path / "file").touch()
    assert [python.check(tmp_path / "file" / "accepted") for _ in range(2)] == [1, 2]


def test_all_arms_are_read_in_one_process(tmp_path: Path) -> None:
    """Each start imports the engine."""
    python = Interpreter(tmp_path, 0)
    served = [("identity", ServingArguments({"max-num-seqs": count}, {})) for count in (4, 5, 6)]
    assert python.check(tmp_path / "accepted", served) == 3
    assert python.starts() == 1


def test_the_version_is_asked_once(tmp_path: Path) -> None:
    python = Interpreter(tmp_path, 0, told="engine-version 0.33.0")
    assert [engine_version("vllm", python.path) for _ in range(3)] == ["0.33.0"] * 3
    assert python.starts() == 1


def test_an_engine_without_a_version(tmp_path: Path) -> None:
    """It would be the same as any other one without."""
    with pytest.raises(ServingError):
        engine_version("vllm", Interpreter(tmp_path, 0, told="engine-version").path)
    with pytest.raises(ServingError):
        engine_version("vllm", Interpreter(tmp_path, 0).path)


def test_a_refusal_has_the_parsers_words_and_is_not_remembered(tmp_path: Path) -> None:
    python = Interpreter(tmp_path, 2, "usage: x\nx: error: there is no option --max-num-seqs")
    for _ in range(2):
        with pytest.raises(UsageError, match="there is no option --max-num-seqs"):
            python.check(tmp_path / "accepted")


@pytest.mark.parametrize("code", [1, 127])
def test_an_engine_that_cannot_be_imported_refuses_nothing(tmp_path: Path, code: int) -> None:
    python = Interpreter(tmp_path, code, "ImportError: error: libnuma")
    assert [python.check(tmp_path / "accepted") for _ in range(2)] == [1, 2]
