"""Verification: sound variants pass, and every kind of damage is caught by its name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantized_checkpoint import (
    LINEAR,
    SIZE,
    WEIGHTS,
    Layout,
    overwrite,
    quantized_layout,
    source_files,
    source_layout,
)
from small_checkpoint import safetensors, write_files
from verification import INDEX, Verification, shard

from pipeline.errors import CheckpointError

KINDS = ("preset", "awq")
LAYER = LINEAR[1]


@pytest.fixture
def verification(tmp_path: Path) -> Verification:
    return Verification(tmp_path)


@pytest.fixture(params=KINDS)
def sound(request: pytest.FixtureRequest, verification: Verification) -> Verification:
    """A variant without fault, of either kind."""
    verification.write(request.param)
    return verification


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestSound:
    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("scale", ["BF16", "F16", "F32"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_passes(self, verification: Verification, kind: str, scale: str, tied: bool) -> None:
        verification.write(kind, tied=tied, scale=scale)
        result = verification.run().result
        assert result["quantized_tensors"] == result["scales_checked"] == len(LINEAR)
        size = (verification.variant / WEIGHTS).stat().st_size
        assert result["weights_bytes"] == size
        assert result["size_ratio"] == size / (verification.source / WEIGHTS).stat().st_size
        assert result["size_ratio"] < 0.8
        assert result["weights_digest"] == "d" * 64
        done = ("variant: verify scales", len(LINEAR), len(LINEAR), "tensors")
        assert verification.listener.events[-1] == done

    def test_a_tied_head_stored_by_the_source_may_be_left_out(self, sound: Verification) -> None:
        """Some libraries store the shared tensor twice."""
        layout = source_layout() | {"lm_head.weight": ("BF16", (32, SIZE))}
        (sound.source / WEIGHTS).write_bytes(safetensors(layout))
        assert sound.run().result["quantized_tensors"] == len(LINEAR)

    def test_a_head_that_the_recipe_quantizes(self, verification: Verification) -> None:
        verification.write("preset", tied=False)
        head: Layout = {
            "lm_head.weight": ("F8_E4M3", (32, SIZE)),
            "lm_head.weight_scale": ("BF16", (32, 1)),
        }
        verification.write_variant_weights(quantized_layout("preset") | head)
        assert verification.run(ignore=()).result["quantized_tensors"] == len(LINEAR) + 1

    def test_symmetric_groups_have_no_zero_points(self, verification: Verification) -> None:
        verification.write("awq")
        layout = quantized_layout("awq")
        kept = {name: t for name, t in layout.items() if not name.endswith("zero_point")}
        verification.write_variant_weights(kept)
        group = {"group_0": {"weights": {"num_bits": 4, "symmetric": True}}}
        config = {"quant_method": "compressed-tensors", "config_groups": group}
        change_config(verification.variant, quantization_config=config)
        assert verification.run().result["quantized_tensors"] == len(LINEAR)

    def test_shards(self, sound: Verification) -> None:
        shard(sound.variant, quantized_layout(sound.kind))
        assert sound.run().result["quantized_tensors"] == len(LINEAR)


class TestScales:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("scale", "value"),
        [
            ("BF16", b"\xc0\x7f"),
            ("BF16", b"\x80\x7f"),
            ("F16", struct.pack("<e", float("nan"))),
            ("F32", struct.pack("<f", float("nan"))),
            ("F32", struct.pack("<f", float("-inf"))),
        ],
        ids=["bf16 NaN", "bf16 infinite", "f16 NaN", "f32 NaN", "f32 infinite"],
    )
    def test_one_is_not_finite(
        self, verification: Verification, kind: str, scale: str, value: bytes
    ) -> None:
        verification.write(kind, scale=scale)
        overwrite(verification.variant, f"{LAYER}.weight_scale", value, element=SIZE - 1)
        words = f"'{LAYER}.weight_scale' holds a scale that is not finite"
        error = verification.fault()
        assert error.what == words
        assert error.where == str(verification.variant / WEIGHTS)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("scale", "value"),
        [
            ("BF16", b"\0\0"),
            ("BF16", b"\0\x80"),
            ("BF16", b"\x80\xbf"),
            ("F16", struct.pack("<e", -0.5)),
            ("F32", struct.pack("<f", 0.0)),
            ("F32", struct.pack("<f", -1e-9)),
        ],
        ids=["bf16 0", "bf16 -0", "bf16 -1", "f16 -0.5", "f32 0", "f32 -1e-9"],
    )
    def test_one_is_zero_or_negative(
        self, verification: Verification, kind: str, scale: str, value: bytes
    ) -> None:
        verification.write(kind, scale=scale)
        overwrite(verification.variant, f"{LAYER}.weight_scale", value, element=3)
        words = f"'{LAYER}.weight_scale' holds a scale that is not above zero"
        assert verification.fault().what == words


class TestTensors:
    def test_a_layer_was_not_quantized(self, sound: Verification) -> None:
        layout = {
            name: tensor
            for name, tensor in quantized_layout(sound.kind).items()
            if not name.startswith(f"{LAYER}.")
        }
        sound.write_variant_weights(layout | {f"{LAYER}.weight": ("BF16", (SIZE, SIZE))})
        assert f"'{LAYER}.weight" in sound.fault().what

    @pytest.mark.parametrize(
        ("kind", "name"),
        [(kind, n) for kind in KINDS for n in quantized_layout(kind, tied=False)],
    )
    def test_any_one_missing(self, verification: Verification, kind: str, name: str) -> None:
        verification.write(kind, tied=False)
        layout = quantized_layout(kind, tied=False)
        del layout[name]
        verification.write_variant_weights(layout)
        error = verification.fault()
        assert f"'{name}' is missing" in error.what

    @pytest.mark.parametrize(
        ("kind", "name", "shape"),
        [
            ("preset", f"{LAYER}.weight", (SIZE, SIZE // 2)),
            ("preset", f"{LAYER}.weight_scale", (SIZE // 2, 1)),
            ("preset", f"{LAYER}.weight_scale", (SIZE,)),
            ("preset", f"{LAYER}.weight_scale", ()),
            ("awq", f"{LAYER}.weight_scale", (SIZE, 3)),
            ("awq", f"{LAYER}.weight_scale", (SIZE, 0)),
            ("awq", f"{LAYER}.weight_packed", (SIZE // 2, SIZE // 8)),
            ("awq", f"{LAYER}.weight_packed", (SIZE, SIZE // 8 - 1)),
            ("awq", f"{LAYER}.weight_packed", (SIZE * SIZE // 8,)),
            ("preset", "model.norm.weight", (SIZE // 2,)),
            ("awq", "model.embed_tokens.weight", (31, SIZE)),
        ],
    )
    def test_wrong_shape(
        self, verification: Verification, kind: str, name: str, shape: tuple[int, ...]
    ) -> None:
        verification.write(kind)
        layout = quantized_layout(kind)
        verification.write_variant_weights(layout | {name: (layout[name][0], shape)})
        assert f"'{name}' has shape {shape}" in verification.fault().what

    @pytest.mark.parametrize(
        ("kind", "name", "dtype"),
        [
            ("preset", f"{LAYER}.weight", "BF16"),
            ("preset", f"{LAYER}.weight", "U8"),
            ("preset", f"{LAYER}.weight_scale", "F8_E4M3"),
            ("awq", f"{LAYER}.weight_packed", "F32"),
            ("awq", f"{LAYER}.weight_scale", "U8"),
            ("awq", f"{LAYER}.weight_shape", "F32"),
            ("awq", f"{LAYER}.weight_zero_point", "I64"),
            ("preset", "lm_head.weight", "F8_E4M3"),
            ("awq", "model.embed_tokens.weight", "U8"),
        ],
    )
    def test_wrong_type(self, verification: Verification, kind: str, name: str, dtype: str) -> None:
        verification.write(kind, tied=False)
        layout = quantized_layout(kind, tied=False)
        verification.write_variant_weights(layout | {name: (dtype, layout[name][1])})
        assert f"'{name}' is stored as {dtype}" in verification.fault().what

    def test_an_untied_head_is_missing(self, sound: Verification) -> None:
        sound.write(sound.kind, tied=False)
        sound.write_variant_weights(quantized_layout(sound.kind, tied=True))
        assert "'lm_head.weight' is missing" in sound.fault().what

    def test_a_dropped_shard(self, sound: Verification) -> None:
        names = shard(sound.variant, quantized_layout(sound.kind))
        (sound.variant / names[1]).unlink()
        with pytest.raises(CheckpointError, match=names[1]):
            sound.run()

    def test_a_dropped_shard_that_the_index_forgot(self, sound: Verification) -> None:
        names = shard(sound.variant, quantized_layout(sound.kind))
        (sound.variant / names[1]).unlink()
        index = sound.variant / INDEX
        weight_map = json.loads(index.read_text())["weight_map"]
        kept = {tensor: name for tensor, name in weight_map.items() if name != names[1]}
        index.write_text(json.dumps({"weight_map": kept}))
        missing = set(weight_map) - set(kept)
        assert any(f"'{tensor}' is missing" in sound.fault().what for tensor in missing)

    def test_cut_short(self, sound: Verification) -> None:
        path = sound.variant / WEIGHTS
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match="cut short") as caught:
            sound.run()
        assert caught.value.where == str(path)

    def test_nothing_was_quantized(self, sound: Verification) -> None:
        sound.write_variant_weights(source_layout())
        assert "nothing was quantized" in sound.fault(ignore=("*",)).what


class TestIgnore:
    """Layers that the recipe leaves in 16 bits."""

    def leave(self, verification: Verification, kind: str) -> None:
        verification.write(kind)
        layout = {n: t for n, t in quantized_layout(kind).items() if not n.startswith(f"{LAYER}.")}
        verification.write_variant_weights(layout | {f"{LAYER}.weight": ("BF16", (SIZE, SIZE))})

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("word", [LAYER, "*.layers.0.mlp.*", "re:.*0\\.mlp\\.down_proj$"])
    def test_left_as_it_is(self, verification: Verification, kind: str, word: str) -> None:
        self.leave(verification, kind)
        result = verification.run(ignore=("lm_head", word)).result
        assert result["quantized_tensors"] == len(LINEAR) - 1

    @pytest.mark.parametrize("word", ["mlp.down_proj", "re:mlp", "re:.*1\\.mlp", "*.1.mlp.*"])
    def test_words_that_do_not_mean_it(self, verification: Verification, word: str) -> None:
        self.leave(verification, "preset")
        assert f"'{LAYER}.weight'" in verification.fault(ignore=("lm_head", word)).what

    @pytest.mark.parametrize("kind", KINDS)
    def test_quantized_against_the_recipe(self, verification: Verification, kind: str) -> None:
        verification.write(kind)
        assert f"'{LAYER}.weight' is" in verification.fault(ignore=("lm_head", LAYER)).what


def remove_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def change_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b'{"version": "1.0", "truncation": 512}')


def add_tokenizer_file(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_bytes(b"{}")


class TestFiles:
    @pytest.mark.parametrize(
        ("damage", "name", "words"),
        [
            (change_tokenizer, "tokenizer.json", "'tokenizer.json' differs"),
            (remove_template, "chat_template.jinja", "'chat_template.jinja' is missing from"),
            (add_tokenizer_file, "special_tokens_map.json", "was added to"),
        ],
    )
    def test_tokenizer_and_template(
        self, sound: Verification, damage: Callable[[Path], None], name: str, words: str
    ) -> None:
        damage(sound.variant)
        error = sound.fault()
        assert words in error.what
        assert error.where == str(sound.variant / name)

    @pytest.mark.parametrize(
        "config", [None, {}, {"quant_method": "awq"}, "compressed-tensors"], ids=str
    )
    def test_config_does_not_tell(self, sound: Verification, config: Any) -> None:
        change_config(sound.variant, quantization_config=config)
        error = sound.fault()
        assert "config.json does not say" in error.what
        assert "key quantization_config" in error.where

    def test_no_quantization_config(self, sound: Verification) -> None:
        (sound.variant / "config.json").write_bytes(source_files()["config.json"])
        assert "config.json does not say" in sound.fault().what

    def test_config_is_damaged(self, sound: Verification) -> None:
        (sound.variant / "config.json").write_text("{")
        with pytest.raises(CheckpointError, match="not valid JSON"):
            sound.run()

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "x.pkl"])
    def test_pickled_data(self, sound: Verification, name: str) -> None:
        (sound.variant / name).write_bytes(b"")
        assert sound.fault().where == str(sound.variant / name)

    def test_no_smaller_than_the_source(self, sound: Verification) -> None:
        ballast: Layout = {"ballast": ("BF16", (1, 64 * 1024))}
        sound.write_variant_weights(quantized_layout(sound.kind) | ballast)
        assert "the source's only" in sound.fault().what

    def test_a_failed_verification_leaves_no_record(self, sound: Verification) -> None:
        remove_template(sound.variant)
        sound.fault()
        stages = sound.folder / "store" / "stages" / "verify"
        assert [path.suffix for path in stages.iterdir()] == [".partial"]
        write_files(sound.variant, {"chat_template.jinja": b"{{ messages }}"})
        assert sound.run().stage == "verify"
        assert [path.suffix for path in stages.iterdir()] == [""]
