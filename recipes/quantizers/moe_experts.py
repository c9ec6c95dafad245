"""MoE models: loaded so that each expert can be quantized, with a check of their calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.core.errors import StageError
from recipes.checkpoints.module_kind import EXPERT_COUNTS


def expert_count(config: Any) -> int:
    """Experts in a layer; 0 for a dense model."""
    levels = [config, getattr(config, "text_config", None)]
    found = [getattr(level, key, None) for level in levels for key in EXPERT_COUNTS]
    return max((count for count in found if isinstance(count, int)), default=0)


def model_class(config: Any) -> Any:
    """Return transformers' class that loads such a model: of text, or of images and text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def check_experts(config: Any, trust: bool, *, where: str) -> None:
    """Check, without the weights, that llm-compressor can separate the model's experts.

    transformers keeps a layer's experts in one tensor of three dimensions. llm-compressor replaces
    the modules that it supports by linear layers, and sends every calibration token through every
    expert.

    Raises:
        StageError: it does not support these experts, so they would stay in 16 bits, or be
            calibrated only by the tokens that the router sends there.
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

    Args:
        saved: the model will be saved, under the checkpoint's names. Later loads in this process
        would not find them.

    llm-compressor's `load_quantizable_moe` has transformers search all its modules, and those for
    images need torchvision, which the environment lacks.
    """
    from llmcompressor.modeling.moe.linearize import get_linearized_moes, linearize_moe

    model = model_class(config).from_pretrained(checkpoint, dtype="auto", trust_remote_code=trust)
    linearize_moe(model)
    if saved and get_linearized_moes(model):
        save_under_numbered_names(model)
    return model


def save_under_numbered_names(model: Any) -> None:
    """Save an expert's matrices as w1, w2 and w3 if the checkpoint has these names.

    llm-compressor 0.14 saves those of Mixtral and similar models as gate_proj, down_proj and
    up_proj.
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
    """Counts the calibration tokens of each expert; a dense model has none."""

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
        """Return the smallest number of tokens of any expert; {} for a dense model."""
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
