"""Verification: sound variants of every format pass, and every kind of damage is caught by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_weights import Verification, forget, shard
from narrow_numbers import Stored, bf16, floating, from_bf16
from sound_variants import (
    HIDDEN,
    LAYERS,
    LINEAR,
    RECIPES,
    RESCALED,
    VOCABULARY,
    WEIGHTS,
    Tensors,
    overwrite,
    quantized,
    safetensors_of,
    source_tensors,
    variant_tensors,
)
from weight_comparer import Compare, comparer

from pipeline.stages.check_weights import check_smaller
from prepare.errors import VerificationError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

KINDS = tuple(RECIPES)
UNSCALED = tuple(kind for kind in KINDS if kind not in RESCALED)
LAYER = LINEAR[3]  # model.layers.0.mlp.down_proj
OTHER = LINEAR[7]  # model.layers.1.mlp.down_proj
NORM = "model.layers.1.input_layernorm.weight"
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
# The least that each format leaves of the random weights, in dB.
SQNR = {"fp8-dynamic": 31, "fp8-block": 31, "fp8-static": 31, "nvfp4": 19, "mxfp4": 17, "gptq": 17}
MIXED = (SQNR["nvfp4"], SQNR["fp8-dynamic"])


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compare]:
    with comparer(tmp_path_factory.mktemp("comparer")) as found:
        yield found


@pytest.fixture
def verification(tmp_path: Path, compare: Compare) -> Verification:
    return Verification(tmp_path, compare)


@pytest.fixture(params=UNSCALED)
def sound(request: pytest.FixtureRequest, verification: Verification) -> Verification:
    """A variant without fault, of each kind."""
    verification.write(request.param)
    return verification


@pytest.fixture
def one(verification: Verification) -> Verification:
    """A variant without fault of one kind, for faults in which the format has no part."""
    verification.write("gptq")
    return verification


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def parts(tensors: Tensors, module: str) -> list[str]:
    return [name for name in tensors if name.startswith(f"{module}.")]


def numbers(tensors: Tensors, module: str) -> str:
    """The tensor that holds the layer's weights."""
    suffixes = ("weight", "weight_packed", "qweight")
    return next(f"{module}.{suffix}" for suffix in suffixes if f"{module}.{suffix}" in tensors)


def left_as_it_is(kind: str) -> dict[str, Stored | None]:
    """The changes that put the source's layer in the place of the quantized one."""
    gone: dict[str, Stored | None] = dict.fromkeys(parts(variant_tensors(kind), LAYER))
    return gone | {f"{LAYER}.weight": source_tensors()[f"{LAYER}.weight"]}


def scale_of(tensors: Tensors, module: str) -> str:
    suffixes = ("weight_scale", "scales")
    return next(f"{module}.{suffix}" for suffix in suffixes if f"{module}.{suffix}" in tensors)


class TestSound:
    @pytest.mark.parametrize("tied", [True, False])
    def test_passes(self, sound: Verification, tied: bool) -> None:
        sound.write(sound.kind, tied=tied)
        found = sound.run()
        assert [layer.name for layer in found.layers] == list(LINEAR)
        assert found.altered == {}
        size = (sound.variant / WEIGHTS).stat().st_size
        assert found.size_bytes == size < 0.8 * (sound.source / WEIGHTS).stat().st_size
        layer = found.layers[3]
        assert (layer.rows, layer.columns) == (HIDDEN, 256)
        ratios = [layer.sqnr_db or 0 for layer in found.layers]
        lowest, highest = MIXED if sound.kind == "mixed" else (SQNR[sound.kind],) * 2
        assert lowest < min(ratios) <= max(ratios) < highest + 3
        assert found.floor_db is not None
        assert found.floor_db < min(ratios) - 4

    @pytest.mark.parametrize("scale", ["F16", "F32"])
    @pytest.mark.parametrize("kind", ["fp8-dynamic", "gptq"])
    def test_scales_of_other_types(self, verification: Verification, kind: str, scale: str) -> None:
        verification.write(kind, scale=scale)
        assert len(verification.run().layers) == len(LINEAR)

    @pytest.mark.parametrize("name", HEADS)
    def test_a_tied_head_that_the_source_stores_may_be_left_out(
        self, one: Verification, name: str
    ) -> None:
        """Some libraries store the shared tensor twice."""
        one.add_to_source({name: source_tensors()["model.embed_tokens.weight"]})
        assert one.run().layers

    @pytest.mark.parametrize("name", HEADS)
    def test_a_tied_head_may_be_stored_again(self, one: Verification, name: str) -> None:
        one.write_changed(one.kind, {name: variant_tensors(one.kind)["model.embed_tokens.weight"]})
        assert one.run().layers

    def test_a_tied_head_that_is_not_the_embedding(self, one: Verification) -> None:
        head = {"lm_head.weight": bf16(np.ones((VOCABULARY, HIDDEN)))}
        assert "'lm_head.weight' is not the embedding" in one.fault_of(one.kind, head)

    def test_a_head_that_the_recipe_quantizes(self, verification: Verification) -> None:
        verification.write("fp8-dynamic", tied=False)
        tensors = variant_tensors("fp8-dynamic", tied=False)
        head = from_bf16(tensors.pop("lm_head.weight"))
        tensors |= quantized("lm_head", head, "fp8-dynamic", "BF16")
        verification.write_variant_weights(tensors)
        assert len(verification.run(ignore=()).layers) == len(LINEAR) + 1


