"""Run in the quantize environment: our FP8 stream and llm-compressor's two ways, tensor by tensor.

    python fp8_reference.py JOBS.json

Prints one line of JSON, an answer a job. Not a test itself: tests/e2e/test_fp8_stream.py starts it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

IGNORE = ["lm_head"]


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    kinds = {
        "make": make,
        "split": split,
        "compare": compare,
        "rows": compare_rows,
        "stream": stream,
        "killed": stream_until_killed,
    }
    answers = [kinds[job.pop("do")](**job) for job in jobs]  # type: ignore[operator]
    print(json.dumps(answers))


def make(folder: str, *, intermediate: int, tied: bool, head_stored: bool = False) -> None:
    """A tiny Llama whose matrices have every kind of row, in two shards."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(intermediate)
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        vocab_size=96,
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("proj.weight"):
            spoil(parameter.data)
    model.save_pretrained(folder, max_shard_size="40KB")
    if head_stored:
        store_head(Path(folder), model)


def store_head(folder: Path, model: Any) -> None:
    """Store the embedding again as the lm_head that config.json says it is."""
    from safetensors.torch import save_file

    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    head = model.model.embed_tokens.weight.detach().clone()
    save_file({"lm_head.weight": head}, folder / "head.safetensors", metadata={"format": "pt"})
    index["weight_map"]["lm_head.weight"] = "head.safetensors"
    index_file.write_text(json.dumps(index))


def spoil(weight: Any) -> None:
    """Rows of zeros, of minus zeros, denormal, huge, all equal, of one outlier, of mixed zeros."""
    import torch

    smallest = torch.tensor(1, dtype=torch.int16).view(torch.bfloat16)
    largest = torch.finfo(torch.bfloat16).max
    columns = weight.shape[1]
    kinds: list[Any] = [
        torch.zeros(columns),
        -torch.zeros(columns),
        torch.randn(columns).sign() * smallest.float(),
        torch.randn(columns) * 1e-39,
        torch.randn(columns) * 1e-36,
        torch.rand(columns) * largest,
        torch.full((columns,), -largest),
        torch.full((columns,), 0.0123),
        torch.randn(columns) * 1e4,
        torch.cat([torch.full((1,), 3e4), torch.randn(columns)])[:columns],
        torch.randn(columns) * torch.randint(-1, 2, (columns,)),
        torch.randn(columns) * 10.0 ** torch.randint(-38, 38, (columns,)),
    ]
    for row, values in zip(range(0, weight.shape[0], 2), kinds, strict=False):
        weight[row] = values.to(weight.dtype)


def split(source: str, folder: str) -> None:
    """Save a checkpoint in several files."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    model.save_pretrained(folder, max_shard_size="60MB")


def stream(source: str, output: str) -> dict[str, Any]:
    """Quantize by our stream; its facts."""
    from pipeline.core.events import NullProgress
    from pipeline.workers.fp8_stream.stream import stream_fp8

    Path(output).mkdir(exist_ok=True)
    return stream_fp8(Path(source), Path(output), "FP8_DYNAMIC", IGNORE, NullProgress())


def stream_until_killed(source: str, output: str) -> None:
    """Quantize, and be killed as soon as a file is finished and before all are."""
    from pipeline.workers.fp8_stream import copy_pipeline
    from pipeline.workers.fp8_stream.stream import stream_fp8

    class Killer:
        def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
            if any(Path(output).glob("*.safetensors")) and done != total:
                os.kill(os.getpid(), signal.SIGKILL)

        def note(self, text: str) -> None:
            pass

    copy_pipeline.REPORT_SECONDS = 0
    Path(output).mkdir()
    stream_fp8(Path(source), Path(output), "FP8_DYNAMIC", IGNORE, Killer())


def compare(source: str, work: str, scheme: str, ways: list[str]) -> dict[str, Any]:
    """Quantize by all ways; how each differs from ours."""
    from pipeline.core.events import NullProgress
    from pipeline.workers.fp8_stream.stream import stream_fp8

    ours = Path(work) / "ours"
    ours.mkdir(parents=True)
    facts = stream_fp8(Path(source), ours, scheme, IGNORE, NullProgress())
    answer: dict[str, Any] = {"facts": facts, "config": config_of(ours)}
    mine = read_all(ours)
    answer["names"] = sorted(mine)
    for way in ways:
        folder = Path(work) / way
        {"oneshot": by_oneshot, "model_free": by_model_free}[way](source, folder, scheme)
        answer[way] = differences(mine, read_all(folder))
        answer[f"{way}_config"] = config_of(folder)
    return answer


def by_oneshot(source: str, folder: Path, scheme: str) -> None:
    """llm-compressor with the model built."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    oneshot(
        model=model,
        recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=IGNORE),
    )
    model.save_pretrained(folder, save_compressed=True)


