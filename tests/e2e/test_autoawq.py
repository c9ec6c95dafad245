"""AutoAWQ for real: it keeps the function, fails without its guard, and its variant talks sense."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from port_server import served
from pydantic import TypeAdapter
from weight_comparer import check_variant, comparer

import pipeline
import recipes
from pipeline.environments.environment import Environment, ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.server import Server
from pipeline.stages.context import advance
from pipeline.stages.quantize import (
    QUANTIZE,
    CalibrationCompute,
    QuantizeParameters,
    QuantizeRuntime,
    copy_carried_over,
)
from prepare.digest import FileDigests
from prepare.errors import PrepareError
from prepare.events import NullProgress
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.catalog import load_recipe
from recipes.checkpoints.checkpoint import inspect_folder
from recipes.quantization import AnyQuantization, Quantization
from recipes.schema import ServingProfile

pytestmark = pytest.mark.of_everything

ROOT = Path(pipeline.__file__).parents[1]
TEXTS = Path(recipes.__file__).parent / "calibration" / "general.jsonl"
# Four layers of the real model, scaled only. Prints by how much its answers changed.
SCALE = """
import sys
from pathlib import Path
import torch
from awq import AutoAWQForCausalLM
from prepare.events import NullProgress
from recipes.quantizers import autoawq_worker as quantize_autoawq
from recipes.quantizers.transformers4_compat import transformers4_view

checkpoint, view, mended = sys.argv[1:]
readable = transformers4_view(Path(checkpoint), Path(view))
model = AutoAWQForCausalLM.from_pretrained(
    str(readable), torch_dtype="auto", trust_remote_code=False, num_hidden_layers=4
)
torch.manual_seed(1)
blocks = torch.randint(3, 40_000, (4, 64)).tolist()
with torch.no_grad():
    before = model.model(torch.tensor(blocks)).logits.float()
if mended == "no":
    quantize_autoawq.copy_tensors = lambda *_: None
model.quantize(
    None,
    quant_config={"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"},
    calib_data=blocks, max_calib_samples=4, max_calib_seq_len=64, apply_clip=False,
    n_parallel_calib_samples=2, export_compatible=True,
    quantizer_cls=quantize_autoawq.mended_quantizer(NullProgress()),
)
with torch.no_grad():
    after = model.model(torch.tensor(blocks)).logits.float()
print(float((after - before).norm() / before.norm()))
"""

TABLE = """
import json
from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP as table
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names
print(json.dumps({model_type: names.get(model_type) for model_type in table}))
"""

# Small random models of these types, as transformers 5 saves them.
MAKE_MODELS = """
import json, shutil, sys
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

folder, tokenizer, models = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
for name, options in models.items():
    torch.manual_seed(0)
    config = CONFIG_MAPPING[options.pop("model_type")](
        vocab_size=49152, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=4096, eos_token_id=2, bos_token_id=1,
        pad_token_id=2, **{"num_key_value_heads": 2, **options},
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(3)
        else:  # norms are all ones as they are made, and biases zeros
            weight.data.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(f"{folder}/{name}")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokenizer}/{file}", f"{folder}/{name}")
"""

QUANTIZE_MODELS = """
import json, sys
from pathlib import Path
from prepare.errors import StageError
from prepare.events import NullProgress
from recipes.quantizers.autoawq_worker import run

told = {}
for checkpoint in sorted(Path(sys.argv[1]).iterdir()):
    spec = {"checkpoint": str(checkpoint), "quantization": json.loads(sys.argv[2]),
            "group_sizes": json.loads(sys.argv[5]), "calibration_file": sys.argv[3],
            "trust_remote_code": False}
    output = Path(sys.argv[4], checkpoint.name)
    output.mkdir(parents=True)
    try:
        told[checkpoint.name] = run(spec, NullProgress(), output)
    except StageError as error:
        told[checkpoint.name] = {"error": error.message}
print(json.dumps(told))
"""

SAVE_CONFIGS = """
import json, sys
from transformers import CONFIG_MAPPING
for number, old in enumerate(json.loads(sys.argv[2])):
    CONFIG_MAPPING[old.pop("model_type")](**old).save_pretrained(f"{sys.argv[1]}/{number}")
