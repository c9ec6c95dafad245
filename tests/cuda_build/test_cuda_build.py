"""The locked CUDA build of vLLM, over a faked H100: it reads our words and counts as we do.

No kernel runs. Not part of `make test`: the environment is 9.6 GB. `make test-cuda-build`.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from eval_gates.ask import choice_body
from eval_gates.prompt_scores import score
from pipeline.environments.cuda_home import compiler_variables
from pipeline.environments.environment import Environment, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.tuned_arm import add_candidate, make_defaults
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.events import NullProgress
from prepare.process_environment import server_environment
from recipes import catalog
from recipes.accelerator import Accelerator
from recipes.checkpoints.layers import STORED, read_layers, sequence_bytes
from recipes.checkpoints.model_shape import model_shape
from recipes.engines.vllm import HOPPER_CACHES
from recipes.schema import ServingProfile
from recipes.tuning_candidates import load_candidates

pytestmark = [pytest.mark.cuda_build, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
PUBLISHED, ENGINE_TOKENS = HERE / "published_configs.jsonl", HERE / "engine_kv_tokens.json"
ENGINE_FORMATS = HERE / "engine_kv_formats.json"
CACHE_MEMORY = 2**40  # every model has room for a sequence of its whole context
MEMORY = 40 * 2**30
NVCC = {"PREPARE_NVCC": "1"}
STEP_TOKENS = 8192  # vLLM's default on an H100
CUDA_PROFILES = [
    n for n in catalog.profile_names() if catalog.load_profile(n).accelerator == "cuda"
]
COMMON = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "tie_word_embeddings": True,
}
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "mlp_bias": False,
}
GEMMA = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1000000,
    "rope_local_base_freq": 10000,
    "hidden_activation": "gelu_pytorch_tanh",
}
GPT_OSS = COMMON | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "tie_word_embeddings": False,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "swiglu_limit": 7.0,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head", "model.embed_tokens"],
    },
}
MODELS: dict[str, dict[str, Any]] = {"llama": LLAMA, "gemma-3-1b": GEMMA, "gpt-oss-20b": GPT_OSS}
BODIES = {
    "one request a question": choice_body("model", (5, 6, 7), (319, 350)),
    "screen": score("model", (5, 6), (7,)).body,
    "generated": {
        "model": "model",
        "prompt": [[5, 6, 7, 8]],
        "max_tokens": 512,
        "temperature": 0.0,
        "stop": ["</s>"],
        "seed": 7,
    },
}


def command_of(profile: ServingProfile, *, is_baseline: bool, trust: bool = False) -> list[str]:
    """What a server of the profile is started with, without the interpreter and the module."""
    server = Server(
        Path("python"),
        Path("/M"),
        ServingArguments.of(profile, is_baseline=is_baseline),
        Path("log"),
        trust_remote_code=trust,
    )
    return server.command[3:]


def commands() -> list[list[str]]:
    """Every command line that the carried profiles make; the first is the baseline's on an H100."""
    return [
        command_of(spread, is_baseline=is_baseline, trust=trust)
        for name in sorted(CUDA_PROFILES, key=lambda name: name != "h100")
        for gpus in (1, 2, 4)  # what all of the models' heads divide into
        for spread in (catalog.load_profile(name).spread_over(gpus, expert_parallel=False),)
        for is_baseline in (True, False)
        for trust in (False, True)
    ]


def candidates() -> dict[str, list[str]]:
    """The command line of each carried candidate of `prepare tune` on H100s, by name."""
    found = load_candidates("standard")
    defaults = make_defaults(
        catalog.load_profile("h100").spread_over(2, expert_parallel=False), found
    )
    return {
        name: command_of(add_candidate(name, each, defaults).profile, is_baseline=False)
        for name, each in found.candidates.items()
        # A llama has no layers that predict several tokens; the method itself is checked by ours.
        if each.accelerator == "cuda" and not name.startswith("mtp")
    }


@pytest.fixture(scope="module")
def serve() -> Environment:
    """The CUDA serving environment, built where it is not there yet."""
    started = time.monotonic()
    found = ensure("serve", Accelerator.CUDA, load_settings(), NullProgress())
    print(f"serve-cuda is ready after {time.monotonic() - started:.0f} s")
    return found