class TestScales:
    @pytest.mark.parametrize(
        ("kind", "scale", "value", "words"),
        [
            ("fp8-dynamic", "BF16", float("nan"), "finite"),
            ("fp8-dynamic", "F16", float("inf"), "finite"),
            ("fp8-block", "F32", float("nan"), "finite"),
            ("gptq", "BF16", float("nan"), "finite"),
            ("fp8-dynamic", "BF16", 0.0, "above zero"),
            ("fp8-block", "BF16", -0.0, "above zero"),
            ("gptq", "F32", 0.0, "above zero"),
        ],
    )
    def test_the_last_one_is_none(
        self, verification: Verification, kind: str, scale: str, value: float, words: str
    ) -> None:
        verification.write(kind, scale=scale)
        stored = floating([value], scale).array.tobytes()
        last = variant_tensors(kind)[f"{LAYER}.weight_scale"].array.size - 1
        overwrite(verification.variant, f"{LAYER}.weight_scale", stored, element=last)
        error = verification.fault()
        assert error.message == f"'{LAYER}.weight_scale' has a scale that is not {words}"
        assert error.where == str(verification.variant / WEIGHTS)

    @pytest.mark.parametrize(
        ("kind", "name", "data"),
        [
            ("fp8-static", "model.layers.2.self_attn.k_scale", b"\xc0\x7f"),
            ("fp8-static", "model.layers.0.self_attn.v_scale", b"\0\0"),
            ("fp8-static", f"{LAYER}.input_scale", b"\x80\xff"),
            ("nvfp4", f"{LAYER}.weight_scale", b"\x7f"),
            ("nvfp4", f"{LAYER}.weight_scale", b"\x81"),
            ("nvfp4", f"{LAYER}.weight_global_scale", struct.pack("<f", 0.0)),
            ("nvfp4", f"{LAYER}.input_global_scale", struct.pack("<f", float("nan"))),
        ],
    )
    def test_of_other_kinds(
        self, verification: Verification, kind: str, name: str, data: bytes
    ) -> None:
        verification.write(kind)
        overwrite(verification.variant, name, data)
        assert f"'{name}' has a scale that is not" in verification.fault().message