"""

READ_CONFIGS = """
import json, sys
from pathlib import Path
from transformers import AutoConfig
from recipes.quantizers.transformers4_compat import transformers4_view
told = []
for number in range(int(sys.argv[2])):
    folder = Path(sys.argv[1]) / str(number)
    view = folder / "view"
    view.mkdir()
    told.append(AutoConfig.from_pretrained(transformers4_view(folder, view)).to_dict())
print(json.dumps(told))
"""

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PHI3_FACTORS = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
# As transformers 4 wrote them; version 5 saves them its way, and they have to come back.
CONFIGS_OF_4: list[dict[str, Any]] = [
    {"model_type": "llama", "rope_theta": 500000.0, "torch_dtype": "bfloat16"},
    {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA3},
    {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    {"model_type": "mistral", "rope_theta": 1000000.0, "sliding_window": None},
    {"model_type": "mixtral", "rope_theta": 1000000.0},
    {"model_type": "qwen2", "rope_theta": 1000000.0, "use_sliding_window": False},
    {"model_type": "qwen2", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"model_type": "qwen3", "rope_theta": 5000000.0},
    {"model_type": "qwen3_moe", "rope_theta": 5000000.0, "num_experts": 16},
    {"model_type": "gemma2", "rope_theta": 20000.0, "head_dim": 128},
    {"model_type": "cohere", "rope_theta": 75000000.0},
    {"model_type": "stablelm", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
    {"model_type": "starcoder2", "rope_theta": 999999.0},
    {"model_type": "gpt_neox", "rotary_emb_base": 20000, "rotary_pct": 0.5},
    {
        "model_type": "phi3",
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
        "rope_scaling": {"type": "longrope", **PHI3_FACTORS},
    },
]


@pytest.fixture(scope="module")
def environment() -> Environment:
    """The environment with AutoAWQ in it."""
    return ensure("quantize-autoawq", Accelerator.CPU, load_settings(), NullProgress())


def run_in(environment: Environment, script: str, *arguments: object) -> Any:
    """What the script prints on its last line, as JSON."""
    answer = subprocess.run(
        [str(environment.python), "-W", "ignore", "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    return json.loads(answer.stdout.splitlines()[-1]) if answer.stdout else None


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mended", "least", "most"), [("yes", 0, 0.02), ("no", 0.2, 10)])
def test_scaling_keeps_the_function_only_if_it_is_mended(
    environment: Environment,
    demo_model: Path,
    tmp_path: Path,
    mended: str,
    least: float,
    most: float,
) -> None:
    """If the second fails, the library is mended, and our copies may go."""
    assert least <= run_in(environment, SCALE, demo_model, tmp_path, mended) < most


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 32}
OPTIONS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": {"num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 4},  # so that its biases of v_proj are rescaled
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
}
SHARED_HEADS = "phi3-with-shared-heads"


def verified_layers(folder: Path, name: str, quantization: dict[str, Any]) -> int:
    """Finish the variant as the stage does, and verify it; how many layers were compared."""
    source, output = folder / "models" / name, folder / "outputs" / name
    digests = FileDigests(folder / "digests.json")
    checkpoint = inspect_folder(source, digests)
    copy_carried_over(checkpoint.place, output)
    asked: Quantization = TypeAdapter(AnyQuantization).validate_python(quantization)
    try:
        with comparer(folder) as compare:
            return len(check_variant(source, output, asked, compare).layers)
    except PrepareError as error:
        raise AssertionError(f"{name}: {error.message}") from error


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_every_architecture_that_the_recipe_names(
    environment: Environment, demo_model: Path, tmp_path: Path
) -> None:
    """Each is in AutoAWQ's table, is quantized and verified; what AutoAWQ gets wrong is refused.

    It scales the values by the rows of a fused matrix that end it, which are the keys' too where
    several heads share a value (Phi-4 and others of the type phi3), and says nothing.
    """
    recipe = load_recipe("autoawq-w4a16")
    table: dict[str, str | None] = run_in(environment, TABLE)
    types = {name: model_type for model_type, name in table.items()}
    wanted = [types[name] for name in recipe.architectures]
    models = {each: {"model_type": each, **OPTIONS.get(each, {})} for each in wanted}
    models[SHARED_HEADS] = {"model_type": "phi3"}
    newer = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress())
    run_in(newer, MAKE_MODELS, tmp_path / "models", demo_model, json.dumps(models))
    quantization = recipe.quantization.model_dump()
    quantization["ignore"] += ["re:.*[.]gate$"]
    quantization["calibration"] |= {"column": "text", "samples": 4, "max_tokens": 64}
    told = run_in(
        environment,
        QUANTIZE_MODELS,
        tmp_path / "models",
        json.dumps(quantization),
        TEXTS,
        tmp_path / "outputs",
        json.dumps(recipe.quantization.group_sizes),
    )
    assert "share" in told.pop(SHARED_HEADS)["error"]
    assert sorted(told) == sorted(wanted)
    assert {name: facts["error"] for name, facts in told.items() if "error" in facts} == {}
    verified = {name: verified_layers(tmp_path, name, quantization) for name in told}
    assert verified == {name: facts["quantized_modules"] for name, facts in told.items()}
    experts = json.loads((tmp_path / "outputs" / "qwen3_moe" / "config.json").read_text())
    assert experts["quantization_config"]["modules_to_not_convert"] == ["mlp.gate"]


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_configurations_come_back_from_version_5(environment: Environment, tmp_path: Path) -> None:
    newer = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress())
    run_in(newer, SAVE_CONFIGS, tmp_path, json.dumps(CONFIGS_OF_4))
    read = run_in(environment, READ_CONFIGS, tmp_path, len(CONFIGS_OF_4))
    for number, (old, back) in enumerate(zip(CONFIGS_OF_4, read, strict=True)):
        saved = json.loads((tmp_path / str(number) / "config.json").read_text())
        assert saved.get("rope_parameters"), "version 5 has said it its own way"
        for key, value in old.items():
            if key == "rope_scaling":
                assert value.items() <= back[key].items(), old["model_type"]
            else:
                assert back[key] == value, (old["model_type"], key)


@pytest.fixture(scope="module")
def variant(
    environment: Environment,
    demo_model: Path,
    cpu_profile: ServingProfile,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The demo model, quantized by the stage itself with 512 calibration tokens."""
    folder = tmp_path_factory.mktemp("autoawq")
    checkpoint = inspect_folder(demo_model, FileDigests(folder / "digests.json"))
    quantization = load_recipe("autoawq-w4a16").quantization
    assert quantization.calibration is not None
    few = {"dataset": "builtin", "column": "text", "samples": 4, "max_tokens": 128}
    calibration = quantization.calibration.model_copy(update=few)
    spec = QUANTIZE.spec(
        "autoawq-w4a16",
        QuantizeParameters(
            checkpoint=checkpoint.digest,
            quantization=quantization.model_copy(update={"calibration": calibration}),
            environment="",
            compute=CalibrationCompute(
                dtype="float32" if cpu_profile.quantizes_in_float32 else None
            ),
        ),
        {},
        QuantizeRuntime(
            checkpoint=checkpoint.place,
            calibration_file=str(TEXTS),
            python=str(environment.python),
        ),
        folder,
    )
    record = advance(spec, Store(Path(spec.store)), NullProgress())[0]
    assert record.result["quantized_modules"] == 7 * 30
    assert record.result["group_size"] == 64
    return folder / "stages" / "quantize" / spec.key / "output"


@pytest.fixture(scope="module")
def server(
    variant: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The variant, served as a run would serve it here."""
    log = tmp_path_factory.mktemp("served") / "server.log"
    with served(variant, cpu_profile, log, changes={}, is_baseline=False) as found:
        yield found


@pytest.mark.e2e
@pytest.mark.timeout(900)
class TestVariant:
    def test_is_in_awqs_own_format(self, variant: Path, demo_model: Path) -> None:
        config = json.loads((variant / "config.json").read_text())
        added = config.pop("quantization_config")
        assert added["quant_method"] == "awq"
        assert added["version"] == "gemm"
        assert (added["bits"], added["group_size"], added["zero_point"]) == (4, 64, True)
        assert config == json.loads((demo_model / "config.json").read_text())
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            assert (variant / name).read_bytes() == (demo_model / name).read_bytes()

    def test_answers_with_sense(self, server: Server) -> None:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={
                "model": "model",
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "temperature": 0,
                "max_tokens": 32,
            },
            timeout=120,
            trust_env=False,
        )
        choice = answer.raise_for_status().json()["choices"][0]
        assert "Paris" in choice["message"]["content"]
        assert choice["finish_reason"] == "stop", "it knows where its turn ends"
