"""What a run is refused for before it begins: one table of damage, and the machine's limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked_run import choice_of
from listener import Listener
from published_models import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    MIXTRAL_8X22B,
    QWEN_3_235B,
    Shapes,
    deepseek,
    dense,
    gpt_oss,
    mixtral,
    qwen3_moe,
    source,
)
from small_checkpoint import safetensors, write_files
from some_node import NODE

from artifacts.requests import ModelRequest
from pipeline.environments.settings import Settings
from pipeline.plan.serving_profile import check_processor
from pipeline.preflight.checkpoint_faults import find_missing_matrix
from pipeline.preflight.machine import Machine
from pipeline.preflight.preflight import Preflight
from pipeline.preflight.suitability import find_drafting_fault, find_expert_fault
from pipeline.preflight.survey import line
from pipeline.run.model import run_model
from pipeline.run.plan_report import forecast
from prepare.errors import ExitCode, HubError, PrepareError, UsageError
from prepare.gpus import VisibleGpu
from prepare.hardware import FEATURES
from recipes import catalog
from recipes.policy import Policy
from recipes.schema import Recipe

LARGE = Machine(memory_bytes=10**13, free_disk_bytes=10**13)
H100 = replace(LARGE, gpu="NVIDIA H100 80GB HBM3", gpus=1, compute_capability=9.0)
FP8, AWQ, GPTQ = "fp8-dynamic", "awq-w4a16", "gptq-w4a16"
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "tie_word_embeddings": True,
    "vocab_size": 32,
}


def recipe_with(name: str, **changes: Any) -> Recipe:
    recipe = catalog.load_recipe(name)
    changed = recipe.quantization.model_copy(update=changes)
    return recipe.model_copy(update={"quantization": changed})


def with_others(name: str, **other_schemes: list[str]) -> Recipe:
    return recipe_with(name, other_schemes=other_schemes)


def preflight(
    config: dict[str, Any] = LLAMA_3_8B,
    machine: Machine = LARGE,
    *,
    profile: str = "cpu",
    recipes: tuple[str | Recipe, ...] = (FP8, AWQ),
    shapes: Shapes | None = None,
    policy: Policy | None = None,
    starts: str | None = None,
    **arguments: Any,
) -> Preflight:
    serving = catalog.load_profile(profile)
    changed = {"engine_arguments": {**serving.engine_arguments, **arguments}}
    serving = serving.model_copy(update={**changed, "starts": starts or serving.starts})
    found = tuple(catalog.load_recipe(r) if isinstance(r, str) else r for r in recipes)
    no_gates = catalog.load_policy("demo").model_copy(update={"suites": {}, "speed": None})
    choices = choice_of(found, serving, policy or no_gates, NODE)
    read = source(config, dense(config) if shapes is None else shapes)
    return Preflight(read, choices, machine, Path("store"))


def told(faults: list[PrepareError]) -> str:
    for fault in faults:
        assert fault.where
        assert fault.hint
        assert fault.exit_code == ExitCode.USAGE
    return "\n".join(f"{fault.message} | {fault.hint}" for fault in faults)


def quantized(**keys: Any) -> dict[str, Any]:
    return {"quantization_config": keys}


WIDE = {"hidden_size": 4176, "num_attention_heads": 36, "num_key_value_heads": 36}  # 16 x 261
GPT2 = {"h.0.attn.c_attn.weight": (64, 192), "h.0.mlp.c_fc.weight": (64, 256)}
STACKED: Shapes = {"model.layers.0.mlp.experts.gate_up_proj": (4, 32, 64)}
MTP: Shapes = dense(LLAMA_3_8B) | {"model.layers.32.eh_proj.weight": (4096, 8192)}
PACKED: Shapes = dense(LLAMA_3_8B) | {"model.layers.0.mlp.up_proj.qweight": (512, 14336)}
EXPERTS: Shapes = {
    f"model.layers.0.mlp.experts.{expert}.{name}.weight": (128, 128)
    for expert in range(2)
    for name in ("gate_proj", "up_proj", "down_proj")
}
OF_MIXTRAL: Shapes = dense(LLAMA_3_8B) | {
    f"model.layers.0.block_sparse_moe.experts.0.{name}.weight": (128, 128)
    for name in ("w1", "w2", "w3")
}
PREFIXED: Shapes = {f"language_model.{name}": shape for name, shape in dense(LLAMA_3_8B).items()}
WITHOUT_VALUES: Shapes = {
    name: shape for name, shape in dense(LLAMA_3_8B).items() if "0.self_attn.v_proj" not in name
}
TWO_FORMATS = {"other_schemes": {"FP8_DYNAMIC": ["*.v_proj"]}}


@pytest.mark.parametrize(("groups", "is_refused"), [(1, False), (2, True)])
def test_a_draft_model_in_several_formats_is_refused(groups: int, *, is_refused: bool) -> None:
    config = quantized(
        quant_method="compressed-tensors",
        config_groups={f"group_{number}": {"targets": ["Linear"]} for number in range(groups)},
    )
    draft = source(LLAMA_3_8B | config, dense(LLAMA_3_8B))
    fault = find_drafting_fault(draft, catalog.load_profile("h100"))
    assert (fault is not None) == is_refused
    if fault is not None:
        assert "49893" in told([fault])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": {"architectures": ["BertModel"]}}, ["'BertModel' is not supported"]),
        (
            {"config": {"auto_map": {"AutoModel": "own.Own"}}},
            ["its own Python code", "--trust-remote-code"],
        ),
        # Tensors decide whether weights are quantized.
        (
            {"config": quantized(quant_method="gptq", bits=4)},
            ["describes gptq weights", "have BF16", "remove it from config.json"],
        ),
        ({"config": {"text_config": quantized(quant_method="fp8")}}, ["describes fp8 weights"]),
        (
            {"config": quantized(quant_method="aqlm"), "shapes": PACKED},
            ["has quantized weights", "16-bit checkpoint"],
        ),
        ({"config": quantized(quant_method="bitsandbytes"), "shapes": PACKED}, ["no loader"]),
        (
            {"config": {"max_position_embeddings": 1024}},
            ["serves 2,048 tokens, and the model has 1,024", "max-model-len: 1024"],
        ),
        (
            {"config": {"architectures": ["GPT2LMHeadModel"]}, "shapes": GPT2, "recipes": (FP8,)},
            ["no layer to quantize in GPT2LMHeadModel", "Conv1D"],
        ),
        (
            {"recipes": (recipe_with(FP8, ignore=["*"]),)},
            ["no layer to quantize", "quantization.ignore"],
        ),
        ({"config": WIDE}, ["'awq-w4a16' does not suit", "divides layers of 4176 columns"]),
        (
            {"shapes": STACKED, "recipes": (AWQ,)},
            ["all experts of a layer in one tensor", "fp8-dynamic"],
        ),
        ({"shapes": MTP, "recipes": ("autoawq-w4a16",)}, ["multi-token prediction", AWQ]),
        (
            {"recipes": (recipe_with("nvfp4", **TWO_FORMATS),)},
            ["two formats, and vLLM would load", "one format"],
        ),
        (
            {"recipes": (recipe_with("nvfp4", other_schemes={"FP8_DYNAMIC": ["*.none"]}),)},
            ["'*.none' of FP8_DYNAMIC matches no module"],
        ),
        (
            {"recipes": (with_others(AWQ, FP8_DYNAMIC=["*.q_proj"]),)},
            ["two formats, and vLLM would load", r"layers\.0\.self_attn\.(q_proj|k_proj|v_proj)$"],
        ),
        (
            {"recipes": (with_others(GPTQ, W8A16=["*.experts.1.*"]),), "shapes": EXPERTS},
            ["two formats, and vLLM would load", r"layers\.0\.mlp\.experts\..*$"],
        ),
        (
            {"recipes": (with_others(GPTQ, W8A16=["*.down_proj"]),), "shapes": EXPERTS},
            ["two formats, and vLLM would load", r"layers\.0\.mlp\.experts\..*$"],
        ),
        (
            {"recipes": (with_others(GPTQ, W8A16=["*.experts.*"]),), "shapes": OF_MIXTRAL},
            ["by other names than vLLM", "3069"],
        ),
        (
            {"recipes": (with_others(AWQ, FP8_DYNAMIC=["*"]),)},
            ["no module gets the format 'pack-quantized, 4-bit"],
        ),
        (
            {"recipes": (with_others(AWQ, FP8_DYNAMIC=["*.layers.0.*"], W8A16=["*.down_proj"]),)},
            ["'model.layers.0.mlp.down_proj' is in the lists of FP8_DYNAMIC and W8A16"],
        ),
        (
            {"recipes": (with_others(AWQ, FP8_DYNAMIC=["language_model.*"]),), "shapes": PREFIXED},
            ["from its beginning, and vLLM may put another one before it", "begin the pattern"],
        ),
        (
            {
                "recipes": (
                    with_others(AWQ, W8A16=["*.0.self_attn.q_proj", "*.0.self_attn.k_proj"]),
                ),
                "shapes": WITHOUT_VALUES,
            },
            ["another format than 'model.layers.0.self_attn.v_proj', which is not there", "47473"],
        ),
        (
            {"recipes": (recipe_with(AWQ, ignore=["*.self_attn.*"]),), "shapes": WITHOUT_VALUES},
            ["leaves 'model.layers.0.self_attn.k_proj' in 16 bits", "47473"],
        ),
        (
            {"config": {"architectures": ["OPTForCausalLM"]}, "recipes": ("autoawq-w4a16",)},
            ["is not for OPTForCausalLM", "use the recipe awq-w4a16"],
        ),
        ({"profile": "h100"}, ["serves on 1 NVIDIA GPU, and none is found here"]),
        (
            {"machine": H100, "profile": "h100", "tensor-parallel-size": 4},
            ["serves on 4 NVIDIA GPUs, and this machine has 1"],
        ),
        (
            {
                "machine": replace(H100, gpus=3, gpu="NVIDIA X9"),
                "profile": "h100",
                "tensor-parallel-size": 3,
            },
            ["32 attention heads cannot be split over 3 GPUs", "--gpus-a-copy"],
        ),
        (
            {"machine": replace(H100, compute_capability=8.0), "profile": "h100"},
            ["'fp8-dynamic' needs a GPU of compute capability 8.9, this one has 8.0"],
        ),
        (
            {"machine": replace(H100, driver="535.183.06"), "profile": "h100"},
            ["535.183.06", "580"],
        ),
        (
            {"config": LLAMA_3_70B, "machine": H100, "profile": "h100", "recipes": (AWQ,)},
            ["'baseline' cannot be served on one h100", "--gpus-a-copy 2"],
        ),
        (
            {"machine": replace(LARGE, memory_bytes=16 * 10**9), "recipes": (AWQ,)},
            ["the stage 'quantize' of 'awq-w4a16' needs about 18.", "has 16.0 GB"],
        ),
        (
            {"machine": replace(LARGE, memory_bytes=19 * 10**9), "recipes": (AWQ,)},
            ["the stage 'serve' of 'baseline'"],
        ),
    ],
)
def test_headers_and_machine_refuse(arguments: dict[str, Any], words: list[str]) -> None:
    arguments = dict(arguments)
    config = LLAMA_3_8B | arguments.pop("config", {})
    found = told(preflight(config, **arguments).faults())
    for each in words:
        assert each in found


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"machine": H100, "profile": "h100"},
        {
            "config": {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
            "shapes": dense(LLAMA_3_8B) | {"vision_tower.patch.weight": (16, 16)},
        },
        {
            "config": {
                "max_position_embeddings": 1024,
                "rope_scaling": {"type": "linear", "factor": 2.0},
            }
        },
        {"config": quantized(quant_method="compressed-tensors", kv_cache_scheme={"num_bits": 8})},
        {"shapes": MTP},
        {"shapes": STACKED | dense(LLAMA_3_8B), "recipes": (FP8,)},
        # Half of the columns still divide by a smaller group of the recipe.
        {
            "config": {
                **WIDE,
                "hidden_size": 4128,
                "num_attention_heads": 43,
                "num_key_value_heads": 43,
            }
        },
        {
            "config": MIXTRAL_8X22B,
            "machine": replace(H100, gpus=4),
            "profile": "h100",
            "recipes": (),
            "shapes": mixtral(MIXTRAL_8X22B),
            "tensor-parallel-size": 4,
            "max-num-seqs": 8192,
            "max-model-len": 4096,
        },
        {
            "config": LLAMA_3_70B,
            "machine": replace(H100, gpus=4),
            "profile": "h100",
            "tensor-parallel-size": 4,
        },
        {"machine": replace(H100, memory_bytes=20 * 10**9), "profile": "h100", "recipes": (AWQ,)},
    ],
)
def test_what_suits_is_not_refused(arguments: dict[str, Any]) -> None:
    arguments = dict(arguments)
    config = LLAMA_3_8B | arguments.pop("config", {})
    assert told(preflight(config, **arguments).faults()) == ""


@pytest.mark.parametrize("name", catalog.recipe_names())
def test_every_recipe_suits_large_models(name: str) -> None:
    for config, shapes in ((LLAMA_3_8B, dense), (MIXTRAL_8X22B, mixtral)):
        recipe = catalog.load_recipe(name)
        if recipe.suits(config["architectures"][0]):
            made = preflight(
                *(config, replace(H100, gpus=8)),
                **{"profile": "h100", "recipes": (name,), "shapes": shapes(config)},
                **{"tensor-parallel-size": 8},
            )
            assert made.faults() == []


AVX512 = ("avx2", "avx512f")


def on_cpu(made: Preflight, features: tuple[str, ...]) -> Preflight:
    node = made.choices.node.model_copy(update={"cpu_features": features})
    return replace(made, choices=replace(made.choices, node=node))


@pytest.mark.parametrize(
    ("features", "served"), [(AVX512, frozenset[str]()), (FEATURES, frozenset({"int8-w8a8"}))]
)
@pytest.mark.parametrize("name", [AWQ, GPTQ, FP8, "fp8-block", "int8-w8a8", "mxfp4", "nvfp4a16"])
def test_quantized_experts_on_a_cpu(
    name: str, features: tuple[str, ...], served: frozenset[str]
) -> None:
    """A GPU serves them all; a CPU with AMX serves those in 8-bit integers as a GPU does."""
    made = preflight(MIXTRAL_8X22B, recipes=(name,), shapes=mixtral(MIXTRAL_8X22B))
    faults = on_cpu(made, features).faults()
    wheres = [] if name in served else [f"--recipe {name}; profile cpu, key accelerator"]
    assert [fault.where for fault in faults] == wheres
    assert all(fault.exit_code == ExitCode.USAGE for fault in faults)


FP8_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
INT8_ROWS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        }
    },
}


@pytest.mark.parametrize(
    ("config", "shapes", "dtype", "served"),
    [
        (MIXTRAL_8X22B, mixtral, "BF16", {AVX512, FEATURES}),
        (LLAMA_3_8B | {"quantization_config": FP8_BLOCKS}, dense, "F8_E4M3", {AVX512, FEATURES}),
        (MIXTRAL_8X22B | {"quantization_config": FP8_BLOCKS}, mixtral, "F8_E4M3", set[Any]()),
        (MIXTRAL_8X22B | {"quantization_config": INT8_ROWS}, mixtral, "I8", {FEATURES}),
    ],
)
def test_experts_that_others_quantized(
    config: dict[str, Any],
    shapes: Callable[[dict[str, Any]], Shapes],
    dtype: str,
    served: set[tuple[str, ...]],
) -> None:
    """As a baseline, or as a variant: a CPU would leave FP8 experts' activations in 16 bits."""
    model = source(config, shapes(config), dtype)
    on_a_gpu = catalog.load_profile("h100")
    profile = catalog.load_profile("cpu")
    for features in (AVX512, FEATURES):
        assert find_expert_fault(model, on_a_gpu, features) is None
        for variant in ("", "theirs"):
            fault = find_expert_fault(model, profile, features, variant)
            assert (fault is None) == (features in served)
            if fault is not None:
                assert f"'{variant or catalog.BASELINE}'" in fault.message
                assert "experts" in fault.message
                assert model.where in fault.where


