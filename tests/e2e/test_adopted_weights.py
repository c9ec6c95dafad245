"""Weights that others quantized: sound ones pass in every format, others fail by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_variants import CONFIGS, foreign_files, foreign_tensors
from narrow_numbers import Stored, bf16, from_bf16
from small_checkpoint import write_files
from sound_variants import (
    LINEAR,
    RECIPES,
    WEIGHTS,
    Tensors,
    safetensors_of,
    source_files,
    source_tensors,
    variant_files,
    variant_tensors,
)
from weight_comparer import Compare, check_variant, comparer

from pipeline.stages.check_weights import VerificationResult
from prepare.errors import CheckpointError, PrepareError, VerificationError
from recipes.quantizers.adopted import AdoptedQuantization

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LAYER = "model.layers.1.mlp.down_proj"
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<eos>", "special": True}],
    "pre_tokenizer": None,
}
# Layouts whose headers alone are compared.
BY_HEADER = ("gptq", "gptq_v2")
BITS = {"fp8": 8, "modelopt-fp8": 8, "gguf": 16, "gptq_v2": 8}


# Set by the fixture.
COMPARE: list[Compare] = []


@pytest.fixture(scope="module", autouse=True)
def compare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with comparer(tmp_path_factory.mktemp("comparer")) as found:
        COMPARE[:] = [found]
        yield


def verify(
    folder: Path, files: dict[str, bytes], bits: int = 4, source: dict[str, bytes] | None = None
) -> VerificationResult:
    tokenizer = {"tokenizer.json": as_json(TOKENIZER)}
    write_files(folder / "source", (source or source_files()) | tokenizer)
    write_files(folder / "variant", {"tokenizer.json": as_json(TOKENIZER)} | files)
    recipe = AdoptedQuantization(
        kind="adopted", origin="org/name", digest="d", layout="", bits=bits, number="int"
    )
    return check_variant(folder / "source", folder / "variant", recipe, COMPARE[0])


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def without_tokenizer(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != "tokenizer.json"}


def of_ours(kind: str, tensors: Tensors | None = None) -> dict[str, bytes]:
    files = without_tokenizer(variant_files(kind))
    return files if tensors is None else files | {WEIGHTS: safetensors_of(tensors)}


def of_others(kind: str, tensors: Tensors | None = None) -> dict[str, bytes]:
    return without_tokenizer(foreign_files(kind, tensors))


@pytest.mark.parametrize("kind", list(RECIPES))
def test_sound_variants_of_our_quantizers(tmp_path: Path, kind: str) -> None:
    """As if another person had made them with the same libraries."""
    found = verify(tmp_path, of_ours(kind), 8 if "8" in kind else 4)
    assert [layer.name for layer in found.layers] == list(LINEAR)
    assert not found.not_compared


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_sound_variants_of_other_programs(tmp_path: Path, kind: str) -> None:
    found = verify(tmp_path, of_others(kind), BITS.get(kind, 4))
    if kind in BY_HEADER:
        assert not found.layers
        assert "no library here dequantizes" in found.not_compared
        return
    assert {*LINEAR} <= {layer.name for layer in found.layers}
    assert len(found.layers) == len(LINEAR) + (kind == "gguf")


def test_weights_in_16_bits_may_have_been_trained(tmp_path: Path) -> None:
    """The source's own, as of a variant that the server makes, were not."""
    found = verify(tmp_path / "gguf", of_others("gguf"), 16)
    assert any("trained afterwards" in note for note in found.notes)
    found = verify(tmp_path / "same", without_tokenizer(source_files()), 16)
    assert not any("trained afterwards" in note for note in found.notes)


FOREIGN_SCALES = {
    "modelopt-fp8": "weight_scale",
    "modelopt-nvfp4": "weight_scale_2",
    "fp8": "weight_scale_inv",
    "gguf": "weight",
}


def doubled(tensors: Tensors, name: str) -> Tensors:
    stored = tensors[name]
    if stored.dtype == "F8_E4M3":  # one more in the exponent
        changed: Stored = replace(stored, array=stored.array + np.uint8(8))
    elif stored.dtype == "BF16":
        changed = bf16(from_bf16(stored) * 2)
    else:
        changed = replace(stored, array=stored.array * np.asarray(2, stored.array.dtype))
    return tensors | {name: changed}


@pytest.mark.parametrize("kind", list(FOREIGN_SCALES))
def test_doubled_scales_of_a_layer_by_others(tmp_path: Path, kind: str) -> None:
    tensors = doubled(foreign_tensors(kind), f"{LAYER}.{FOREIGN_SCALES[kind]}")
    with pytest.raises(VerificationError, match=f"'{LAYER}' have an SQNR of -?0[.][01] dB"):
        verify(tmp_path, of_others(kind, tensors), BITS.get(kind, 4))


