"""Files of the stream: their name tells that they are whole, and whole ones are not made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_checkpoint import safetensors

from pipeline.checkpoint.safetensors_header import read_header
from pipeline.core.errors import CheckpointError
from pipeline.workers.fp8_stream.layout import Chunk, ShardPlan, plan_shard
from pipeline.workers.fp8_stream.resume import NOTE, close, take_up
from pipeline.workers.fp8_stream.shard_file import ShardFile, unfinished_path

VERSIONS = {"torch": "1"}


@pytest.fixture
def plans(tmp_path: Path) -> list[ShardPlan]:
    """The result for three source files with a matrix each."""
    folder = tmp_path / "source"
    folder.mkdir()
    found = []
    for number in range(3):
        path = folder / f"model-{number}.safetensors"
        path.write_bytes(safetensors({f"l{number}.weight": ("BF16", (4, 6))}))
        header = read_header(path)
        plan = plan_shard(path, header, "FP8_DYNAMIC", set(header.tensors))
        assert plan is not None
        found.append(plan)
    return found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


def finish(plan: ShardPlan, output: Path) -> None:
    """Make the file, its data all zero."""
    ShardFile(plan, output, 1).finish()


def waiting(output: Path, plans: list[ShardPlan], scheme: str = "FP8_DYNAMIC") -> list[str]:
    return [plan.name for plan in take_up(output, plans, scheme, VERSIONS)]


def test_a_fresh_folder_has_all_to_do(output: Path, plans: list[ShardPlan]) -> None:
    assert waiting(output, plans) == [plan.name for plan in plans]


def test_a_finished_file_is_not_made_again(output: Path, plans: list[ShardPlan]) -> None:
    waiting(output, plans)
    finish(plans[1], output)
    assert waiting(output, plans) == [plans[0].name, plans[2].name]
    assert (output / plans[1].name).is_file()


def test_an_unfinished_file_is_made_again(output: Path, plans: list[ShardPlan]) -> None:
    waiting(output, plans)
    ShardFile(plans[1], output, 1).close()
    assert unfinished_path(output / plans[1].name).is_file()
    assert waiting(output, plans) == [plan.name for plan in plans]
    assert not unfinished_path(output / plans[1].name).exists()


@pytest.mark.parametrize("damage", ["shorter", "other header"])
def test_a_damaged_file_is_made_again(output: Path, plans: list[ShardPlan], damage: str) -> None:
    waiting(output, plans)
    finish(plans[1], output)
    path = output / plans[1].name
    content = path.read_bytes()
    path.write_bytes(content[:-1] if damage == "shorter" else b"\0" + content[1:])
    assert plans[1].name in waiting(output, plans)


def test_files_of_other_weights_are_made_again(output: Path, plans: list[ShardPlan]) -> None:
    waiting(output, plans)
    finish(plans[1], output)
    os.utime(plans[1].source, (1, 1))
    assert len(waiting(output, plans)) == 3
    assert not (output / plans[1].name).exists()


def test_files_of_another_scheme_or_version_are_made_again(
    output: Path, plans: list[ShardPlan]
) -> None:
    waiting(output, plans)
    finish(plans[1], output)
    assert len(waiting(output, plans, "FP8_BLOCK")) == 3
    finish(plans[1], output)
    assert len(take_up(output, plans, "FP8_BLOCK", {"torch": "2"})) == 3


def test_files_without_a_note_are_not_trusted(output: Path, plans: list[ShardPlan]) -> None:
    finish(plans[1], output)
    assert len(waiting(output, plans)) == 3


def test_a_note_cut_off_is_no_note(output: Path, plans: list[ShardPlan]) -> None:
    waiting(output, plans)
    finish(plans[1], output)
    note = output / NOTE
    note.write_text(note.read_text()[:-5])
    assert len(waiting(output, plans)) == 3


def test_the_note_goes_when_all_is_done(output: Path, plans: list[ShardPlan]) -> None:
    waiting(output, plans)
    close(output)
    assert list(output.iterdir()) == []


def test_strange_weights_are_removed_and_other_files_left(
    output: Path, plans: list[ShardPlan]
) -> None:
    (output / "model.safetensors").write_bytes(b"old")
    (output / "tokenizer.json").write_text("{}")
    waiting(output, plans)
    assert sorted(path.name for path in output.iterdir()) == [NOTE, "tokenizer.json"]


class TestShardFile:
    def test_has_its_name_only_when_finished(self, output: Path, plans: list[ShardPlan]) -> None:
        file = ShardFile(plans[0], output, 2)
        assert not (output / plans[0].name).exists()
        assert not file.piece_done()
        assert file.piece_done()
        file.write(memoryview(b"\1\2"), plans[0].size - 2)
        file.finish()
        content = (output / plans[0].name).read_bytes()
        assert content.startswith(plans[0].header)
        assert content.endswith(b"\1\2")
        assert len(content) == plans[0].size
        assert not unfinished_path(output / plans[0].name).exists()

    def test_reads_its_source(self, output: Path, plans: list[ShardPlan]) -> None:
        file = ShardFile(plans[0], output, 1)
        move = plans[0].moves[0]
        room = bytearray(move.size)
        file.read(Chunk(move.begin, move.size, 0, "BF16"), memoryview(room))
        file.close()
        assert room == b"\7" * move.size

    def test_says_when_the_source_ends_early(self, output: Path, plans: list[ShardPlan]) -> None:
        file = ShardFile(plans[0], output, 1)
        move = plans[0].moves[0]
        with pytest.raises(CheckpointError, match="became shorter"):
            file.read(Chunk(move.begin + 8, move.size, 0, "BF16"), memoryview(bytearray(move.size)))
        file.close()

    def test_a_missing_source_leaves_nothing_open(
        self, output: Path, plans: list[ShardPlan]
    ) -> None:
        plans[0].source.unlink()
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(FileNotFoundError):
            ShardFile(plans[0], output, 1)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