def test_a_very_large_model_takes_seconds() -> None:
    found = preflight(DEEPSEEK_V3, H100, profile="h100", shapes=deepseek(DEEPSEEK_V3))
    started = time.process_time()
    assert "cannot be served on one h100" in told(found.faults())
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("features", "words"), [((), "AVX2"), (("avx2",), "kv_cache_dtype"), (FEATURES, "")]
)
def test_cpus(features: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    profile = catalog.load_profile("cpu")
    check_processor(profile.fit_to(("avx2",)), ("avx2",))
    if not words:
        check_processor(profile, features)
        return
    with pytest.raises(UsageError) as caught:
        check_processor(profile, features)
    assert words in f"{caught.value.message} {caught.value.where}"


class TestMachine:
    def test_hidden_gpus_do_not_count(self) -> None:
        shown = replace(H100, visible_devices="3")
        found = preflight(machine=shown, profile="h100", **{"tensor-parallel-size": 4})
        assert "that CUDA_VISIBLE_DEVICES=3 shows" in told(found.faults())

    @pytest.mark.parametrize(
        ("name", "memory", "known"),
        [
            ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "", True),
            ("NVIDIA X9", "40960 MiB", True),
            ("NVIDIA X9", "[N/A]", False),
        ],
    )
    def test_unknown_memory_is_a_note(self, name: str, memory: str, known: bool) -> None:
        gib = VisibleGpu(name, "GPU-0", memory=memory).memory_gib
        gpu = replace(H100, gpu=name, gpu_memory_gib=gib)
        found = preflight(LLAMA_3_70B, gpu, profile="h100", recipes=())
        assert [name in fault.message for fault in found.faults()] == [True] * known
        assert any("not checked" in note for note in found.notes()) != known

    def test_existing_weights_are_served_and_not_made(self) -> None:
        found = preflight(machine=replace(LARGE, memory_bytes=10**9), recipes=(AWQ,))
        words = told(replace(found, made=frozenset({AWQ})).faults())
        assert "'serve' of 'baseline'" in words
        assert f"'serve' of '{AWQ}'" in words
        assert "quantize" not in words

    def test_two_servers_together(self) -> None:
        small: dict[str, Any] = {"machine": replace(LARGE, memory_bytes=25 * 10**9)}
        assert preflight(recipes=(AWQ,), **small).faults() == []
        demo = catalog.load_policy("demo")
        both = preflight(recipes=(AWQ,), policy=demo, starts="once", **small)
        assert "which stay up together, need about 2" in told(both.faults())

    @pytest.mark.parametrize(
        ("free", "stored", "download", "words"),
        [
            (14, (), 0, "14.9 GB of disk (fp8-dynamic 9.1 GB, awq-w4a16 5.8 GB), 14.0 GB are free"),
            (14, (FP8,), 0, ""),
            (20, (), 16_060_522_496, "(download 16.1 GB, fp8-dynamic 9.1 GB, awq-w4a16 5.8 GB)"),
            (10, (FP8, AWQ), 16_060_522_496, "needs 16.1 GB of disk (download 16.1 GB)"),
        ],
    )
    def test_disk(self, free: int, stored: tuple[str, ...], download: int, words: str) -> None:
        found = preflight(machine=replace(LARGE, free_disk_bytes=free * 10**9))
        faults = found.disk_fault(stored, download)
        assert (words in told(faults)) if words else not faults


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def checkpoint(folder: Path, files: dict[str, bytes], **config: Any) -> str:
    embedded = {"model.embed_tokens.weight": (32, 64)}
    layer = {f"model.layers.0.mlp.{n}_proj.weight": (128, 64) for n in ("up", "gate")}
    shapes = embedded | layer | {"model.layers.0.mlp.down_proj.weight": (64, 128)}
    written = {
        "config.json": json.dumps(SMALL | config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": safetensors({name: ("BF16", shape) for name, shape in shapes.items()}),
    }
    return str(write_files(folder, written | files))


def request(name: str, *recipes: str, policy: str = "demo") -> ModelRequest:
    return ModelRequest(
        checkpoint=name,
        recipes=recipes or (FP8,),
        profile="cpu",
        policy=policy,
        name=None,
        registry=None,
        eval_data=None,
        trust_remote_code=False,
    )


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def sharegpt(*roles: str, words: str = "a few words " * 30) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": words} for role in roles]}


CHAT = {"messages": [{"role": "user", "content": "x" * 400}]}
FILES = {
    "a BOM in config.json": (
        {"config.json": b"\xef\xbb\xbf" + json.dumps(SMALL).encode()},
        ["config.json", "byte order mark", "sed -i"],
    ),
    "a truncated tokenizer": (
        {"tokenizer.json": b'{"model": {"vocab": '},
        ["tokenizer is damaged", "tokenizer.json", "download it again"],
    ),
    "a token beyond the embedding": (
        {
            "tokenizer.json": b'{"added_tokens": [{"id": 40, "content": "<|u|>"}]}',
            "chat_template.jinja": b"<|u|>{{ messages[0]['content'] }}",
        },
        ["'<|u|>', which is token 40, and the model has 32"],
    ),
    "a template that raises": (
        {"chat_template.jinja": b"{{ raise_exception('a system message is required') }}"},
        ["a system message is required", "line 1 of the chat template"],
    ),
    "a shard that is gone": ({"model.safetensors": b""}, ["model.safetensors"]),
}


@pytest.mark.parametrize(("files", "words"), FILES.values(), ids=FILES)
def test_small_files_refuse(
    settings: Settings, tmp_path: Path, files: dict[str, bytes], words: list[str]
) -> None:
    name = checkpoint(tmp_path / "model", files)
    report = forecast(request(name), settings, Listener())
    found = "\n".join(map(line, report.faults))
    assert report.exit_code == ExitCode.USAGE
    for each in words:
        assert each in found
    assert found.count("is token 40") < 2  # once for all suites
    assert run_model(request(name), settings, Listener()).exit_code == ExitCode.USAGE
    assert not (settings.home / "environments").exists()


CALIBRATION = {
    "sharegpt": (lines(*[sharegpt("human", "gpt")] * 9), ""),
    "messages": (lines(*[CHAT] * 9), ""),
    "text": (lines(*[{"text": "x" * 900}] * 9), ""),
    "role": (lines(CHAT, sharegpt("bot")), "line 2|from 'bot', and known are human"),
    "content": (lines({"messages": [{"role": "user", "content": None}]}), "line 1|has no content"),
    "array": (lines([CHAT]), "line 1|it is a list and not an object"),
    "keys": (lines({"prompt": "p", "completion": "c"}), "it has prompt, completion"),
    "json": (lines(CHAT) + b'{"messages": \n', "line 2|JSON"),
    "bom": (b"\xef\xbb\xbf" + lines(*[CHAT] * 9), "byte order mark"),
    "short": (lines({"text": "Ja."}), "3 bytes, too few for a block of 256 tokens"),
    "empty": (b"", "0 bytes, too few"),
    "list": (b"[]", "it is an empty list"),
}


@pytest.mark.parametrize(("content", "words"), CALIBRATION.values(), ids=CALIBRATION)
def test_calibration_files(settings: Settings, tmp_path: Path, content: bytes, words: str) -> None:
    """Named relative to the recipe's file, and not to the current directory."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "data.jsonl").write_bytes(content)
    recipe = tmp_path / "own" / "recipe.yaml"
    recipe.write_text(
        f"{{name: own, extends: {AWQ}, summary: s,"
        " quantization: {calibration: {dataset: ./data.jsonl, column: messages, max_tokens: 256}}}"
    )
    name = checkpoint(tmp_path / "model", {})
    report = forecast(request(name, str(recipe)), settings, Listener())
    found = "\n".join(map(line, report.faults))
    if words:
        for each in ("data.jsonl", "hint", *words.split("|")):
            assert each in found
    else:
        assert found == ""


def test_all_faults_are_listed_together(settings: Settings, tmp_path: Path) -> None:
    name = checkpoint(
        tmp_path / "model", {}, max_position_embeddings=64, auto_map={"AutoModel": "own.Own"}
    )
    report = run_model(request(name), settings, Listener())
    assert report.exit_code == ExitCode.USAGE
    assert report.error is not None
    for words in ("things would make this run fail", "serves 2,048 tokens", "own Python code"):
        assert words in report.error["message"]
    assert report.stages == []


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("", ""),
        ("model.layers.5.mlp.up_proj.weight", "model.layers.5.mlp.up_proj.weight"),
        ("model.layers.5.", "model.layers.5 (all of it)"),
        ("model.layers.31.", "model.layers.31 (all of it)"),
        ("model.norm.weight", ""),
        (
            "model.layers.6.mlp.up_proj.weight model.layers.7.self_attn.q_proj.weight",
            "model.layers.6.mlp.up_proj.weight",
        ),
        (  # by design: the last layers share the keys of others
            " ".join(f"model.layers.{n}.self_attn.k_proj.weight" for n in range(24, 32)),
            "",
        ),
    ],
)
def test_a_matrix_that_few_layers_lack(lost: str, words: str) -> None:
    gone = tuple(lost.split())
    shapes = {n: s for n, s in dense(LLAMA_3_8B).items() if not n.startswith(gone)}
    assert find_missing_matrix(source(LLAMA_3_8B, shapes)) == words


@pytest.mark.parametrize(
    ("config", "shapes"),
    [(DEEPSEEK_V3, deepseek), (GPT_OSS_120B, gpt_oss), (QWEN_3_235B, qwen3_moe)],
)
def test_layers_of_several_kinds_are_complete(config: dict[str, Any], shapes: Any) -> None:
    assert find_missing_matrix(source(config, shapes(config))) == ""


def test_a_question_without_its_key(settings: Settings, tmp_path: Path) -> None:
    name, data = checkpoint(tmp_path / "model", {}), tmp_path / "data"
    data.mkdir()
    row = {"subject": "s", "question": "q", "choices": list("abcd"), "answer": 1}
    broken = {key: value for key, value in row.items() if key != "answer"}
    (data / "mmlu_test.jsonl").write_bytes(lines(*[row] * 500, broken))
    suites = {"mmlu": {"kind": "mmlu", "margins": {"fp8": 0.1}}}
    (tmp_path / "p.yaml").write_text(json.dumps({"name": "p", "summary": "s", "suites": suites}))
    asked = replace(request(name, policy=str(tmp_path / "p.yaml")), eval_data=data)
    report = forecast(asked, settings, Listener())
    (fault,) = report.faults
    assert fault.where == f"{data / 'mmlu_test.jsonl'}, line 501"
    assert report.exit_code == run_model(asked, settings, Listener()).exit_code == ExitCode.USAGE


def test_a_short_context_is_told_of_all_suites_and_loads(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "short.yaml").write_text(
        "{name: short, extends: cpu, summary: s, engine_arguments: {max-model-len: 20}}"
    )
    asked = replace(
        request(checkpoint(tmp_path / "model", {})), profile=str(tmp_path / "short.yaml")
    )
    found = "\n".join(map(line, forecast(asked, settings, Listener()).faults))
    for each in ("suite 'humaneval'", "suite 'rouge'", "speed.workloads.short"):
        assert each in found


def test_a_models_short_context_is_told_of_all_at_once(settings: Settings, tmp_path: Path) -> None:
    name = checkpoint(tmp_path / "model", {}, max_position_embeddings=20)
    found = "\n".join(map(line, forecast(request(name), settings, Listener()).faults))
    for each in ("max-model-len: 20", "suite 'humaneval'", "suite 'rouge'", "workloads.short"):
        assert each in found


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e308, 10**400, -1, "2", True])
def test_an_impossible_factor_of_the_context(
    settings: Settings, tmp_path: Path, factor: Any
) -> None:
    name = checkpoint(tmp_path / "model", {}, rope_scaling={"type": "linear", "factor": factor})
    forecast(request(name), settings, Listener())


def test_a_hub_that_cannot_be_reached(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise HubError("the Hub is unreachable", where="org/name", hint="check the network")

    for name in ("read_source", "bytes_to_download"):
        monkeypatch.setattr(f"pipeline.preflight.survey.{name}", fail)
    report = forecast(request("org/name"), settings, Listener())
    assert report.exit_code == run_model(request("org/name"), settings, Listener()).exit_code == 1
    assert list(report.lines())[1].startswith("would be refused: the Hub is unreachable")
    assert report.power  # the gates are the same for every checkpoint


def test_a_list_as_calibration_file(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "share.json").write_text("[]")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"{{name: own, extends: {AWQ}, summary: s,"
        " quantization: {calibration: {dataset: ./share.json}}}"
    )
    report = forecast(
        request(checkpoint(tmp_path / "model", {}), str(recipe)), settings, Listener()
    )
    assert any("jq -c '.[]' share.json" in fault.hint for fault in report.faults)


def test_a_weight_that_the_index_leaves_out(settings: Settings, tmp_path: Path) -> None:
    name = checkpoint(tmp_path / "model", {})
    folder = Path(name)
    shard = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / shard)
    listed = dict.fromkeys(
        ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"], shard
    )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": listed})
    )
    report = forecast(request(name), settings, Listener())
    (fault,) = report.faults
    assert "leaves out 'model.layers.0.mlp." in fault.message
    assert report.exit_code == ExitCode.USAGE


def test_a_calibration_chat_that_the_template_refuses(settings: Settings, tmp_path: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    name = checkpoint(tmp_path / "model", {"chat_template.jinja": template.encode()})
    system = {"messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]}
    (tmp_path / "data.jsonl").write_bytes(lines(*[system] * 50))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"{{name: own, extends: {AWQ}, summary: s,"
        " quantization: {calibration: {dataset: ./data.jsonl, column: messages}}}"
    )
    report = forecast(request(name, str(recipe)), settings, Listener())
    assert any("calibration chats cannot be used" in fault.message for fault in report.faults)


LATE = {
    "roles": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "arguments as text": [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
        }
    ],
    "no content": [{"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}],
}
STRICT = (
    "{% set last = namespace(role='') %}{% for m in messages %}"
    "{% if m.role == last.role %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set last.role = m.role %}{{ m.role + m.content }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
    "{{ k }}{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("messages", LATE.values(), ids=LATE)
def test_a_late_calibration_chat_that_the_template_refuses(
    settings: Settings, tmp_path: Path, messages: list[dict[str, Any]]
) -> None:
    name = checkpoint(tmp_path / "model", {"chat_template.jinja": STRICT.encode()})
    rows = [CHAT] * 80
    rows[39] = {"messages": messages}
    (tmp_path / "data.jsonl").write_bytes(lines(*rows))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"{{name: own, extends: {AWQ}, summary: s,"
        " quantization: {calibration: {dataset: ./data.jsonl, column: messages}}}"
    )
    report = forecast(request(name, str(recipe)), settings, Listener())
    assert report.exit_code == ExitCode.USAGE
    assert any(f"{tmp_path / 'data.jsonl'}, line 40 " in fault.where for fault in report.faults)
