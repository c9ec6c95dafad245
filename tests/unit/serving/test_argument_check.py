from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.serving.argument_check import check_engine_arguments
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import UsageError

SERVED = [("identity", ServingArguments({"max-num-seqs": 4}, {}))]


class Interpreter:
    def __init__(self, folder: Path, code: int, words: str = "") -> None:
        self.calls = folder / "calls"
        self.path = folder / "python"
        self.path.write_text(
            f'#!/bin/sh\necho "$*" >> {self.calls}\necho "{words}" >&2\nexit {code}\n'
        )
        self.path.chmod(0o755)

    def check(self, accepted: Path, served: list[tuple[str, ServingArguments]] = SERVED) -> int:
        check_engine_arguments(served, lambda name: self.path, accepted)
        return self.calls.read_text().count("--max-num-seqs") if self.calls.exists() else 0


def test_accepted_arguments_are_read_once(tmp_path: Path) -> None:
    python, accepted = Interpreter(tmp_path, 0), tmp_path / "accepted"
    assert [python.check(accepted) for _ in range(3)] == [1, 1, 1]
    assert python.check(accepted, [("another environment", SERVED[0][1])]) == 2
    assert python.check(accepted, [("identity", ServingArguments({"max-num-seqs": 5}, {}))]) == 3


def test_a_refusal_has_the_parsers_words_and_is_not_remembered(tmp_path: Path) -> None:
    python = Interpreter(tmp_path, 2, "usage: x\nx: error: there is no option --max-num-seqs")
    for _ in range(2):
        with pytest.raises(UsageError, match="there is no option --max-num-seqs"):
            python.check(tmp_path / "accepted")


@pytest.mark.parametrize("code", [1, 127])
def test_an_engine_that_cannot_be_imported_refuses_nothing(tmp_path: Path, code: int) -> None:
    python = Interpreter(tmp_path, code, "ImportError: error: libnuma")
    assert [python.check(tmp_path / "accepted") for _ in range(2)] == [1, 2]
