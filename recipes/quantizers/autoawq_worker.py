"""Worker: quantizes a checkpoint with AutoAWQ, inside the `quantize-autoawq` environment.

AutoAWQ 0.2.9 restores tried weights from a state dict that it takes by ``tensor.cpu()``. On a CPU
that is no copy: trials accumulate, and the result is garbage without an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prepare.errors import StageError
from prepare.events import Progress
from prepare.untrusted import read_json_file
from prepare.worker_protocol import versions_of
from recipes.checkpoints.module_kind import ROUTERS
from recipes.checkpoints.same_tokens import check_same_tokens
from recipes.module_lists import is_listed
from recipes.quantizers.calibration import block_facts, calibration_blocks
from recipes.quantizers.models import ComputeDtype
from recipes.quantizers.transformers4_compat import transformers4_view
from recipes.weight_format import dividing_group_size

PACKED_ROWS = 8
"""Output rows that share an int32; AutoAWQ packs no rest."""
LIBRARIES = ("autoawq", "transformers", "torch")
"""Libraries whose change can change the weights."""
HINT = "use the recipe awq-w4a16, which is AWQ by llm-compressor"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; return sizes and versions.

    `spec` is as in `Quantization.worker`.
    """
    from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP

    checkpoint = Path(spec["checkpoint"])
    config = read_json_file(checkpoint / "config.json", finite=False)
    model_type = config.get("model_type")
    heads = config.get("num_attention_heads")
    fault = ""
    if model_type not in AWQ_CAUSAL_LM_MODEL_MAP:
        known = ", ".join(sorted(AWQ_CAUSAL_LM_MODEL_MAP))
        fault = f"AutoAWQ does not know the architecture '{model_type}'; it knows {known}"
    elif model_type == "phi3" and config.get("num_key_value_heads") not in (None, heads):
        fault = "AutoAWQ scales keys in the place of values where heads of phi3 share them"
    if fault:
        where = f"{checkpoint / 'config.json'}, key model_type"
        raise StageError(fault, where=where, hint=HINT)
    with TemporaryDirectory(prefix="prepare-autoawq-") as view:
        return quantize(spec, transformers4_view(checkpoint, Path(view)), progress, output)


def quantize(
    spec: dict[str, Any], readable: Path, progress: Progress, output: Path
) -> dict[str, Any]:
    """Load from `readable`, quantize, and save with the source's config."""
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer, set_seed

    quantization = spec["quantization"]
    trust = spec["trust_remote_code"]
    calibration = quantization["calibration"]
    tokenizer = AutoTokenizer.from_pretrained(str(readable), trust_remote_code=trust)
    check_same_tokens(tokenizer, Path(spec["checkpoint"]))
    set_seed(calibration["seed"])
    progress.note("loading the checkpoint")
    model = AutoAWQForCausalLM.from_pretrained(
        str(readable), torch_dtype="auto", trust_remote_code=trust, safetensors=True
    )
    compute = ComputeDtype(spec.get("compute_dtype"))
    compute.widen(model.model)
    if words := words_left_out(list(linear_layers(model)), quantization["ignore"]):
        model.modules_to_not_convert = [*getattr(model, "modules_to_not_convert", []), *words]
    linears = linear_layers(model)
    check_rows(linears.values())
    columns = {linear.in_features for linear in linears.values()}
    group_size = dividing_group_size(spec["group_sizes"], columns)
    if group_size != quantization["group_size"]:
        progress.note(
            f"group size {quantization['group_size']} does not divide every layer's columns; "
            f"using {group_size}"
        )
    blocks = calibration_blocks(calibration, spec["calibration_file"], tokenizer, progress)
    model.quantize(
        tokenizer,
        quant_config={
            "zero_point": True,
            "q_group_size": group_size,
            "w_bit": 4,
            "version": "GEMM",
        },
        # Longer samples than the limit would be dropped silently.
        calib_data=blocks,
        max_calib_samples=len(blocks),
        max_calib_seq_len=len(blocks[0]),
        n_parallel_calib_samples=calibration["batch_size"],
        apply_clip=quantization["clip_search"],
        quantizer_cls=mended_quantizer(progress),
    )
    compute.narrow(model.model)
    progress.note("saving the quantized checkpoint")
    model.save_quantized(str(output))
    keep_sources_config(Path(spec["checkpoint"]), output)
    return {
        "group_size": group_size,
        **block_facts(blocks),
        "quantized_modules": len(linears),
        "versions": versions_of(*LIBRARIES),
    }