def other_tokenizer(change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    tokenizer = json.loads(json.dumps(TOKENIZER))
    change(tokenizer)
    return {"tokenizer.json": as_json(tokenizer)}


class TestTokenizer:
    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda t: t["model"]["vocab"].update(a=1, b=0), "vocabulary"),
            (lambda t: t["model"].update(merges=["b a"]), "merges"),
            (lambda t: t["added_tokens"][0].update(content="</s>"), "added tokens"),
        ],
    )
    def test_another(
        self, tmp_path: Path, change: Callable[[dict[str, Any]], None], what: str
    ) -> None:
        with pytest.raises(CheckpointError, match=f"not the source's: it has other {what}") as e:
            verify(tmp_path, of_others("gptq") | other_tokenizer(change))
        assert e.value.where.endswith("tokenizer.json")

    def test_another_vocabulary_without_json(self, tmp_path: Path) -> None:
        files = {"tokenizer.json": as_json(TOKENIZER)}
        write_files(tmp_path / "source", {"vocab.txt": b"a\nb"})
        (tmp_path / "source" / "tokenizer.json").unlink(missing_ok=True)
        write_files(tmp_path / "variant", of_others("gptq") | {"vocab.txt": b"b\na"})
        write_files(tmp_path / "source", source_files())
        (tmp_path / "source" / "tokenizer.json").unlink()
        recipe = AdoptedQuantization(
            kind="adopted", origin="o", digest="d", layout="", bits=4, number="int"
        )
        with pytest.raises(CheckpointError, match="another vocabulary"):
            check_variant(tmp_path / "source", tmp_path / "variant", recipe, COMPARE[0])
        (tmp_path / "variant" / "vocab.txt").unlink()
        write_files(tmp_path / "variant", files)
        with pytest.raises(CheckpointError, match="no tokenizer file"):
            check_variant(tmp_path / "source", tmp_path / "variant", recipe, COMPARE[0])

    def test_two_added_tokens_with_one_id(self, tmp_path: Path) -> None:
        hidden = {"id": 3, "content": "the", "special": True}
        files = other_tokenizer(lambda t: t["added_tokens"].insert(0, hidden))
        with pytest.raises(CheckpointError, match="it has other added tokens"):
            verify(tmp_path, of_others("gptq") | files)

    def test_another_way_of_merging_is_for_the_gates(self, tmp_path: Path) -> None:
        files = other_tokenizer(lambda t: t["model"].update(dropout=0.5, byte_fallback=False))
        notes = verify(tmp_path, of_others("gptq") | files).notes
        assert "tokenizer.json differs from the source's in model.dropout" in notes

    def test_saved_again_by_another_version(self, tmp_path: Path) -> None:
        """Lists for merges, and a truncation of the calibration."""
        saved = other_tokenizer(
            lambda t: (
                t.update(truncation={"max_length": 512}) or t["model"].update(merges=[["a", "b"]])
            )
        )
        assert verify(tmp_path, of_others("gptq") | saved).size_bytes


def changed_config(kind: str, **keys: Any) -> dict[str, bytes]:
    files = of_others(kind)
    return files | {"config.json": as_json(json.loads(files["config.json"]) | keys)}


class TestConfig:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hidden_size", 256),
            ("vocab_size", 64),
            ("architectures", ["MistralForCausalLM"]),
            ("rope_theta", 500000.0),
        ],
    )
    def test_of_another_model(self, tmp_path: Path, key: str, value: Any) -> None:
        with pytest.raises(CheckpointError, match="of another model"):
            verify(tmp_path, changed_config("gptq", **{key: value}))

    def test_other_keys_are_for_the_gates(self, tmp_path: Path) -> None:
        files = changed_config("gptq", max_position_embeddings=64, use_cache=False)
        notes = verify(tmp_path, files).notes
        assert "config.json differs from the source's in max_position_embeddings" in notes

    def test_defaults_of_sampling(self, tmp_path: Path) -> None:
        """The gates set their own, so they would not see it."""
        sampling = as_json({"temperature": 5.0, "transformers_version": "1"})
        notes = verify(tmp_path, of_others("gptq") | {"generation_config.json": sampling}).notes
        assert any(
            "generation_config.json differs" in note and "temperature:" in note for note in notes
        )

    def test_chat_template(self, tmp_path: Path) -> None:
        files = of_others("gptq") | {"chat_template.jinja": b"{{ other }}"}
        assert any("chat template" in note for note in verify(tmp_path, files).notes)


