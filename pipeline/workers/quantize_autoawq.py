"""Worker: quantizes a checkpoint with AutoAWQ, inside the `quantize-autoawq` environment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.core.errors import StageError
from pipeline.core.events import Progress
from pipeline.inspection.module_kind import ROUTERS
from pipeline.workers.calibration_blocks import block_facts, calibration_blocks
from pipeline.workers.checked_autoawq import HINT, ScalingDiagnostics, guard_quantizer
from pipeline.workers.compute_dtype import ComputeDtype
from pipeline.workers.protocol import versions_of
from pipeline.workers.transformers4_compat import transformers4_view
from recipes.group_sizes import dividing_group_size
from recipes.ignored_modules import is_ignored

PACKED_ROWS = 8
"""Output rows that share an int32; AutoAWQ packs no rest."""
LIBRARIES = ("autoawq", "transformers", "torch")
"""Those whose change can change the weights."""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`.

    Args:
        spec: as in `Quantization.worker`.

    Returns:
        facts for the record: sizes, versions, and the checks' results.

    Raises:
        StageError: AutoAWQ does not support the architecture, no group size divides, there are too
            few calibration tokens, or the result differs too much from the original.
    """
    checkpoint = Path(spec["checkpoint"])
    check_architecture(checkpoint)
    with TemporaryDirectory(prefix="prepare-autoawq-") as view:
        return quantize(spec, transformers4_view(checkpoint, Path(view)), progress, output)


def check_architecture(checkpoint: Path) -> None:
    """Raise StageError unless AutoAWQ's table has the model's type."""
    from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP

    config = checkpoint / "config.json"
    model_type = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    if model_type not in AWQ_CAUSAL_LM_MODEL_MAP:
        raise StageError(
            f"AutoAWQ does not know the architecture '{model_type}'; "
            f"it knows {', '.join(sorted(AWQ_CAUSAL_LM_MODEL_MAP))}",
            where=f"{config}, key model_type",
            hint=HINT,
        )


def quantize(
    spec: dict[str, Any], readable: Path, progress: Progress, output: Path
) -> dict[str, Any]:
    """Load the model from `readable`, quantize it, and save it with the source's config."""
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer, set_seed

    quantization, trust = spec["quantization"], spec["trust_remote_code"]
    calibration = quantization["calibration"]
    set_seed(calibration["seed"])
    progress.note("loading the checkpoint")
    model = AutoAWQForCausalLM.from_pretrained(
        str(readable), torch_dtype="auto", trust_remote_code=trust, safetensors=True
    )
    compute = ComputeDtype(spec.get("compute_dtype"))
    compute.widen(model.model)
    leave_out_routers(model, quantization["ignore"])
    linears = linear_layers(model)
    check_rows(linears.values())
    columns = {linear.in_features for linear in linears.values()}
    group_size = dividing_group_size(spec["group_sizes"], columns)
    if group_size != quantization["group_size"]:
        progress.note(
            f"group size {quantization['group_size']} does not divide every layer's columns; "
            f"using {group_size}"
        )
    tokenizer = AutoTokenizer.from_pretrained(str(readable), trust_remote_code=trust)
    blocks = calibration_blocks(calibration, spec["calibration_file"], tokenizer, progress)
    findings = ScalingDiagnostics(scaling_errors=[])
    model.quantize(
        tokenizer,
        quant_config={
            "zero_point": True,
            "q_group_size": group_size,
            "w_bit": 4,
            "version": "GEMM",
        },
        # Longer samples than the limit would be dropped whole, without a word.
        calib_data=blocks,
        max_calib_samples=len(blocks),
        max_calib_seq_len=len(blocks[0]),
        n_parallel_calib_samples=calibration["batch_size"],
        apply_clip=quantization["clip_search"],
        quantizer_cls=guard_quantizer(),
        progress=progress,
        findings=findings,
    )
    compute.narrow(model.model)
    progress.note("saving the quantized checkpoint")
    model.save_quantized(str(output))
    keep_sources_config(Path(spec["checkpoint"]), output)
    return {
        "group_size": group_size,
        **block_facts(blocks),
        **findings.to_dict(),
        "quantized_modules": len(linears),
        "versions": versions_of(*LIBRARIES),
    }


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers that AutoAWQ quantizes, by full name."""
    from awq.utils.module import exclude_layers_to_not_quantize, get_named_linears, get_op_name

    left_out = getattr(model, "modules_to_not_convert", None)
    found = {}
    for layer in model.get_model_layers(model.model):
        prefix = get_op_name(model.model, layer)
        linears = exclude_layers_to_not_quantize(get_named_linears(layer), left_out)
        found.update({f"{prefix}.{name}": linear for name, linear in linears.items()})
    return found


def leave_out_routers(model: Any, ignore: list[str]) -> None:
    """Make AutoAWQ leave out what the recipe does; it matches parts of names."""
    words = words_left_out(list(linear_layers(model)), ignore)
    if words:
        model.modules_to_not_convert = [*(getattr(model, "modules_to_not_convert", [])), *words]


def words_left_out(linears: list[str], ignore: list[str]) -> list[str]:
    """Return the words that make AutoAWQ leave out the linear layers in `ignore`.

    AutoAWQ never quantizes modules outside of the model's layers, such as lm_head. Inside, it
    scales all linear layers together except the routers of experts.

    Returns:
        parts of names, for its `modules_to_not_convert`; no other layer's name contains them.

    Raises:
        StageError: the list names a layer that AutoAWQ cannot leave out.
    """
    meant = {name for name in linears if is_ignored(name, ignore)}
    words = {".".join(name.split(".")[-2:]) for name in meant if name.split(".")[-1] in ROUTERS}
    named = {name for name in linears if any(word in name for word in words)}
    wrong = sorted(meant ^ named)
    if wrong:
        raise StageError(
            f"AutoAWQ cannot leave out just what the recipe does; it differs for {wrong[0]}"
            f"{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''}",
            where="recipe key quantization.ignore",
            hint=HINT,
        )
    return sorted(words)


def check_rows(linears: Iterable[Any]) -> None:
    """Raise StageError if a layer's rows cannot be packed."""
    rows = {linear.out_features for linear in linears}
    if any(count % PACKED_ROWS for count in rows):
        raise StageError(
            f"AutoAWQ packs {PACKED_ROWS} rows into a word, which does not divide {sorted(rows)}",
            where="quantization.kind autoawq",
            hint=HINT,
        )


def keep_sources_config(source: Path, output: Path) -> None:
    """Replace the saved config.json by the source's, with the quantization added.

    The saved one is in the form of transformers 4 and lacks newer keys. So the variant is read as
    its baseline is.
    """
    saved = output / "config.json"
    added = json.loads(saved.read_text(encoding="utf-8"))["quantization_config"]
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = added
    saved.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
