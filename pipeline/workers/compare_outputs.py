"""Whether a variant whose columns were rescaled computes what its source computes.

The scales of AWQ and SmoothQuant move between a layer and the one before it, so single weights
cannot be compared. Each block of the variant gets the inputs that the source's block got, and its
output is compared with the source's; so a fault is found where it is. The last distributions of
the whole variant are compared, too.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import AUXILIARY_FILES, matches
from pipeline.checkpoint.weight_files import weight_files
from pipeline.core.errors import StoreError, VerificationError
from pipeline.core.events import Progress
from pipeline.core.memory import available_bytes
from pipeline.verification.comparison import WeightComparison
from pipeline.workers.calibration_blocks import read_texts
from pipeline.workers.dequantize import convert
from pipeline.workers.moe_experts import model_class
from recipes.weight_format import AWQ_GEMM, FP8, MODELOPT_FP8, MODELOPT_NVFP4, PLAIN

TOKENS = 512
IN_FLOAT32 = 3  # memory of a model in float32, over its 16-bit files, with what is copied meanwhile
BLOCK = re.compile(r".*\.(?:layers|h|blocks|block)\.\d+")
# The demo model's blocks have 15 to 25 dB with 4-bit AWQ, and at most 2 with a matrix of the MLP
# doubled or exchanged; docs/explanation/limits.md has the measurements.
MIN_BLOCK_DB = 6.0
# The demo model, which is small and loses much, has 0.15 with AWQ and 0.27 with symmetric AWQ.
MAX_DIVERGENCE_NATS = 1.0
HINT = (
    "scales were folded into one layer and not taken out of the next, or weights were damaged: "
    "quantize again; if it happens again, use another recipe"
)


def compare_outputs(
    comparison: WeightComparison, spec: dict[str, Any], progress: Progress, output: Path
) -> dict[str, Any] | None:
    """Run both models over one text.

    Args:
        spec: texts (a file, see `read_texts`), trust_remote_code.
        output: existing folder for the variant's 16-bit weights, which are removed at the end.

    Returns:
        tokens: positions compared; divergence_nats: mean Kullback-Leibler divergence of the
        variant's next-token distribution from the source's, in nats; same_next_token: share of
        positions where both find the same token most likely; worst_block: its name; worst_block_db:
        its signal-to-noise ratio, of what a block adds to its input. None if no library here
        converts the variant to 16 bits.

    Raises:
        VerificationError: a block computes something else than the source's.
        StoreError: the disk has no room for the 16-bit weights.
    """
    source, variant = Path(comparison.source), Path(comparison.variant)
    trust = spec["trust_remote_code"]
    if (converter := converter_of(comparison)) is None:
        return None
    tokens = first_tokens(source, spec["texts"], trust)
    progress.note(f"comparing the blocks' outputs over {tokens.shape[1]} tokens with the source's")
    recorded: dict[str, tuple[Any, Any]] = {}
    model = load(source, trust)
    record(model, recorded)
    ours = log_probabilities(model, tokens)
    del model
    with tempfile.TemporaryDirectory(dir=output) as temporary:
        copy = Path(temporary) / "sixteen-bits"
        copy.mkdir()
        if converter:
            check_space(copy, source)
            write_sixteen_bits(converter, variant, copy)
        ratios: dict[str, float] = {}
        model = load(copy if converter else variant, trust)
        theirs = log_probabilities(model, tokens)
        replay(model, recorded, ratios)
        log_probabilities(model, tokens)
    divergence = float((ours.exp() * (ours - theirs)).sum(-1).mean())
    worst = min(ratios, key=lambda name: ratios[name], default="")
    if worst and not ratios[worst] >= MIN_BLOCK_DB:
        raise VerificationError(
            f"the outputs of '{worst}' are not the source's: a signal-to-noise ratio of "
            f"{ratios[worst]:.1f} dB, and {MIN_BLOCK_DB:.0f} is the least that quantizing explains",
            where=str(variant),
            hint=HINT,
        )
    if not divergence <= MAX_DIVERGENCE_NATS:
        raise VerificationError(
            f"the variant's next-token distribution is {divergence:.2f} nats a token from the "
            f"source's, and {MAX_DIVERGENCE_NATS} is the most that quantizing explains",
            where=str(variant),
            hint=HINT,
        )
    return {
        "tokens": int(tokens.shape[1]),
        "divergence_nats": divergence,
        "same_next_token": float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        "worst_block": worst,
        "worst_block_db": ratios.get(worst),
    }


def check_space(folder: Path, source: Path) -> None:
    """Raise StoreError if the 16-bit weights do not fit on the disk."""
    needed = sum(file.stat().st_size for file in weight_files(source))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise StoreError(
            f"the comparison of outputs needs {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f}",
            where=str(folder),
            hint="free some space, or name another place with --store DIR",
        )


def converter_of(comparison: WeightComparison) -> str | None:
    """Return the converter of a variant's layers, see `convert`: "" for 16 bits, None for none."""
    forms = {(form.name, form.block is None) for form in comparison.layers.values()}
    names = {name for name, _ in forms}
    if names == {PLAIN}:
        return ""
    if forms == {(FP8, False)}:
        return "fp8-block"
    if names == {AWQ_GEMM}:
        return "awq"
    others = {AWQ_GEMM, FP8, MODELOPT_FP8, MODELOPT_NVFP4, PLAIN}
    return "compressed-tensors" if names and not names & others else None


def write_sixteen_bits(converter: str, variant: Path, copy: Path) -> None:
    """Write the variant's weights in 16 bits."""
    names = {file.name for file in weight_files(variant)}
    others = (*AUXILIARY_FILES, "*.json", "*.py")
    names |= {file.name for file in variant.iterdir() if matches(file.name, others)}
    convert(variant, names, converter, copy)


def first_tokens(source: Path, texts: str, trust: bool) -> Any:
    """Return the first tokens of the texts as 1 x tokens, at most what the model can take."""
    import torch
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust).get_text_config()
    limit = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    found: list[int] = []
    for text in read_texts({"column": "text"}, texts, tokenizer):
        found += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(found) >= limit:
            break
    return torch.tensor([found[:limit]])


def load(checkpoint: Path, trust: bool) -> Any:
    """Return a model: in float32 if memory allows, which CPUs multiply fast, else in its own type.

    CPUs without instructions for bf16 take five to fifty times as long in it.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust)
    needed = IN_FLOAT32 * sum(file.stat().st_size for file in weight_files(checkpoint))
    model = model_class(config).from_pretrained(
        checkpoint,
        dtype="float32" if needed < available_bytes() else "auto",
        trust_remote_code=trust,
    )
    return model.eval()


def log_probabilities(model: Any, tokens: Any) -> Any:
    """Return each next token's log-probabilities: tokens x vocabulary, in float32."""
    import torch

    with torch.no_grad():
        return model(tokens, use_cache=False).logits[0].float().log_softmax(-1)


def blocks_of(model: Any) -> dict[str, Any]:
    """Return the numbered blocks that are in no other."""
    found = {name: module for name, module in model.named_modules() if BLOCK.fullmatch(name)}
    return {n: m for n, m in found.items() if not any(n.startswith(f"{o}.") for o in found)}


def record(model: Any, recorded: dict[str, tuple[Any, Any]]) -> None:
    """Record each block's input and output: tokens x width."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
            entry = arguments[0] if arguments else keywords["hidden_states"]
            recorded[name] = entry.clone(), first(output).clone()

        return hook

    for name, block in blocks_of(model).items():
        block.register_forward_hook(keep(name), with_kwargs=True)


def replay(model: Any, recorded: dict[str, tuple[Any, Any]], ratios: dict[str, float]) -> None:
    """Give each block the recorded input, and compare its output with the recorded one, in dB."""

    def give(name: str) -> Callable[..., Any]:
        def hook(module: Any, arguments: Any, keywords: Any) -> Any:
            entry = recorded[name][0]
            if arguments:
                return (entry, *arguments[1:]), keywords
            return arguments, {**keywords, "hidden_states": entry}

        return hook

    def compare(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
            entry, wanted = (each.double() for each in recorded[name])
            noise = float((first(output).double() - wanted).square().sum())
            signal = float((wanted - entry).square().sum())
            ratios[name] = 10 * math.log10(signal / noise) if signal and noise else math.inf
            if not math.isfinite(noise):
                ratios[name] = -math.inf

        return hook

    for name, block in blocks_of(model).items():
        if name in recorded:
            block.register_forward_pre_hook(give(name), with_kwargs=True)
            block.register_forward_hook(compare(name), with_kwargs=True)


def first(output: Any) -> Any:
    """Return a block's hidden states."""
    return output[0] if isinstance(output, tuple) else output