def quantization_of(kind: str, **keys: Any) -> dict[str, bytes]:
    config = CONFIGS[kind]
    assert config is not None
    return changed_config(kind, quantization_config=config | keys)


class TestQuantizationConfig:
    @pytest.mark.parametrize(
        ("files", "words"),
        [
            (lambda: quantization_of("gptq", group_size=128), "has shape"),
            (lambda: quantization_of("gptq", bits=8), "has shape"),
            (lambda: quantization_of("gptq", quant_method="awq", version="gemm"), "has shape"),
            (lambda: quantization_of("gptq", bits=None), "does not describe"),
            (lambda: quantization_of("fp8", weight_block_size=[64, 64]), "has shape"),
            (lambda: changed_config("gptq", quantization_config=None), "is missing"),
            (lambda: changed_config("gptq", quantization_config={"bits": 4}), "does not describe"),
            (lambda: changed_config("gptq", quantization_config="gptq"), "does not describe"),
            (lambda: quantization_of("gptq", quant_method="GPTQ", group_size=128), "has shape"),
        ],
    )
    def test_wrong(self, tmp_path: Path, files: Callable[[], dict[str, bytes]], words: str) -> None:
        with pytest.raises(PrepareError, match=words):
            verify(tmp_path, files())

    @pytest.mark.parametrize(
        ("ignore", "words"),
        [
            ([LAYER], f"'{LAYER}' is stored quantized"),
            (["re:.*q_proj"], r"q_proj' is stored quantized.*; so are 2 more"),
        ],
    )
    def test_ignored_layers_that_are_quantized(
        self, tmp_path: Path, ignore: list[str], words: str
    ) -> None:
        with pytest.raises(VerificationError, match=words) as caught:
            verify(tmp_path, self.with_ignore("gptq", ignore))
        assert caught.value.where.endswith("quantization_config.ignore")

    def test_a_layer_in_16_bits_that_is_not_ignored(self, tmp_path: Path) -> None:
        tensors = variant_tensors("fp8-dynamic")
        del tensors[f"{LAYER}.weight_scale"]
        tensors[f"{LAYER}.weight"] = source_tensors()[f"{LAYER}.weight"]
        files = of_ours("fp8-dynamic", tensors)
        with pytest.raises(VerificationError, match=f"'{LAYER}' is stored in 16 bits"):
            verify(tmp_path, files, 8)
        ignored = self.with_ignore("fp8-dynamic", ["lm_head", LAYER])
        found = verify(tmp_path, ignored | {WEIGHTS: files[WEIGHTS]}, 8)
        assert len(found.layers) == len(LINEAR) - 1

    @pytest.mark.parametrize(
        ("targets", "words"),
        [
            (["re:.*k_proj"], "q_proj' .nvfp4.* and '.*k_proj' .float.* have two formats"),
            (["re:.*up_proj"], "has shape|is stored as|is missing"),
        ],
    )
    def test_groups_that_split_a_fused_set(
        self, tmp_path: Path, targets: list[str], words: str
    ) -> None:
        """The weights fit the config; vLLM would load them all in one format."""
        four, eight = variant_tensors("nvfp4"), variant_tensors("fp8-dynamic")
        split = {name: tensor for name, tensor in four.items() if ".k_proj." not in name}
        split |= {name: tensor for name, tensor in eight.items() if ".k_proj." in name}
        files = of_ours("mixed", split)
        config = json.loads(files["config.json"])
        config["quantization_config"]["config_groups"]["group_0"]["targets"] = targets
        with pytest.raises(VerificationError, match=words) as caught:
            verify(tmp_path, files | {"config.json": as_json(config)})
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("targets", "others", "words"),
        [
            (["*.self_attn.*"], ["Linear"], "is missing"),  # a pattern matches nothing
            ([r"re:.*\.[qk]_proj"], ["re:.*_proj"], "part of 'model.*qkv_proj' in vLLM"),
            (["re:.*attn.*"], ["Linear", "re:.*attn.*"], "is missing"),  # the last group's
        ],
    )
    def test_groups_are_read_as_by_vllm(
        self, tmp_path: Path, targets: list[str], others: list[str], words: str
    ) -> None:
        config = json.loads(of_ours("mixed")["config.json"])
        groups = config["quantization_config"]["config_groups"]
        groups["group_0"]["targets"], groups["group_1"]["targets"] = targets, others
        with pytest.raises(VerificationError, match=words) as caught:
            verify(tmp_path, of_ours("mixed") | {"config.json": as_json(config)})
        assert caught.value.hint

    def test_an_ignored_name_of_a_fused_set(self, tmp_path: Path) -> None:
        with pytest.raises(VerificationError, match=r"'model.*qkv_proj' in vLLM"):
            verify(tmp_path, self.with_ignore("mixed", ["re:.*qkv_proj"]))

    @pytest.mark.parametrize("leaf", ["self_attn.k_proj", "mlp.down_proj"])
    def test_a_kind_of_layer_in_16_bits_that_is_not_ignored(
        self, tmp_path: Path, leaf: str
    ) -> None:
        """An engine would look for its quantized weights in every layer."""
        tensors = {
            name: tensor
            for name, tensor in variant_tensors("mixed").items()
            if f".{leaf}." not in name
        }
        plain = {name: each for name, each in source_tensors().items() if f".{leaf}." in name}
        with pytest.raises(VerificationError, match=f"{leaf}' is stored in 16 bits.*2 more"):
            verify(tmp_path, of_ours("mixed", tensors | plain))

    def test_ignored_modules_whose_fused_name_an_expression_matches(self, tmp_path: Path) -> None:
        """As a tower for images: vLLM ignores a matrix if it ignores each of its modules."""
        names = [f"model.layers.1.self_attn.{name}" for name in ("q_proj", "k_proj")]
        tensors, source = variant_tensors("mixed"), source_tensors()
        for name in names:
            del tensors[f"{name}.weight_scale"]
            tensors[f"{name}.weight"] = source[f"{name}.weight"]
        files = of_ours("mixed", tensors)
        config = json.loads(files["config.json"])
        config["quantization_config"]["ignore"] += names
        found = verify(tmp_path, files | {"config.json": as_json(config)})
        assert len(found.layers) == len(LINEAR) - 2

    def test_each_group_has_its_own_floor(self, tmp_path: Path) -> None:
        """Noise that NVFP4 may have is a fault in FP8."""
        tensors = variant_tensors("mixed")
        name = "model.layers.1.self_attn.q_proj.weight"
        codes = tensors[name].array
        tensors[name] = replace(tensors[name], array=codes & np.uint8(0xFC))  # fewer bits
        with pytest.raises(VerificationError, match=r"self_attn.q_proj' .* floor of 20 dB"):
            verify(tmp_path, of_ours("mixed", tensors))

    @staticmethod
    def with_ignore(kind: str, ignore: list[str]) -> dict[str, bytes]:
        files = of_ours(kind)
        config = json.loads(files["config.json"])
        config["quantization_config"]["ignore"] = ignore
        return files | {"config.json": as_json(config)}

    @pytest.mark.parametrize("word", ["re:(?!lm_)head", "re:(?P=a)", "re:(((", "re:a{9999999}"])
    def test_an_expression_that_cannot_be_matched_is_refused_by_name(
        self, tmp_path: Path, word: str
    ) -> None:
        with pytest.raises(VerificationError) as caught:
            verify(tmp_path, self.with_ignore("mixed", ["lm_head", word]))
        assert word.removeprefix("re:") in caught.value.message
        assert caught.value.where.endswith("config.json, key quantization_config")

    @pytest.mark.parametrize(
        "config",
        [
            {"quant_method": "bitsandbytes"},
            {"quant_method": "compressed-tensors", "config_groups": {}},
            {"quant_method": "awq", "version": "gemv", "bits": 4},
            {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        ],
        ids=lambda config: config["quant_method"],
    )
    def test_what_cannot_be_compared(self, tmp_path: Path, config: dict[str, Any]) -> None:
        found = verify(tmp_path, changed_config("gptq", quantization_config=config))
        assert found.not_compared
        assert any(found.not_compared in note for note in found.notes)


def test_what_other_programs_store_besides(tmp_path: Path) -> None:
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": bf16(np.ones(4)),
        f"{LAYER}.bias": bf16(np.zeros(128)),
        "model.layers.0.self_attn.k_proj.k_scale": bf16([0.5]),
    }
    tensors = foreign_tensors("gptq")
    found = verify(tmp_path, of_others("gptq", tensors | extra))
    assert found.not_compared
    with pytest.raises(VerificationError, match="bias' is unexpected"):
        verify(tmp_path, of_others("gptq", tensors | {f"{LAYER}.bias": bf16(np.ones(128))}))


@pytest.mark.parametrize("name", [f"{LAYER}.bias", "model.layers.0.self_attn.k_proj.k_scale"])
def test_what_is_stored_besides_is_small(tmp_path: Path, name: str) -> None:
    """It would be read as a whole."""
    fill = 0 if name.endswith("bias") else 1
    extra = {name: bf16(np.full(2**21 + 1, fill, np.float32))}
    with pytest.raises(VerificationError, match="is unexpected"):
        verify(tmp_path, of_others("gptq", foreign_tensors("gptq") | extra))