def copy_tensors(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Put copies of CPU tensors into a state dict; ``.cpu()`` copies a GPU's."""
    for name, tensor in state.items():
        if tensor.device.type == "cpu":
            state[name] = tensor.clone()


def mended_quantizer(progress: Progress) -> type:
    """Return the class for AutoAWQ's argument `quantizer_cls`."""
    from awq.quantize.quantizer import AwqQuantizer

    class MendedAwqQuantizer(AwqQuantizer):  # type: ignore[misc]
        """AutoAWQ's quantizer, which restores weights and reports layers."""

        layers_done = 0

        def init_quant(self, n_samples: int = 128, max_seq_len: int = 512) -> Any:
            modules, arguments, inputs = super().init_quant(n_samples, max_seq_len)
            # All blocks are whole, so they share one mask; a row each would not fit a batch.
            for name in ("attention_mask", "position_ids"):
                if arguments.get(name) is not None:
                    arguments[name] = arguments[name][:1]
            return modules, arguments, inputs

        def _compute_best_scale(
            self, x: Any, w_mean: Any, x_mean: Any, module2inspect: Any, *args: Any, **options: Any
        ) -> Any:
            handle = module2inspect.register_state_dict_post_hook(copy_tensors)
            try:
                return super()._compute_best_scale(
                    x, w_mean, x_mean, module2inspect, *args, **options
                )
            finally:
                handle.remove()

        def _get_input_feat(self, layer: Any, named_linears: dict[str, Any]) -> Any:
            try:
                features = super()._get_input_feat(layer, named_linears)
                unseen = [name for name in named_linears if name not in features]
                assert not unseen, f"{unseen[0]} saw none of them"
            except AssertionError as error:  # how AutoAWQ says that a layer got no token
                raise StageError(
                    "the calibration texts do not reach every expert: "
                    f"{str(error).splitlines()[0]}",
                    where="recipe key quantization.calibration",
                    hint="calibrate with more samples, or with texts of more kinds",
                ) from error
            return features

        def _apply_quant(self, module: Any, named_linears: dict[str, Any]) -> None:
            super()._apply_quant(module, named_linears)
            self.layers_done += 1
            progress.advance("quantize (autoawq)", self.layers_done, len(self.modules), "layers")

    return MendedAwqQuantizer


def linear_layers(model: Any) -> dict[str, Any]:
    """Return AutoAWQ's linear layers by full name."""
    from awq.utils.module import exclude_layers_to_not_quantize, get_named_linears, get_op_name

    left_out = getattr(model, "modules_to_not_convert", None)
    layers = {}
    for layer in model.get_model_layers(model.model):
        prefix = get_op_name(model.model, layer)
        linears = exclude_layers_to_not_quantize(get_named_linears(layer), left_out)
        layers.update({f"{prefix}.{name}": linear for name, linear in linears.items()})
    return layers


def words_left_out(linears: list[str], ignore: list[str]) -> list[str]:
    """Return the words that make AutoAWQ leave out the linear layers in `ignore`.

    They are parts of names, for `modules_to_not_convert`; no other layer's name contains them.
    AutoAWQ scales a block's linear layers together, except routers.
    """
    meant = {name for name in linears if is_listed(name, ignore)}
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
    """Raise StageError if rows cannot be packed."""
    rows = {linear.out_features for linear in linears}
    if any(count % PACKED_ROWS for count in rows):
        raise StageError(
            f"AutoAWQ packs {PACKED_ROWS} rows into a word, which does not divide {sorted(rows)}",
            where="quantization.kind autoawq",
            hint=HINT,
        )


def keep_sources_config(source: Path, output: Path) -> None:
    """Replace the saved config.json by the source's, with the quantization added.

    The saved one has transformers 4's form.
    """
    saved = output / "config.json"
    added = read_json_file(saved, finite=False)["quantization_config"]
    config = read_json_file(source / "config.json", finite=False)
    config["quantization_config"] = added
    saved.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
