"""AutoAWQ's quantizer with a corrected state dict and a check of every layer's function.

AutoAWQ 0.2.9 tries each scale on the weights themselves and restores them from a state dict that it
takes by ``tensor.cpu()``. On a CPU that is the tensor itself: nothing is restored, the trials
accumulate, and the result is garbage without an error. Here the state dict holds copies on every
device.

AWQ moves factors between layers, which must not change the function. Each scaled layer therefore
gets its earlier inputs again; after the last one, the packed model's log-probabilities are compared
with the original's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import StageError
from pipeline.core.events import Progress

# As `relative_change` measures. Rounding gave 0.004 to 0.01 in the first layers of SmolLM2-135M and
# up to 0.022 in small random MoE models; weights that are not restored 0.56 to 0.85.
LARGEST_SCALING_ERROR = 0.05
# With the search for clipping, which changes the function on purpose: 0.04 to 0.06 there.
LARGEST_CLIPPING_ERROR = 0.3
# Kullback-Leibler divergence of the next token's distribution, in nats, mean over tokens: 0.16 for
# all of SmolLM2-135M; 1.55 after four layers whose weights are not restored.
LARGEST_DIVERGENCE = 1.0
HINT = "use the recipe awq-w4a16, which is AWQ by llm-compressor"


@dataclass
class ScalingDiagnostics:
    """Results of the checks; written by the quantizer."""

    # Per layer, the share of its change to a token that scaling altered.
    scaling_errors: list[float]
    # Mean Kullback-Leibler divergence, in nats, of the packed model from the original on the first
    # calibration block.
    divergence: float = math.nan
    # Share of that block's tokens after which both expect the same next one.
    same_next_token: float = math.nan

    def check_layer(self, index: int, error: float, largest: float) -> None:
        """Keep a layer's error; raise StageError if scaling changed the layer's function."""
        self.scaling_errors.append(error)
        if not error <= largest:
            raise StageError(
                f"AutoAWQ's scaling changed what layer {index} computes by {error:.0%}; "
                f"rounding explains {largest:.0%} at most",
                where="quantization.kind autoawq",
                hint=HINT,
            )

    def check_model(self, divergence: float, same_next_token: float) -> None:
        """Keep the packed model's divergence; raise StageError if it is too large."""
        self.divergence, self.same_next_token = divergence, same_next_token
        if not divergence <= LARGEST_DIVERGENCE:
            raise StageError(
                f"the quantized model answers unlike the original: {divergence:.2f} nats apart, "
                f"the same next token after {same_next_token:.0%} of the calibration tokens",
                where="quantization.kind autoawq",
                hint=HINT,
            )

    def to_dict(self) -> dict[str, float]:
        return {
            "worst_scaling_error": max(self.scaling_errors),
            "divergence_nats": self.divergence,
            "same_next_token": self.same_next_token,
        }


def few_tokens_error(what: str) -> StageError:
    """Return the error for an expert that no calibration token reached."""
    return StageError(
        f"the calibration texts do not reach every expert: {what}",
        where="recipe key quantization.calibration",
        hint="calibrate with more samples, or with texts of more kinds",
    )


@contextmanager
def copy_state_dict(module: Any) -> Iterator[None]:
    """During the block, the module's state dict holds copies of tensors on a CPU.

    It uses torch's hook: AutoAWQ's method is unchanged. Tensors on a GPU are copied by ``.cpu()``.
    """

    def copy(module: Any, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        for name, tensor in state.items():
            if tensor.device.type == "cpu":
                state[name] = tensor.clone()

    handle = module.register_state_dict_post_hook(copy)
    try:
        yield
    finally:
        handle.remove()


def guard_quantizer() -> type:
    """Return the quantizer's class, for AutoAWQ's argument `quantizer_cls`.

    In addition to AutoAWQ's arguments it takes `progress` and `findings`.
    """
    import torch
    from awq.quantize.quantizer import AwqQuantizer
    from awq.utils.utils import get_best_device

    class CheckedAwqQuantizer(AwqQuantizer):  # type: ignore[misc]
        """One block of tokens passes the packed layers, and all blocks the original ones."""

        def __init__(
            self, *args: Any, progress: Progress, findings: ScalingDiagnostics, **options: Any
        ) -> None:
            self.progress, self.findings = progress, findings
            super().__init__(*args, **options)
            self.packed_stream = self.inps[:1]

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
            with copy_state_dict(module2inspect):
                return super()._compute_best_scale(
                    x, w_mean, x_mean, module2inspect, *args, **options
                )

        def _get_input_feat(self, layer: Any, named_linears: dict[str, Any]) -> Any:
            self.before = self.inps[:1]
            try:
                features = super()._get_input_feat(layer, named_linears)
            except AssertionError as error:  # how AutoAWQ says that a layer got no token
                raise few_tokens_error(str(error).splitlines()[0]) from error
            unseen = [name for name in named_linears if name not in features]
            if unseen:
                raise few_tokens_error(f"{unseen[0]} saw none of them")
            self.after = self.inps[:1]
            return features

        def _apply_quant(self, module: Any, named_linears: dict[str, Any]) -> None:
            index = len(self.findings.scaling_errors)
            module.to(get_best_device())
            scaled = self._answer(module, self.before)
            error = relative_change(self.before, self.after, scaled)
            largest = LARGEST_CLIPPING_ERROR if self.apply_clip else LARGEST_SCALING_ERROR
            self.findings.check_layer(index, error, largest)
            super()._apply_quant(module, named_linears)
            module.to(get_best_device())
            with unpack(module, list(named_linears), scaled.dtype):
                self.packed_stream = self._answer(module, self.packed_stream)
            module.cpu()
            self.progress.advance("quantize (autoawq)", index + 1, len(self.modules), "layers")

        def quantize(self) -> None:
            super().quantize()
            if self.export_compatible:  # scaled only: there is no packed model to look at
                return
            self.findings.check_model(*self._compare_predictions())

        def _answer(self, layer: Any, hidden: Any) -> Any:
            arguments = self._sanitize_kwargs(self.module_kwargs, layer)
            return self._module_forward(hidden.to(get_best_device()), layer, arguments)

        def _compare_predictions(self) -> tuple[float, float]:
            with torch.no_grad():
                original = self._predictions(self.inps[:1])
                packed = self._predictions(self.packed_stream)
            divergence = (original.exp() * (original - packed)).sum(-1).mean()
            same = (original.argmax(-1) == packed.argmax(-1)).float().mean()
            return float(divergence), float(same)

        def _predictions(self, hidden: Any) -> Any:
            self.awq_model.move_embed(self.model, "cpu")
            layers = list(self.modules)
            try:
                for index in range(len(layers)):
                    self.modules[index] = _CachedOutputLayer(hidden.cpu())
                tokens = torch.zeros(hidden.shape[:2], dtype=torch.long)
                logits = self.model(tokens, use_cache=False).logits
            finally:
                for index, layer in enumerate(layers):
                    self.modules[index] = layer
            return logits.float().log_softmax(-1)

    class _CachedOutputLayer(torch.nn.Module):  # type: ignore[misc]
        """A layer whose output is already known."""

        def __init__(self, hidden: Any) -> None:
            super().__init__()
            self.hidden = hidden

        def forward(self, *args: Any, **options: Any) -> tuple[Any]:
            return (self.hidden,)

    return CheckedAwqQuantizer


def relative_change(inputs: Any, outputs: Any, others: Any) -> float:
    """Return how far `others` are from `outputs`, relative to what the layer added to its `inputs`.

    Median over tokens of the ratio of Euclidean norms. The outputs' own norm would hide errors,
    because a few huge activations pass through the residual. What rounding of the outputs explains
    is subtracted: a deep layer adds little to a large value.
    """
    import torch

    rounding = torch.finfo(outputs.dtype).eps / 4
    inputs, outputs, others = (each.float().cpu() for each in (inputs, outputs, others))
    apart = (others - outputs).norm(dim=-1) - rounding * outputs.norm(dim=-1)
    return float((apart.clamp(min=0) / (outputs - inputs).norm(dim=-1)).median())


@contextmanager
def unpack(layer: Any, names: list[str], dtype: Any) -> Iterator[None]:
    """During the block, packed linear layers are ordinary ones, unpacked by AutoAWQ's code.

    A packed layer computes in float16, which large activations overflow; an engine does not.
    """
    import torch
    from awq.utils.module import set_op_by_name
    from awq.utils.packing_utils import dequantize_gemm

    packed = {name: layer.get_submodule(name) for name in names}
    try:
        for name, part in packed.items():
            weight = dequantize_gemm(
                part.qweight, part.qzeros, part.scales, part.w_bit, part.group_size
            )
            linear = torch.nn.Linear(
                part.in_features, part.out_features, bias=part.bias is not None, device="meta"
            )
            linear.weight = torch.nn.Parameter(weight.t().to(dtype), requires_grad=False)
            if part.bias is not None:
                linear.bias = torch.nn.Parameter(part.bias.to(dtype), requires_grad=False)
            set_op_by_name(layer, name, linear)
        yield
    finally:
        for name, part in packed.items():
            set_op_by_name(layer, name, part)
