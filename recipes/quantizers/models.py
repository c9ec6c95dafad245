"""Models as llm-compressor calibrates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prepare.errors import StageError
from recipes.checkpoints.module_kind import EXPERT_COUNTS


class ComputeDtype:
    """Floating-point type of tensors during calibration; None leaves it unchanged.

    Emulated bf16 takes five to fifty times as long as float32.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._stored: dict[str, Any] = {}
        self._model_type: Any = None

    def widen(self, model: Any) -> None:
        """Convert 16-bit tensors to 32 bits."""
        import torch

        if self.name != "float32":
            return
        self._model_type = model.dtype
        for name, tensor in tensors_of(model):
            self._stored[name] = tensor.dtype
            if tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.to(torch.float32)

    def narrow(self, model: Any) -> None:
        """Convert widened tensors back before packing; new tensors get the model's type.

        Weights and scales are rounded first.
        """
        import torch

        if self.name != "float32":
            return
        for name, tensor in tensors_of(model):
            if tensor.dtype is torch.float32:
                tensor.data = tensor.data.to(self._stored.get(name, self._model_type))


def tensors_of(model: Any) -> list[tuple[str, Any]]:
    """Return parameters and buffers, each once, by name."""
    return [*model.named_parameters(), *model.named_buffers()]


def expert_count(config: Any) -> int:
    """Return the experts in a layer; 0 for a dense model."""
    levels = [config, getattr(config, "text_config", None)]
    counts = [getattr(level, key, None) for level in levels for key in EXPERT_COUNTS]
    return max((count for count in counts if isinstance(count, int)), default=0)


def model_class(config: Any) -> Any:
    """Return transformers' class: of text, or of images and text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def check_experts(config: Any, trust: bool, *, where: str) -> None:
    """Check, without the weights, that llm-compressor can separate the model's experts.

    It sends every calibration token through every expert. StageError for others: they would stay in
    16 bits, or see only the router's tokens.
    """
    import torch
    from llmcompressor.modeling.moe.linearize import get_non_linearized_moes

    if expert_count(config) <= 1:
        return
    with torch.device("meta"):
        model = model_class(config).from_config(config, trust_remote_code=trust)
    if not get_non_linearized_moes(model):
        raise StageError(
            f"llm-compressor cannot calibrate the experts of {type(model).__name__}",
            where=f"{where}, key architectures",
            hint="use a recipe that needs no data, such as fp8-dynamic",
        )


def load_with_separate_experts(checkpoint: str, config: Any, trust: bool, *, saved: bool) -> Any:
    """Load the model in its own type, each expert as separate linear layers.

    `saved`: it will be saved under the checkpoint's names, which later loads in this process would
    not find. llm-compressor's `load_quantizable_moe` needs torchvision.
    """
    from llmcompressor.modeling.moe.linearize import get_linearized_moes, linearize_moe

    model = model_class(config).from_pretrained(checkpoint, dtype="auto", trust_remote_code=trust)
    linearize_moe(model)
    if saved and get_linearized_moes(model):
        save_under_numbered_names(model)
    return model


def save_under_numbered_names(model: Any) -> None:
    """Save an expert's matrices as w1, w2 and w3 if the checkpoint has these names.

    llm-compressor 0.14 saves Mixtral's as gate_proj, down_proj and up_proj.
    """
    from llmcompressor.modeling.moe.conversion_mappings import set_save_conversion_mapping
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )
    from transformers.core_model_loading import WeightRenaming

    steps = get_checkpoint_conversion_mapping(model.config.model_type) or []
    stacking = [
        step for step in steps if any(".experts.*.w" in pattern for pattern in step.source_patterns)
    ]
    if not stacking:
        return
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    renamings = [
        WeightRenaming(
            source_patterns=rf"\.experts\.(\d+)\.{theirs}\.",
            target_patterns=rf".experts.\1.{ours}.",
        )
        for theirs, ours in names.items()
    ]
    wanted = [*(step for step in steps if step not in stacking), *renamings]
    set_save_conversion_mapping(model, wanted)
    register_checkpoint_conversion_mapping(model.config.model_type, wanted, overwrite=True)


class ExpertTokenCounter:
    """Counts the calibration tokens of each expert."""

    def __init__(self, model: Any) -> None:
        from llmcompressor.modeling.moe.linearize import get_linearized_moes
        from llmcompressor.modifiers.utils.hooks import HooksMixin

        self.seen: dict[str, int] = {}
        # The library's own hooks are off while it traces, searches, and runs a layer again.
        hooks = HooksMixin()
        for name, experts in get_linearized_moes(model):
            for number in range(experts.num_experts):
                expert = f"{name}.{number}"
                self.seen[expert] = 0
                hooks.register_hook(experts[number], self._counter(expert), "forward_pre")

    def _counter(self, expert: str) -> Callable[..., None]:
        def count(module: Any, inputs: Any) -> None:
            hidden = inputs[0]
            self.seen[expert] += hidden.numel() // hidden.shape[-1]

        return count

    def check_counts(self) -> dict[str, int]:
        """Return the fewest tokens of an expert, if any."""
        if not self.seen:
            return {}
        expert = min(self.seen, key=lambda name: self.seen[name])
        if not self.seen[expert]:
            raise StageError(
                f"no calibration token reached the expert '{expert}'",
                where="recipe key quantization.calibration",
                hint="give more calibration text, or use a recipe that needs no data",
            )
        return {"experts": len(self.seen), "least_tokens_of_an_expert": self.seen[expert]}


def load_model(checkpoint: str, trust: bool, layers: int | None = None) -> Any:
    """Return the model with separate experts; for a trial its first `layers`."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust)
        if layers is not None:
            shorten(config.get_text_config(), layers)
        check_experts(config, trust, where=f"{checkpoint}/config.json")
        return load_with_separate_experts(checkpoint, config, trust, saved=layers is None)
    except ValueError as error:
        if "does not recognize this architecture" not in str(error):
            raise
        raise StageError(
            f"the quantizer does not support this architecture: {str(error).splitlines()[0]}",
            where=f"{checkpoint}/config.json, key model_type",
            hint="a newer interpreter can be named in the settings file: "
            "environments: {quantize: {python: PATH}} (docs/reference/settings.md)",
        ) from error


def shorten(config: Any, layers: int) -> None:
    """Reduce a configuration to the first layers."""
    total = config.num_hidden_layers
    for name, value in vars(config).items():  # layer_types, mlp_layer_types and the like
        if isinstance(value, list) and len(value) == total and name.startswith(("layer", "mlp_l")):
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers
