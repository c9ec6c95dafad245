"""Whether a variant whose columns were rescaled computes what its source computes.

Scales of AWQ and SmoothQuant move between layers, so single weights cannot be compared. Each block
gets the inputs that the source's block got, which locates a fault. The last distributions are
compared, too.
"""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from prepare.errors import VerificationError
from prepare.events import Progress
from prepare.memory import available_bytes
from recipes.checkpoints.dequantize_worker import convert
from recipes.checkpoints.folder import AUXILIARY_FILES, matches
from recipes.checkpoints.weight_files import weight_files
from recipes.quantizers.calibration import read_texts
from recipes.quantizers.models import model_class
from recipes.weight_format import AWQ_GEMM, FP8, MODELOPT_FP8, MODELOPT_NVFP4, PLAIN
from recipes.weights.accounting import WeightComparison
from recipes.weights.layouts import has_numbers

TOKENS = 512
IN_FLOAT32 = 3  # memory of a model in float32, over its 16-bit files, with what is copied meanwhile
BLOCK = re.compile(r".*\.(?:layers|h|blocks|block)\.\d+")
# The demo model's blocks have 15 to 25 dB with 4-bit AWQ, and at most 2 with a matrix of the MLP
# doubled or exchanged (docs/explanation/limits.md).
MIN_BLOCK_DB = 6.0
# The demo model, which is small, has 0.15 with AWQ and 0.27 with symmetric AWQ.
MAX_DIVERGENCE_NATS = 1.0
HINT = (
    "scales were folded into one layer and not taken out of the next, or weights were damaged: "
    "quantize again; if it happens again, use another recipe"
)


def compare_outputs(
    comparison: WeightComparison, spec: dict[str, Any], progress: Progress, output: Path
) -> dict[str, Any] | None:
    """Run both models over one text.

    `spec` has texts (a file, see `read_texts`) and trust_remote_code. Returns tokens: positions
    compared; divergence_nats: mean Kullback-Leibler divergence of next-token distributions from the
    source's; same_next_token: share of positions; worst_block and worst_block_db: its
    signal-to-noise ratio, of what a block adds to its input. None if no library here converts the
    variant to 16 bits.
    """
    source = Path(comparison.source)
    variant = Path(comparison.variant)
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
        place = variant
        if converter:
            place = write_sixteen_bits(converter, variant, Path(temporary))
        ratios: dict[str, float] = {}
        model = load(place, trust)
        theirs = log_probabilities(model, tokens)
        replay(model, recorded, ratios)
        log_probabilities(model, tokens)
    divergence = float((ours.exp() * (ours - theirs)).sum(-1).mean())
    worst = min(ratios, key=lambda name: ratios[name], default="")
    fault = ""
    if worst and not ratios[worst] >= MIN_BLOCK_DB:
        fault = (
            f"the outputs of '{worst}' are not the source's: a signal-to-noise ratio of "
            f"{ratios[worst]:.1f} dB, and {MIN_BLOCK_DB:.0f} is the least that quantizing explains"
        )
    elif not divergence <= MAX_DIVERGENCE_NATS:
        fault = (
            f"the variant's next-token distribution is {divergence:.2f} nats a token from the "
            f"source's, and {MAX_DIVERGENCE_NATS} is the most that quantizing explains"
        )
    if fault:
        raise VerificationError(fault, where=str(variant), hint=HINT)
    return {
        "tokens": int(tokens.shape[1]),
        "divergence_nats": divergence,
        "same_next_token": float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        "worst_block": worst,
        "worst_block_db": ratios.get(worst),
    }


def converter_of(comparison: WeightComparison) -> str | None:
    """Return the layers' converter: "" for 16 bits, None for none."""
    read = filter(has_numbers, comparison.layers.values())
    forms = {(form.name, form.block is None) for form in read}
    names = {name for name, _ in forms}
    if names == {PLAIN}:
        return ""
    if forms == {(FP8, False)}:
        return "fp8-block"
    if names == {AWQ_GEMM}:
        return "awq"
    others = {AWQ_GEMM, FP8, MODELOPT_FP8, MODELOPT_NVFP4, PLAIN}
    return "compressed-tensors" if names and not names & others else None


def write_sixteen_bits(converter: str, variant: Path, folder: Path) -> Path:
    """Write 16-bit weights; return where."""
    copy = folder / "sixteen-bits"
    copy.mkdir()
    names = {file.name for file in weight_files(variant)}
    others = (*AUXILIARY_FILES, "*.json", "*.py")
    names |= {file.name for file in variant.iterdir() if matches(file.name, others)}
    convert(variant, names, converter, copy)
    return copy


def first_tokens(source: Path, texts: str, trust: bool) -> Any:
    """Return the first tokens, 1 x tokens, that the model can take."""
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust).get_text_config()
    limit = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    tokens: list[int] = []
    for text in read_texts({"column": "text"}, texts, tokenizer):
        tokens += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) >= limit:
            break
    return torch.tensor([tokens[:limit]])


def load(checkpoint: Path, trust: bool) -> Any:
    """Return a model: in float32 if memory allows, else in its own type.

    Emulated bf16 takes five to fifty times as long.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust)
    needed = IN_FLOAT32 * sum(file.stat().st_size for file in weight_files(checkpoint))
    dtype = "float32" if needed < available_bytes() else "auto"
    model = model_class(config).from_pretrained(checkpoint, dtype=dtype, trust_remote_code=trust)
    return model.eval()


def log_probabilities(model: Any, tokens: Any) -> Any:
    """Return log-probabilities: tokens x vocabulary, in float32."""
    with torch.no_grad():
        return model(tokens, use_cache=False).logits[0].float().log_softmax(-1)


def blocks_of(model: Any) -> dict[str, Any]:
    """Return the outermost numbered blocks."""
    blocks = {name: module for name, module in model.named_modules() if BLOCK.fullmatch(name)}
    return {n: m for n, m in blocks.items() if not any(n.startswith(f"{o}.") for o in blocks)}


def record(model: Any, recorded: dict[str, tuple[Any, Any]]) -> None:
    """Record each block's input and output: tokens x width."""
    for name, block in blocks_of(model).items():

        def keep(_: Any, arguments: Any, keywords: Any, output: Any, name: str = name) -> None:
            entry = arguments[0] if arguments else keywords["hidden_states"]
            recorded[name] = entry.clone(), hidden_states(output).clone()

        block.register_forward_hook(keep, with_kwargs=True)


def replay(model: Any, recorded: dict[str, tuple[Any, Any]], ratios: dict[str, float]) -> None:
    """Give each block its recorded input, and compare outputs in dB."""
    for name, block in blocks_of(model).items():
        if name not in recorded:
            continue

        def give(_: Any, arguments: Any, keywords: Any, name: str = name) -> Any:
            entry = recorded[name][0]
            if arguments:
                return (entry, *arguments[1:]), keywords
            return arguments, {**keywords, "hidden_states": entry}

        def compare(_: Any, arguments: Any, keywords: Any, output: Any, name: str = name) -> None:
            entry, wanted = (recording.double() for recording in recorded[name])
            noise = float((hidden_states(output).double() - wanted).square().sum())
            signal = float((wanted - entry).square().sum())
            ratios[name] = 10 * math.log10(signal / noise) if signal and noise else math.inf
            if not math.isfinite(noise):
                ratios[name] = -math.inf

        block.register_forward_pre_hook(give, with_kwargs=True)
        block.register_forward_hook(compare, with_kwargs=True)


def hidden_states(output: Any) -> Any:
    """Return a block's output for the next one."""
    return output[0] if isinstance(output, tuple) else output