def by_model_free(source: str, folder: Path, scheme: str) -> None:
    """llm-compressor without a model."""
    from llmcompressor import model_free_ptq

    # It takes embeddings for linear layers unless told.
    model_free_ptq(source, folder, scheme=scheme, ignore=[*IGNORE, "re:.*embed_tokens"])


def config_of(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def read_all(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint, by an independent reader."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What is not the same, to the bit; empty where all is."""
    import torch

    found = [f"{name}: only one has it" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = ours[name], theirs[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            found.append(f"{name}: {one.dtype} {one.shape}, not {other.dtype} {other.shape}")
            continue
        unequal = one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)
        if bool(unequal.any()):
            pairs = {
                f"{a:#04x} for {b:#04x}"
                for a, b in zip(
                    one.contiguous().view(torch.uint8)[unequal].tolist(),
                    other.contiguous().view(torch.uint8)[unequal].tolist(),
                    strict=True,
                )
            }
            found.append(f"{name}: {int(unequal.sum())} bytes, {', '.join(sorted(pairs)[:4])}")
    return found


def compare_rows(seed: int, scheme: str, dtype: str, shapes: list[list[int]]) -> dict[str, Any]:
    """Compare our cast of matrices with the steps that oneshot takes for a linear layer."""
    import torch
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import (
        initialize_module_for_quantization,
        preset_name_to_scheme,
    )
    from llmcompressor.entrypoints.model_free.lifecycle import calibrate_weight

    from pipeline.workers.fp8_stream.cast import Caster
    from pipeline.workers.fp8_stream.layout import Chunk

    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
    torch.manual_seed(seed)
    unequal, ordinary = [], 0
    for rows, columns in shapes:
        exponents = torch.randint(-40, 38, (rows, 1)).float()
        weight = (torch.randn(rows, columns) * 10.0**exponents).to(getattr(torch, dtype))
        if seed % 2:
            weight = (torch.randn(rows, columns) * 0.02).to(weight.dtype)
        weight[torch.rand(rows, columns) < 0.01] = -0.0
        weight = torch.nan_to_num(weight, posinf=1.0, neginf=-1.0)
        if seed % 3 == 0 and dtype == "bfloat16":  # any finite bits
            bits = torch.randint(-(2**15), 2**15, (rows, columns), dtype=torch.int16)
            weight = torch.nan_to_num(bits.view(torch.bfloat16), nan=0.0, posinf=1.0, neginf=-0.0)
        layer = torch.nn.Linear(columns, rows, bias=False, dtype=weight.dtype)
        layer.weight.data.copy_(weight)
        initialize_module_for_quantization(layer, preset_name_to_scheme(scheme, ["Linear"]))
        calibrate_weight(layer)
        compress_module(layer)
        size = weight.numel() * weight.element_size()
        piece = Chunk(0, size, 0, names[dtype], rows, columns)
        caster = Caster(scheme, "cpu", size)
        caster.room(piece)[:] = bytes(weight.contiguous().view(torch.uint8).flatten().tolist())
        library = caster._cast_as_library
        calls: list[int] = []
        caster._cast_as_library = lambda *a, k=library, c=calls: (c.append(1), k(*a))[1]
        data, scales = caster.cast(piece)
        ordinary += not calls
        expected = layer.weight.view(torch.uint8).flatten().tolist()
        expected_scales = layer.weight_scale.contiguous().view(torch.uint8).flatten().tolist()
        if list(data) != expected or list(scales) != expected_scales:
            unequal.append([rows, columns])
    return {"unequal": unequal, "by_short_way": ordinary}


if __name__ == "__main__":
    main()
