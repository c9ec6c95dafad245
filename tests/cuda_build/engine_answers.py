"""Runs in the CUDA serving environment over the faked driver: what vLLM itself says.

    engine_answers.py QUESTIONS.json ANSWERS.json

Questions: `commands` (argument lists; the model's folder is the word after --model), `candidates`
(the same, by name), `models` (folder by name), `caches` (folders of further models by name, and a
command by type of cache), `bodies` (completion requests by name), `memory` (bytes of KV cache).
Answers: for each command and candidate the error or null, for each model and command the engine
configuration's error or null, KV tokens by model, the same by type of cache with the context, by
format of the cache the tokens of the llama or the error, the requests' errors, and whether the
FlashInfer sampler would be used.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

PROPERTIES = SimpleNamespace(
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=81559 << 20,
    name="NVIDIA H100 80GB HBM3",
    is_integrated=False,
    shared_memory_per_block_optin=232448,
    regs_per_multiprocessor=65536,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    L2_cache_size=50 << 20,
)


class Nothing:
    """A stream or an event that does nothing."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


class OnNoDevice(TorchFunctionMode):
    """Makes on the meta device what a model's class would make on the GPU."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        device = options.get("device")
        if isinstance(device, int) or "cuda" in str(device):  # a number is that of a GPU
            options["device"] = "meta"
        arguments = [
            "meta" if isinstance(each, (str, torch.device)) and "cuda" in str(each) else each
            for each in arguments
        ]
        return function(*arguments, **options)


def pretend_device():
    """What torch would ask the GPU."""
    torch.cuda.get_device_properties = lambda *_, **__: PROPERTIES
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.Stream = torch.cuda.Event = Nothing
    from vllm.platforms import current_platform

    kind = type(current_platform)
    kind.num_compute_units = classmethod(lambda cls, device_id=0: 132)
    kind.is_integrated_gpu = classmethod(lambda cls, device_id=0: False)


def parsed(parser, words):
    """The arguments as vLLM reads them; warnings are errors."""
    from vllm.entrypoints.common.cli_args import validate_parsed_serve_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("error")
            arguments = parser.parse_args(words)
            validate_parsed_serve_args(arguments)
    except SystemExit as error:
        raise ValueError(said.getvalue()[-300:]) from error
    return arguments


def configured(parser, words):
    """The configuration that the engine makes of a command line."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine = AsyncEngineArgs.from_cli_args(parsed(parser, words))
    return engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def kv_tokens(config, memory):
    """Tokens that fit by the engine's own computation, for its model class on no device."""
    from vllm.config import set_current_vllm_config
    from vllm.config.vllm import get_layers_from_vllm_config
    from vllm.distributed import destroy_model_parallel, initialize_model_parallel
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )
    from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_capacity,
    )

    with set_current_vllm_config(config):
        destroy_model_parallel()
        initialize_model_parallel(1)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(config.model_config.dtype)
        try:
            with torch.device("meta"), OnNoDevice():
                initialize_model(config)
        finally:
            torch.set_default_dtype(usual)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        with contextlib.suppress(Exception):
            current_platform.update_block_size_for_backend(config)
        specs = {
            name: spec
            for name, layer in layers.items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
            if (spec := layer.get_kv_cache_spec(config)) is not None
        }
        specs = {name: packed(layers[name], spec) for name, spec in specs.items()}
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
        resolve_kv_cache_layout(config, [[each.name for each in layouts]], list(specs.values()))
        groups = get_global_kv_cache_groups(config, [specs])
        made = get_kv_cache_configs(config, [specs], [memory], groups)
        return get_kv_cache_capacity(config, generate_scheduler_kv_cache_config(made))[0]


def packed(layer, spec):
    """Return the specification as the layer's attention stores it: bits in bytes, with scales."""
    backend = getattr(layer, "attn_backend", None)
    return backend.customize_spec(spec) if backend is not None else spec


def cache_of(parser, folder, by_type, memory):
    """The context and the tokens by type of cache, or the first error."""
    found = {}
    for kind, words in by_type.items():
        try:
            config = configured(parser, placed(words, folder))
            found[kind] = kv_tokens(config, memory)
        except Exception as error:  # every answer is wanted
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        found["context"] = config.model_config.max_model_len
    return found


def formats_of(parser, words, memory):
    """Tokens by each format of the KV cache that the build knows, or the error."""
    from vllm.config.cache import KV_CACHE_DTYPES

    found = {}
    for name in list(KV_CACHE_DTYPES):
        try:
            config = configured(parser, [*words, "--kv-cache-dtype", name])
            found[name] = kv_tokens(config, memory)
        except Exception as error:  # every answer is wanted
            found[name] = f"{type(error).__name__}: {error}"[:2000]
    return found


def error_of(work, *arguments):
    """The error's words, or None."""
    try:
        work(*arguments)
    except Exception as error:  # every answer is wanted
        return f"{type(error).__name__}: {error}"[:500]
    return None


def placed(words, model):
    """The command line with another model's folder."""
    at = words.index("--model") + 1
    return [*words[:at], model, *words[at + 1 :]]


def main(questions_path, answers_path):
    """Answer all questions."""
    questions = json.loads(Path(questions_path).read_text())
    pretend_device()
    from vllm.distributed import init_distributed_environment
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported
    from vllm.v1.worker.workspace import init_workspace_manager

    parser = make_arg_parser(FlexibleArgumentParser())
    commands, models = questions["commands"], questions["models"]
    answers = {
        "parser": [error_of(parsed, parser, words) for words in commands],
        "configurations": {
            f"{name} {number}": error_of(configured, parser, placed(words, folder))
            for name, folder in models.items()
            for number, words in enumerate(commands)
        },
        "candidates": {
            name: error_of(
                configured,
                parser,
                placed(words, models["gpt-oss-20b" if "expert" in name else "llama"]),
            )
            for name, words in questions["candidates"].items()
        },
        "sampler": flashinfer_sampler_supported(),
        "kv_tokens": {},
    }
    served = configured(parser, placed(commands[0], next(iter(models.values()))))

    def ask(body):
        request = CompletionRequest(**body)
        if request.model_extra:
            raise ValueError(f"unknown fields: {sorted(request.model_extra)}")
        request.to_sampling_params(16, {}).verify(
            served.model_config, None, served.structured_outputs_config, None
        )

    answers["requests"] = {n: error_of(ask, b) for n, b in questions["bodies"].items()}
    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{29000 + os.getpid() % 2000}", 0, "gloo")
    init_workspace_manager(torch.device("meta"))  # sparse attention asks for room as it is built
    for name, folder in models.items():
        try:
            config = configured(parser, placed(commands[0], folder))
            answers["kv_tokens"][name] = kv_tokens(config, questions["memory"])
        except Exception as error:  # every answer is wanted
            answers["kv_tokens"][name] = f"{type(error).__name__}: {error}"[:500]
    answers["caches"] = {
        name: cache_of(
            parser, folder, questions["caches"]["commands"], questions["caches"]["memory"]
        )
        for name, folder in questions["caches"]["models"].items()
    }
    llama = placed(commands[0], questions["models"]["llama"])
    answers["formats"] = formats_of(parser, llama, questions["caches"]["memory"])
    Path(answers_path).write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
