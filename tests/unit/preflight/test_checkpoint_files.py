"""What a checkpoint's tensors and tokenizer are refused for before any work."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_3_8B,
    MISTRAL_7B_V01,
    MIXTRAL_8X22B,
    QWEN_3_235B,
    QWEN_25_72B,
    Shapes,
    deepseek,
    dense,
    gpt_oss,
    mixtral,
    qwen3_moe,
    source,
)
from quantized_checkpoint import (
    LINEAR,
    PLAIN,
    SIZE,
    WEIGHTS,
    inspected,
    source_layout,
)
from small_checkpoint import checkpoint_files, safetensors, write_files

from pipeline.preflight.checkpoint_faults import find_missing_matrix, find_unlisted
from pipeline.preflight.tokenizer_faults import tokenizer_faults
from pipeline.preflight.weight_faults import weight_faults
from prepare.errors import CheckpointError, VerificationError
from recipes.catalog import load_recipe
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.checkpoints.checkpoint import read_folder
from recipes.checkpoints.small_files import TEMPLATES_FOLDER
from recipes.checkpoints.tokenizer_file import find_unknown_kind, parse_tokenizer
from recipes.checkpoints.weight_files import INDEX
from recipes.weights.accounting import WeightComparison, account, open_folder
from recipes.weights.auxiliary_files import check_adopted_files

LLAMA = dense(LLAMA_3_8B)
HEADLESS = {name: shape for name, shape in LLAMA.items() if name != "lm_head.weight"}


def renamed(prefix: str, without: str = "") -> Shapes:
    return {prefix + name.removeprefix(without): shape for name, shape in LLAMA.items()}


@pytest.mark.parametrize(
    ("config", "shapes", "key"),
    [
        ({}, renamed("_orig_mod."), "_orig_mod."),
        ({}, LLAMA | {"model._orig_mod.x.weight": (1, 1)}, "_orig_mod."),
        ({}, renamed("module."), "module."),
        ({}, renamed("base_model.model."), "base_model.model."),
        ({}, renamed("", "model."), "key architectures"),
        ({}, HEADLESS, "key tie_word_embeddings"),
        ({"tie_word_embeddings": ...}, HEADLESS, "key tie_word_embeddings"),
        ({"vocab_size": 128_000}, LLAMA, "key vocab_size"),
        ({"vocab_size": 128_300}, LLAMA, "key vocab_size"),
        ({"intermediate_size": 14_000}, LLAMA, "key intermediate_size"),
        ({"num_key_value_heads": 16}, LLAMA, "key num_key_value_heads"),
        ({"hidden_size": 5120, "head_dim": 128}, LLAMA, "key hidden_size"),
        ({"vision_config": {"hidden_size": 8}}, LLAMA, "key vision_config"),
    ],
)
def test_matrices_that_config_does_not_describe(
    config: dict[str, Any], shapes: Shapes, key: str
) -> None:
    described = {k: v for k, v in (LLAMA_3_8B | config).items() if v is not ...}
    (fault,) = weight_faults(source(described, shapes))
    assert key in f"{fault.message} {fault.where}"
    assert fault.hint


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (LLAMA_3_8B, LLAMA),
        (LLAMA_3_8B | {"tie_word_embeddings": True}, HEADLESS),
        (MISTRAL_7B_V01, dense(MISTRAL_7B_V01)),
        (QWEN_25_72B, dense(QWEN_25_72B)),
        (DEEPSEEK_V3, deepseek(DEEPSEEK_V3)),
        (GPT_OSS_120B, gpt_oss(GPT_OSS_120B)),
        (QWEN_3_235B, qwen3_moe(QWEN_3_235B)),
        (MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)),
    ],
)
def test_published_models_are_as_described(config: dict[str, Any], shapes: Shapes) -> None:
    assert list(weight_faults(source(config, shapes))) == []


def test_an_index_without_metadata() -> None:
    """transformers reads the key, and fails after quantization has begun."""
    indexed = replace(source(LLAMA_3_8B, LLAMA), index={"weight_map": {}})
    (fault,) = weight_faults(indexed)
    assert fault.where == f"org/name/{INDEX}, key metadata"
    whole = replace(indexed, index={"metadata": {}, "weight_map": {}})
    assert list(weight_faults(whole)) == []


def test_a_folder_that_is_called_as_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the Hub is not refused for files of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}')
    on_the_hub = source(LLAMA_3_8B, LLAMA)
    assert list(weight_faults(on_the_hub)) == []
    assert not find_unlisted(on_the_hub)


def adopted_notes(folder: Path, **files: dict[str, str]) -> list[str]:
    """Notes on a variant whose chat templates differ, by folder."""
    for name in ("source", "variant"):
        write_files(folder / name, checkpoint_files())
    for name, templates in files.items():
        contents = {file: text.encode() for file, text in templates.items()}
        write_files(folder / name / TEMPLATES_FOLDER, contents)
    return check_adopted_files(read_folder(folder / "source"), read_folder(folder / "variant"))


@pytest.mark.parametrize(
    ("given", "made", "is_noted"),
    [
        ({}, {"tool_use.jinja": "{{ tools }}"}, True),
        ({"tool_use.jinja": "a"}, {"tool_use.jinja": "b"}, True),
        ({"tool_use.jinja": "a"}, {}, True),
        ({"tool_use.jinja": "a"}, {"tool_use.jinja": "a"}, False),
    ],
)
def test_named_templates_of_an_adopted_variant(
    tmp_path: Path, given: dict[str, str], made: dict[str, str], is_noted: bool
) -> None:
    notes = adopted_notes(tmp_path, source=given, variant=made)
    assert len(notes) == is_noted
    assert all("tool_use" in note for note in notes)


def test_named_templates_in_the_tokenizers_config(tmp_path: Path) -> None:
    """The same templates, in the two places where transformers looks."""
    files = checkpoint_files()
    template = files.pop("chat_template.jinja").decode()
    listed = [
        {"name": "default", "template": template},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]
    config = json.dumps({"chat_template": listed}).encode()
    source = write_files(tmp_path / "source", files | {"tokenizer_config.json": config})
    variant = write_files(tmp_path / "variant", checkpoint_files())
    write_files(variant / TEMPLATES_FOLDER, {"tool_use.jinja": b"{{ tools }}"})
    assert check_adopted_files(read_folder(source), read_folder(variant)) == []
    write_files(variant / TEMPLATES_FOLDER, {"tool_use.jinja": b"{{ others }}"})
    (note,) = check_adopted_files(read_folder(source), read_folder(variant))
    assert "tool_use" in note


def test_a_layer_that_shares_keys_as_declared() -> None:
    shapes = {n: s for n, s in LLAMA.items() if n != "model.layers.5.self_attn.v_proj.weight"}
    assert find_missing_matrix(source(LLAMA_3_8B, shapes))
    assert not find_missing_matrix(source(LLAMA_3_8B | {"attention_k_eq_v": True}, shapes))


BYTES = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]}}
SPACES = {"decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}}
OLD = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": False}


def faults_of(
    content: dict[str, Any], tokenizer_class: str = "", model_type: str = "llama"
) -> list[str]:
    generation = ModelGeneration(tokenizer_class=tokenizer_class)
    read = source(LLAMA_3_8B | {"model_type": model_type}, LLAMA)
    file = Path("m/tokenizer.json")
    tokenizer = parse_tokenizer(json.dumps(content).encode(), file)
    found = tokenizer_faults(file, tokenizer, replace(read, generation=generation))
    return [f"{fault.message} {fault.where}" for fault in found]


@pytest.mark.parametrize(
    ("content", "tokenizer_class", "model_type", "place"),
    [
        (BYTES, "LlamaTokenizerFast", "llama", "key tokenizer_class"),
        (BYTES, "CodeLlamaTokenizer", "llama", "key tokenizer_class"),
        (BYTES, "GemmaTokenizer", "llama", "key tokenizer_class"),
        (BYTES, "LlamaTokenizerFast", "qwen3", "key tokenizer_class"),
        (SPACES, "GPT2Tokenizer", "llama", "key tokenizer_class"),
        # transformers has a list of types whose checkpoints name a wrong class.
        (BYTES, "LlamaTokenizerFast", "deepseek_v3", ""),
        (BYTES, "PreTrainedTokenizerFast", "llama", ""),
        (SPACES, "LlamaTokenizer", "llama", ""),
        ({"pre_tokenizer": OLD}, "", "llama", "pre_tokenizer"),
        ({"pre_tokenizer": OLD | {"prepend_scheme": "never"}}, "", "llama", ""),
        ({"pre_tokenizer": {"type": "BlockSplit", "size": 4}}, "", "llama", "BlockSplit"),
        ({"model": {"vocab": {f"t{n}": n for n in range(128_400)}}}, "", "llama", "vocab_size"),
        ({"model": {"vocab": {f"t{n}": n for n in range(128_257)}}}, "", "llama", ""),
    ],
)
def test_a_tokenizer_that_libraries_read_otherwise(
    content: dict[str, Any], tokenizer_class: str, model_type: str, place: str
) -> None:
    found = faults_of(content, tokenizer_class, model_type)
    assert len(found) == bool(place)
    assert place in "".join(found)


def test_the_hint_on_an_old_metaspace_makes_the_library_load_it() -> None:
    from tokenizers import Tokenizer, models

    made = json.loads(Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).to_str())
    with pytest.raises(Exception, match="prepend_scheme"):
        Tokenizer.from_str(json.dumps(made | {"pre_tokenizer": OLD}))
    _, cure = find_unknown_kind({"pre_tokenizer": OLD})
    (key, value) = re.findall(r'write "(\w+)": "(\w+)"', cure)[0]
    followed = {"pre_tokenizer": OLD | {key: value}}
    assert find_unknown_kind(followed) == ("", "")
    assert Tokenizer.from_str(json.dumps(made | followed)).to_str()


def test_a_large_vocabulary_is_read_by_every_reader(tmp_path: Path) -> None:
    """Gemma 3's file has 262,144 tokens and 514,906 merges."""
    from json import dumps

    vocabulary = {f"t{n}": n for n in range(262_144)}
    merges = [["a", "b"]] * 514_906
    content = {"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    for name in ("source", "variant"):
        folder = tmp_path / name
        folder.mkdir()
        write_files(folder, checkpoint_files())
        (folder / "tokenizer.json").write_text(dumps(content))
    source = read_folder(tmp_path / "source")
    assert check_adopted_files(source, read_folder(tmp_path / "variant")) == []
    assert source.tokenizer is not None
    assert source.tokenizer.size == len(source.tokenizer.ids) == 262_144


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (32,)),
        ("model.layers.0.self_attn.masked_bias", ()),
        ("model.embed_tokens.position_ids", (1, 64)),
        ("h.0.attn.bias", (1, 1, 8, 8)),
        ("h.0.attn.bias", (8,)),
    ],
)
def test_stored_buffers_that_loaders_compute(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    """Llama-2 era files have them, and a quantizer that loads the model does not save them."""
    quantization = load_recipe("fp8-dynamic").quantization
    layers = {f"{module}.weight": ("F8_E4M3", (SIZE, SIZE)) for module in LINEAR}
    scales = {f"{module}.weight_scale": ("BF16", (SIZE, 1)) for module in LINEAR}
    stored = {
        "source": source_layout() | {name: ("F32", shape)},
        "variant": PLAIN | layers | scales,
    }
    for side, layout in stored.items():
        write_files(tmp_path / side, {WEIGHTS: safetensors(layout)})

    def check() -> WeightComparison:
        return account(
            open_folder(tmp_path / "source"),
            open_folder(tmp_path / "variant"),
            lambda module: quantization.for_module(module).weight_formats[0],
            lambda tensor, _: tensor.removesuffix(".weight") in LINEAR,
            tied=True,
            kv_scales=False,
            rescaled=False,
        )

    if shape == (8,):  # a bias is a weight
        with pytest.raises(VerificationError, match="is missing"):
            check()
    else:
        assert len(check().layers) == len(LINEAR)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_snapshot_of_the_hubs_cache_by_its_path(tmp_path: Path, is_inside: bool) -> None:
    """Its links stay in the cache; copying them would take the weights' size again."""
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    blobs = repository / "blobs" if is_inside else tmp_path / "elsewhere"
    snapshot.mkdir(parents=True)
    write_files(blobs, checkpoint_files())
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    if is_inside:
        assert len(inspected(snapshot).files) == len(checkpoint_files())
        return
    with pytest.raises(CheckpointError, match="leaves the checkpoint's folder"):
        inspected(snapshot)