def variables_of(serve: Environment, profile: str, folder: Path) -> dict[str, str]:
    """A server's variables; the driver is in `folder`, and the host may have nvcc."""
    own = catalog.load_profile(profile).environment
    return {
        **server_environment(
            {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin", "HOME": str(folder)},
            {**own, "LD_LIBRARY_PATH": str(folder)},
            python=serve.python,
        ),
        **compiler_variables(serve.python, own),
    }


@pytest.fixture(scope="module")
def answers(serve: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """vLLM's answers to all questions in one process; loading it takes most of the time."""
    folder = tmp_path_factory.mktemp("cuda")
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run(
            ["gcc", "-w", "-shared", "-fPIC", "-o", folder / library, HERE / "fake_driver.c"],
            check=True,
        )
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        (folder / name / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    published = {}
    for number, line in enumerate(PUBLISHED.read_text().splitlines()):
        one = json.loads(line)
        place = folder / f"published-{number}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **one["config"]}))
        (place / "model.safetensors.index.json").write_text('{"weight_map": {}}')
        published[one["name"]] = str(place)
    lines = commands()
    questions = {
        "commands": lines,
        "candidates": candidates(),
        "models": {name: str(folder / name) for name in MODELS},
        "caches": {
            "models": published,
            "commands": {"auto": lines[0], "fp8": next(each for each in lines if "fp8" in each)},
            "memory": CACHE_MEMORY,
        },
        "bodies": BODIES,
        "memory": MEMORY,
    }
    (folder / "questions.json").write_text(json.dumps(questions))
    subprocess.run(
        [
            *(serve.python, HERE / "engine_answers.py"),
            *(folder / "questions.json", folder / "answers.json"),
        ],
        env=variables_of(serve, "h100", folder),
        cwd=folder,
        check=True,
    )
    said: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    said["llama"] = str(folder / "llama")
    print(f"{len(said['parser'])} command lines, {len(said['configurations'])} configurations")
    return said


def test_its_modules_for_cuda_import(serve: Environment) -> None:
    # A cuda-python older than 13 overwrites cuda.bindings, which then lacks this.
    code = (
        "import cuda.bindings.runtime as runtime, torch\n"
        "assert runtime.cudaLibrary_t\nprint(torch.version.cuda)"
    )
    said = subprocess.run(
        [serve.python, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("13.")


def test_every_command_line_is_read(answers: dict[str, Any]) -> None:
    assert [error for error in answers["parser"] if error] == []


def test_every_configuration_is_made(answers: dict[str, Any]) -> None:
    assert {key: error for key, error in answers["configurations"].items() if error} == {}


def test_every_candidate_of_tune_is_served(answers: dict[str, Any]) -> None:
    assert {name: error for name, error in answers["candidates"].items() if error} == {}


@pytest.mark.parametrize(
    ("profile", "uses_flashinfer", "fusion"),
    [("h100", False, [False, False]), ("h100-flashinfer", True, [False, True])],
)
def test_the_profile_decides_on_kernels_and_not_the_host(
    serve: Environment,
    answers: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    profile: str,
    uses_flashinfer: bool,
    fusion: list[bool],
) -> None:
    """This very host may have nvcc; the toolkit of the environment compiles and links."""
    folder = tmp_path_factory.mktemp(profile)
    base = catalog.load_profile(profile)
    lines = [
        command_of(base.spread_over(gpus, expert_parallel=False), is_baseline=False)
        for gpus in (1, 2)
    ]
    (folder / "questions.json").write_text(
        json.dumps(
            {"commands": lines, "model": answers["llama"], "compile": base.environment == NVCC}
        )
    )
    variables = variables_of(serve, profile, Path(answers["llama"]).parent) | {
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "LIBRARY_PATH": str(Path(answers["llama"]).parent),  # of the driver, for the linker
    }
    subprocess.run(
        [
            *(serve.python, HERE / "compiler_answers.py"),
            *(folder / "questions.json", folder / "answers.json"),
        ],
        env=variables,
        cwd=folder,
        check=True,
    )
    said = json.loads((folder / "answers.json").read_text())
    assert said["flashinfer"] is uses_flashinfer
    assert said["fuse_allreduce_rms"] == fusion
    assert said["compiled"] is uses_flashinfer


def test_every_request_is_taken(answers: dict[str, Any]) -> None:
    assert {name: error for name, error in answers["requests"].items() if error} == {}


def test_the_sampler_needs_no_compiler(answers: dict[str, Any]) -> None:
    assert answers["sampler"] is False


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_cache_are_near_the_engines(answers: dict[str, Any], name: str) -> None:
    config = MODELS[name]
    context = config["max_position_embeddings"]
    layers = read_layers(config, model_shape(config, "config.json"), "config.json")
    one = sequence_bytes(layers, context, STORED["auto"], held=2 * STEP_TOKENS)
    assert answers["kv_tokens"][name] == pytest.approx(MEMORY / one * context, rel=0.08)


def test_the_caches_of_published_models_are_asked_again(answers: dict[str, Any]) -> None:
    """Write the data that tests/unit/recipes/checkpoints/test_layers.py and the reference read."""
    found: dict[str, dict[str, Any]] = answers["caches"]
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()]
    ENGINE_TOKENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def test_the_formats_of_the_cache_are_asked_again(answers: dict[str, Any]) -> None:
    """Write the data that tests/unit/recipes/checkpoints/test_layers.py and the reference read."""
    found: dict[str, int | str] = answers["formats"]
    assert {name for name, said in found.items() if isinstance(said, int)} == {*HOPPER_CACHES} - {
        "float16"
    }  # it needs weights of that type
    refused = [said for said in found.values() if isinstance(said, str)]
    assert all("kv_cache_dtype" in said for said in refused)
    tokens = {name: said if isinstance(said, int) else None for name, said in found.items()}
    ENGINE_FORMATS.write_text(json.dumps(tokens, indent=1) + "\n")