class TestWeights:
    """Damage that only the numbers show: all names, types, shapes and scales are right."""

    def test_two_layers_are_exchanged(self, sound: Verification) -> None:
        tensors = variant_tensors(sound.kind)
        for name in parts(tensors, LAYER):
            twin = name.replace(LAYER, OTHER)
            tensors[name], tensors[twin] = tensors[twin], tensors[name]
        sound.write_variant_weights(tensors)
        error = sound.fault()
        assert f"the weights of '{LAYER}'" in error.message or f"of '{OTHER}'" in error.message
        assert "under the floor" in error.message
        alike = 6 if sound.kind == "mixed" else 12
        assert f"the median of {alike} layers" in error.message

    def test_a_layer_of_zeros(self, sound: Verification) -> None:
        tensors = variant_tensors(sound.kind)
        name = numbers(tensors, LAYER)
        # Any number may stand for zero: all are the same.
        tensors[name].array[:] = tensors[name].array[:1] * 0
        sound.write_variant_weights(tensors)
        error = sound.fault()
        assert f"the weights of '{LAYER}'" in error.message
        assert "under the floor" in error.message

    def test_a_flipped_block(self, sound: Verification) -> None:
        """Half of the rows of a small block: the layer's SQNR barely moves."""
        tensors = variant_tensors(sound.kind)
        stored = tensors[numbers(tensors, LAYER)].array
        stored[: len(stored) // 2, : stored.shape[1] // 2] ^= -1 if stored.dtype != "u1" else 255
        sound.write_variant_weights(tensors)
        assert f"the weights of '{LAYER}'" in sound.fault().message

    @pytest.mark.parametrize("name", [NORM, "model.embed_tokens.weight", "model.norm.weight"])
    def test_a_kept_tensor_is_changed(self, one: Verification, name: str) -> None:
        overwrite(one.variant, name, b"\x80\x3f", element=5)
        error = one.fault()
        assert (
            error.message
            == f"'{name}' differs from the source's, and the recipe does not change it"
        )

    @pytest.mark.parametrize("dtype", ["F16", "F32"])
    def test_a_kept_tensor_of_another_type(self, one: Verification, dtype: str) -> None:
        """The numbers are the source's: named, no error. In float16 most are not."""
        values = from_bf16(variant_tensors(one.kind)[NORM])
        one.write_changed(one.kind, {NORM: floating(values, dtype)})
        assert one.run().altered == {NORM: f"BF16 to {dtype}"}

    def test_norms_that_were_rounded_with_a_one_more(self, one: Verification) -> None:
        """As llm-compressor leaves Gemma's."""
        tensors, names = variant_tensors(one.kind), [NORM, "model.norm.weight"]
        for name in names:
            one_more = from_bf16(bf16(1 + from_bf16(source_tensors()[name])))
            tensors[name] = bf16(one_more - 1)
        damaged = {NORM: bf16(from_bf16(tensors[NORM]) * 1.02)}
        assert f"'{NORM}' differs" in one.fault_of(one.kind, tensors | damaged)
        one.write_variant_weights(tensors)
        assert one.run().altered == dict.fromkeys(names, "BF16, rounded as 1 + w")

    def test_an_expert_of_zeros(self, verification: Verification) -> None:
        """Its scales may be anything."""
        zeros = {f"{LAYER}.weight": bf16(np.zeros((HIDDEN, 256)))}
        changes: dict[str, Stored | None] = {f"{LAYER}.weight_scale": bf16(np.zeros((HIDDEN, 1)))}
        changes[f"{LAYER}.weight"] = Stored("F8_E4M3", np.zeros((HIDDEN, 256), np.uint8))
        verification.write_changed("fp8-dynamic", changes)
        verification.add_to_source(zeros)
        found = verification.run()
        assert found.layers[3].sqnr_db is None

    @pytest.mark.parametrize("name", [NORM, f"{LAYER}.weight"])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_a_source_that_is_not_finite(self, one: Verification, name: str, value: float) -> None:
        """The source's file is named."""
        tensor = source_tensors()[name]
        tensor.array.reshape(-1)[7] = bf16([value]).array[0]
        one.add_to_source({name: tensor})
        with pytest.raises(VerificationError, match=f"the source's tensor '{name}'") as caught:
            one.run()
        assert caught.value.where == str(one.source / WEIGHTS)

    def test_a_variant_that_is_not_finite(self, verification: Verification) -> None:
        verification.write("fp8-dynamic")
        overwrite(verification.variant, f"{LAYER}.weight", b"\xff", element=1000)
        error = verification.fault()
        assert error.message == f"'{LAYER}.weight' has values that are not finite"
        assert error.where == str(verification.variant / WEIGHTS)

    def test_a_kept_tensor_that_lost_digits(self, verification: Verification) -> None:
        thirds = np.full(HIDDEN, 1 / 3, np.float32)
        verification.write_changed("gptq", {NORM: bf16(thirds)})
        verification.add_to_source({NORM: Stored("F32", thirds)})
        assert f"'{NORM}' changed from F32 to BF16" in verification.fault().message


class TestTensors:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_layer_was_not_quantized(self, verification: Verification, kind: str) -> None:
        assert f"'{LAYER}." in verification.fault_of(kind, left_as_it_is(kind))

    @pytest.mark.parametrize(
        ("kind", "name"),
        [(kind, name) for kind in KINDS for name in parts(variant_tensors(kind), LAYER)]
        + [("fp8-dynamic", name) for name in source_tensors(tied=False) if "proj" not in name]
        + [("fp8-static", f"model.layers.2.self_attn.{key}") for key in ("k_scale", "v_scale")],
    )
    def test_any_one_missing(self, verification: Verification, kind: str, name: str) -> None:
        what = verification.fault_of(kind, {name: None}, tied=False)
        assert f"'{name}'" in what
        assert "is missing" in what

    def test_a_stranger(self, one: Verification) -> None:
        name = "model.layers.0.mlp.extra.weight"
        what = one.fault_of(one.kind, {name: bf16(np.ones(8))})
        assert f"'{name}' is unexpected" in what

    def test_scales_of_a_kv_cache_that_nobody_asked_for(self, verification: Verification) -> None:
        name = "model.layers.0.self_attn.k_scale"
        what = verification.fault_of("fp8-dynamic", {name: bf16([0.5])})
        assert f"'{name}' is unexpected" in what

    def test_stacked_experts(self, verification: Verification) -> None:
        name = "model.layers.0.mlp.experts.1.gate_proj"
        expert = quantized(name, np.ones((4, 8)), "fp8-dynamic", "BF16")
        verification.write_changed("fp8-dynamic", expert)
        stacked = "model.layers.0.mlp.experts.gate_up_proj"
        verification.add_to_source({stacked: bf16(np.ones((2, 8, 8)))})
        with pytest.raises(Exception, match="experts"):
            verification.run()

    @pytest.mark.parametrize(
        ("kind", "name", "shape"),
        [
            ("fp8-dynamic", f"{LAYER}.weight", (HIDDEN, 128)),
            ("fp8-dynamic", f"{LAYER}.weight_scale", (64, 1)),
            ("fp8-dynamic", f"{LAYER}.weight_scale", (HIDDEN,)),
            ("fp8-dynamic", f"{LAYER}.weight_scale", ()),
            ("fp8-static", f"{LAYER}.weight_scale", (HIDDEN, 1)),
            ("fp8-block", f"{LAYER}.weight_scale", (2, 1)),
            ("awq", f"{LAYER}.weight_scale", (HIDDEN, 3)),
            ("awq", f"{LAYER}.weight_scale", (HIDDEN, 0)),
            ("awq", f"{LAYER}.weight_packed", (HIDDEN // 2, 32)),
            ("gptq", f"{LAYER}.weight_packed", (HIDDEN, 31)),
            ("awq", f"{LAYER}.weight_zero_point", (HIDDEN, 4)),
            ("nvfp4", f"{LAYER}.weight_scale", (HIDDEN, 8)),
            ("autoawq", f"{LAYER}.scales", (HIDDEN, 4)),
            ("autoawq", f"{LAYER}.qzeros", (4, 15)),
            ("fp8-dynamic", "model.norm.weight", (HIDDEN // 2,)),
            ("awq", "model.embed_tokens.weight", (31, HIDDEN)),
        ],
    )
    def test_wrong_shape(
        self, verification: Verification, kind: str, name: str, shape: tuple[int, ...]
    ) -> None:
        old = variant_tensors(kind)[name]
        changed = {name: Stored(old.dtype, np.ones(shape, old.array.dtype))}
        assert f"'{name}' has shape {shape}" in verification.fault_of(kind, changed)

    @pytest.mark.parametrize(
        ("kind", "name", "dtype"),
        [
            ("fp8-dynamic", f"{LAYER}.weight", "BF16"),
            ("fp8-dynamic", f"{LAYER}.weight", "U8"),
            ("fp8-dynamic", f"{LAYER}.weight_scale", "F8_E4M3"),
            ("int8", f"{LAYER}.weight", "U8"),
            ("awq", f"{LAYER}.weight_packed", "F32"),
            ("awq", f"{LAYER}.weight_scale", "U8"),
            ("awq", f"{LAYER}.weight_shape", "F32"),
            ("awq", f"{LAYER}.weight_zero_point", "I64"),
            ("nvfp4", f"{LAYER}.weight_packed", "I32"),
            ("nvfp4", f"{LAYER}.weight_scale", "BF16"),
            ("autoawq", f"{LAYER}.qweight", "F32"),
            ("fp8-dynamic", "lm_head.weight", "F8_E4M3"),
            ("awq", "model.embed_tokens.weight", "U8"),
        ],
    )
    def test_wrong_type(self, verification: Verification, kind: str, name: str, dtype: str) -> None:
        size = {"BF16": "u2", "F32": "f4", "I32": "i4", "I64": "i8"}.get(dtype, "u1")
        shape = variant_tensors(kind, tied=False)[name].array.shape
        what = verification.fault_of(kind, {name: Stored(dtype, np.zeros(shape, size))}, tied=False)
        assert f"'{name}' is stored as {dtype}" in what

    def test_the_shape_that_is_stored(self, verification: Verification) -> None:
        verification.write("gptq")
        overwrite(verification.variant, f"{LAYER}.weight_shape", struct.pack("<q", 127))
        assert f"'{LAYER}.weight_shape' has [127, 256]" in verification.fault().message

    def test_a_dropped_shard_that_the_index_forgot(self, one: Verification) -> None:
        names = shard(one.variant, variant_tensors(one.kind))
        (one.variant / names[1]).unlink()
        missing = forget(one.variant, lambda _, file: file == names[1])
        what = one.fault().message
        assert "is missing" in what
        assert any(f"'{tensor}'" in what for tensor in missing)

    def test_a_shard_that_the_index_forgot(self, one: Verification) -> None:
        names = shard(one.variant, variant_tensors(one.kind))
        forget(one.variant, lambda _, file: file == names[1])
        assert "not part of the model" in one.fault().message

    def test_a_tensor_that_the_index_forgot(self, one: Verification) -> None:
        shard(one.variant, variant_tensors(one.kind))
        forget(one.variant, lambda tensor, _: tensor == NORM)
        assert f"'{NORM}' is in" in one.fault().message

    def test_nothing_was_quantized(self, one: Verification) -> None:
        one.write_variant_weights(source_tensors())
        assert "nothing was quantized" in one.fault(ignore=("*",)).message


class TestIgnore:
    """Layers that the recipe leaves in 16 bits."""

    @pytest.mark.parametrize("word", [LAYER, "*.layers.0.mlp.d*", "re:.*0\\.mlp\\.down_proj$"])
    def test_left_as_it_is(self, verification: Verification, word: str) -> None:
        verification.write_changed("gptq", left_as_it_is("gptq"))
        assert len(verification.run(ignore=("lm_head", word)).layers) == len(LINEAR) - 1

    @pytest.mark.parametrize("word", ["mlp.down_proj", "re:mlp", "re:.*1\\.mlp", "*.1.mlp.*"])
    def test_words_that_do_not_mean_it(self, verification: Verification, word: str) -> None:
        changes = left_as_it_is("fp8-dynamic")
        what = verification.fault_of("fp8-dynamic", changes, ignore=("lm_head", word))
        assert f"'{LAYER}.weight'" in what

    def test_quantized_against_the_recipe(self, sound: Verification) -> None:
        assert f"'{LAYER}.weight' is" in sound.fault(ignore=("lm_head", LAYER)).message


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("tokenizer.json", b'{"version": "1.0", "truncation": 512}', "differs"),
            ("chat_template.jinja", None, "is missing from"),
            ("special_tokens_map.json", b"{}", "was added to"),
            ("generation_config.json", b'{"eos_token_id": 3}', "differs"),
        ],
    )
    def test_tokenizer_and_template(
        self, one: Verification, name: str, content: bytes | None, words: str
    ) -> None:
        file = one.variant / name
        file.unlink() if content is None else file.write_bytes(content)
        error = one.fault()
        assert f"'{name}' {words}" in error.message
        assert error.where == str(file)

    @pytest.mark.parametrize("name", ["qwen.tiktoken", "sentencepiece.bpe.model"])
    def test_a_vocabulary_by_another_name(self, verification: Verification, name: str) -> None:
        verification.write("fp8-dynamic")
        (verification.source / name).write_bytes(b"IQ== 0")
        assert verification.fault().message == f"'{name}' is missing from the variant"
        (verification.variant / name).write_bytes(b"IQ== 1")
        assert verification.fault().message == f"'{name}' differs from the source's"
        (verification.variant / name).write_bytes(b"IQ== 0")
        assert verification.run().layers

    def test_generation_config_saved_by_another_version(self, one: Verification) -> None:
        text = b'{"transformers_version": "5.17.0", "eos_token_id": 2}'
        (one.variant / "generation_config.json").write_bytes(text)
        assert one.run().layers

    @pytest.mark.parametrize(
        "config", [None, {}, {"quant_method": "gptq"}, "compressed-tensors"], ids=str
    )
    @pytest.mark.parametrize("kind", ["gptq", "autoawq"])
    def test_config_does_not_tell(self, verification: Verification, kind: str, config: Any) -> None:
        verification.write(kind)
        change_config(verification.variant, quantization_config=config)
        error = verification.fault()
        words = (
            "does not describe the weights' format"
            if isinstance(config, dict) and config
            else ("config.json does not mark")
        )
        assert words in error.message
        assert "key quantization_config" in error.where

    @pytest.mark.parametrize(
        ("kind", "other"),
        [("awq", "awq-sym"), ("fp8-dynamic", "fp8-block"), ("gptq", "awq"), ("nvfp4", "gptq")],
    )
    def test_another_recipes_variant(
        self, verification: Verification, kind: str, other: str
    ) -> None:
        verification.write(other)
        verification.kind = kind
        error = verification.fault()
        assert "config.json has the weight format" in error.message
        assert "and the recipe requires" in error.message

    @pytest.mark.parametrize(
        ("kind", "changed"),
        [
            ("awq", {"strategy": "tensor"}),
            ("awq", {"num_bits": 8}),
            ("gptq", {"group_size": 7}),
            ("fp8-dynamic", {"format": "pack-quantized"}),
            ("fp8-dynamic", {"format": "foo"}),
        ],
    )
    def test_config_describes_another_format_than_the_tensors(
        self, verification: Verification, kind: str, changed: dict[str, Any]
    ) -> None:
        verification.write(kind)
        config = json.loads((verification.variant / "config.json").read_text())
        described = config["quantization_config"]
        for group in described["config_groups"].values():
            if "format" in changed:
                group.pop("format", None)
                described.update(changed)
            else:
                group["weights"].update(changed)
        change_config(verification.variant, quantization_config=described)
        error = verification.fault()
        assert "and the recipe requires" in error.message
        assert "key quantization_config" in error.where

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "x.pkl", "x.gguf"])
    def test_other_weights(self, one: Verification, name: str) -> None:
        (one.variant / name).write_bytes(b"")
        assert one.fault().where == str(one.variant / name)

    def test_another_file_of_weights(self, one: Verification) -> None:
        (one.variant / "consolidated.safetensors").write_bytes(safetensors_of(source_tensors()))
        assert one.fault().where == str(one.variant / "consolidated.safetensors")

    def test_no_smaller_than_the_source(self, one: Verification) -> None:
        assert check_smaller(one.source, one.variant) > 0
        with pytest.raises(VerificationError) as caught:
            check_smaller(one.variant, one.source)
        assert caught.value.where == str(one.source)


class TestConfig:
    """config.json still describes the source's model."""

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("vocab_size", VOCABULARY + 1),
            ("model_type", "mistral"),
            ("tie_word_embeddings", False),
            ("rope_theta", 500000.0),
            ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}),
            ("max_position_embeddings", LAYERS),
        ],
    )
    def test_another_model(self, verification: Verification, key: str, value: Any) -> None:
        verification.write("fp8-dynamic")
        change_config(verification.variant, **{key: value})
        error = verification.fault()
        assert "the source's has" in error.message
        assert "config.json, key " in error.where

    @pytest.mark.parametrize("key", ["vocab_size", "model_type"])
    def test_a_key_is_gone(self, verification: Verification, key: str) -> None:
        verification.write("fp8-dynamic")
        path = verification.variant / "config.json"
        path.write_text(
            json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key})
        )
        assert f"lacks the key '{key}'" in verification.fault().message

    def test_the_words_of_transformers_5(self, verification: Verification) -> None:
        verification.write("fp8-dynamic")
        path = verification.variant / "config.json"
        config = json.loads(path.read_text())
        theta = config.pop("rope_theta")
        config |= {
            "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
            "transformers_version": "5.17.0",
            "dtype": "bfloat16",
            "attention_bias": False,
        }
        path.write_text(json.dumps(config))
        assert verification.run().layers
