"""The plan of an FP8 file: a valid header, every byte written once, the library's own order."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from small_checkpoint import safetensors

from pipeline.checkpoint.safetensors_header import SafetensorsHeader, TensorEntry, read_header
from pipeline.workers.fp8_stream.layout import (
    SCHEMES,
    ShardPlan,
    byte_size,
    pieces,
    plan_shard,
    scale_shape,
)
from pipeline.workers.fp8_stream.variant_config import write_index

SHAPES = st.one_of(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(0, 50)),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)),
)
LAYOUTS = st.dictionaries(
    st.text("abcü.", min_size=1, max_size=6).map(lambda name: f"{name}.weight"),
    st.tuples(st.sampled_from(["BF16", "F16", "F32"]), SHAPES),
    min_size=1,
    max_size=6,
)


def header_of(layout: dict[str, tuple[str, tuple[int, ...]]]) -> SafetensorsHeader:
    """The header of a source file with these tensors, one after the other."""
    tensors, position = {}, 0
    for name, (dtype, shape) in layout.items():
        size = byte_size(dtype, shape)
        tensors[name] = TensorEntry(dtype, shape, position, position + size)
        position += size
    return SafetensorsHeader(tensors, {}, 100, position)


def matrices(header: SafetensorsHeader) -> set[str]:
    return {name for name, tensor in header.tensors.items() if len(tensor.shape) == 2}


def planned(header: SafetensorsHeader, scheme: str) -> ShardPlan:
    plan = plan_shard(Path("model.safetensors"), header, scheme, matrices(header))
    assert plan is not None
    return plan


@given(LAYOUTS, st.sampled_from(SCHEMES))
def test_the_header_is_one_that_safetensors_allows(
    tmp_path_factory, layout: dict[str, tuple[str, tuple[int, ...]]], scheme: str
) -> None:
    header = header_of(layout)
    plan = planned(header, scheme)
    path = tmp_path_factory.mktemp("out") / plan.name
    path.write_bytes(plan.header + bytes(plan.size - len(plan.header)))
    written = read_header(path)  # checks coverage and sizes
    assert written.metadata == {"format": "pt"}
    assert written.data_start % 8 == 0
    for name in matrices(header):
        source = header.tensors[name]
        assert (written.tensors[name].dtype, written.tensors[name].shape) == (
            "F8_E4M3",
            source.shape,
        )
        scale = written.tensors[f"{name.removesuffix('.weight')}.weight_scale"]
        assert (scale.dtype, scale.shape) == (source.dtype, scale_shape(scheme, source.shape))
    assert len(written.tensors) == len(header.tensors) + len(matrices(header))


@given(LAYOUTS, st.sampled_from(SCHEMES), st.integers(1, 5000))
def test_pieces_write_every_byte_once(
    layout: dict[str, tuple[str, tuple[int, ...]]], scheme: str, piece_bytes: int
) -> None:
    header = header_of(layout)
    plan = planned(header, scheme)
    written = [(0, len(plan.header))]
    read = []
    for move in plan.moves:
        for piece in pieces(move, scheme, piece_bytes):
            read.append((piece.begin - header.data_start, piece.size))
            if not piece.rows:
                written.append((piece.target, piece.size))
                continue
            written.append((piece.target, piece.rows * piece.columns))
            count = scale_shape(scheme, (piece.rows, piece.columns))
            size = byte_size(piece.dtype, count)
            written.append((piece.scale_target, size))
    assert covers(written, plan.size)
    assert covers(read, header.data_bytes)


def covers(runs: list[tuple[int, int]], size: int) -> bool:
    """Whether the runs lie one after the other and end there."""
    position = 0
    for begin, length in sorted(run for run in runs if run[1]):
        if begin != position:
            return False
        position += length
    return position == size


def test_the_order_is_that_of_the_safetensors_library() -> None:
    """Wider types first, then names: a file of one shard is llm-compressor's, byte for byte."""
    layout = {
        "b.weight": ("BF16", (2, 2)),
        "z.norm": ("F32", (2,)),
        "a.weight": ("BF16", (2, 2)),
        "a.bias": ("BF16", (2,)),
    }
    plan = planned(header_of(layout), "FP8_DYNAMIC")
    content = json.loads(plan.header[8:])
    assert list(content) == [
        "__metadata__",
        "z.norm",
        "a.bias",
        "a.weight_scale",
        "b.weight_scale",
        "a.weight",
        "b.weight",
    ]


def test_what_is_left_out_is_not_there() -> None:
    header = header_of({"lm_head.weight": ("BF16", (2, 2)), "norm.weight": ("BF16", (2,))})
    plan = plan_shard(Path("m.safetensors"), header, "FP8_DYNAMIC", set(), {"lm_head.weight"})
    assert plan is not None
    assert list(plan.tensors) == ["norm.weight"]


def test_a_file_of_which_nothing_is_left_is_not_made() -> None:
    header = header_of({"lm_head.weight": ("BF16", (2, 2))})
    assert plan_shard(Path("m"), header, "FP8_DYNAMIC", set(), {"lm_head.weight"}) is None


class TestTheIndex:
    def plans(self, folder: Path, *names: str) -> list[ShardPlan]:
        found = []
        for number, name in enumerate(names):
            path = folder / name
            path.write_bytes(safetensors({f"l{number}.weight": ("BF16", (4, 6))}))
            header = read_header(path)
            plan = plan_shard(path, header, "FP8_DYNAMIC", set(header.tensors))
            assert plan is not None
            found.append(plan)
        return found

    def test_names_the_file_of_weights_and_scales(self, tmp_path: Path) -> None:
        write_index(tmp_path, self.plans(tmp_path, "one.safetensors", "two.safetensors"))
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {
            "l0.weight": "one.safetensors",
            "l0.weight_scale": "one.safetensors",
            "l1.weight": "two.safetensors",
            "l1.weight_scale": "two.safetensors",
        }
        assert index["metadata"]["total_size"] == 2 * (4 * 6 + 4 * 2)

    def test_is_not_needed_for_one_file_of_the_usual_name(self, tmp_path: Path) -> None:
        write_index(tmp_path, self.plans(tmp_path, "model.safetensors"))
        assert not (tmp_path / "model.safetensors.index.json").exists()
