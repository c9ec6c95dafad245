"""Whether models fit on GPUs: weights / GPUs x 1.02 + a reserve + the layers' memory of a sequence.

Within 5 % of the limit, only the engine decides (docs/how-to/capacity-planning.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rich.filesize import decimal

from prepare.errors import UsageError
from recipes.catalog import GpuType
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.dequantized_source import dequantized, planned_weights
from recipes.checkpoints.layers import (
    STORED,
    Layer,
    Stored,
    UnknownLayersError,
    read_layers,
    sequence_bytes,
)
from recipes.checkpoints.model_shape import ModelShape, model_shape, text_level
from recipes.checkpoints.module_kind import is_linear_weight, module_kind
from recipes.checkpoints.variant_size import VariantTensor, VariantWeights, stored_weights
from recipes.engine_arguments import EXPERT_PARALLEL, memory_share
from recipes.schema import Recipe, ServingProfile

Answer = Literal["fits", "the engine tells", "does not fit"]

GIB = 2**30
SMALL_FILES_BYTES = 50_000_000  # on disk: tokenizer, config, record and logs of a variant
BORDER = 0.05  # relative to the memory that the engine may use
UNEVEN = 1.02  # norms, routers and replicated key-value heads are not divided
# Experts of gpt-oss, 2880 wide, are padded to tiles of 256 by 128: on one GPU, and on several.
MXFP4_TILES = 1.09
MXFP4_TILES_OF_A_PART = 1.14
# Context of CUDA and libraries, and graphs of decoding; buffers of all-reduce.
RESERVE_BYTES = 5 * GIB // 4
COMMUNICATION_BYTES = GIB // 2
HIDDEN_COPIES = 4
INNER_COPIES = 3  # 16-bit activations of a step: residual, qkv ...; gate, up ...
SAMPLER_BYTES = 16  # a vocabulary entry: float32 logit, sorted probability, 64-bit index
# vLLM 0.33's defaults for its OpenAI server: minimum GPU memory, tokens a step, sequences.
DEFAULTS = ((160 * GIB, 16384, 1024), (70 * GIB, 8192, 1024), (0, 2048, 256))
SMALLER_STEPS = "A100"  # always gets the last line's defaults
BLOCK_SIZE = 16
BATCHES_IN_FLIGHT = 2
NATIVE_FP8 = 8.9
MAX_GPUS = 64
# Columns of split activations are split; other layers' rows are.
SPLIT_BY_COLUMNS = ("o_proj", "down_proj", "w2", "out_proj", "c_proj", "dense_4h_to_h", "fc2", "wo")
MATRICES = ("attention", "mlp", "experts")
LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "q_down_proj", "kv_down_proj")


@dataclass(frozen=True)
class Model:
    """A checkpoint's headers, shape and layers."""

    source: Checkpoint
    shape: ModelShape
    layers: tuple[Layer, ...]  # empty if unknown
    unknown: str = ""  # why the layers' memory is not known

    @classmethod
    def of(cls, source: Checkpoint) -> Model:
        """Read the shape.

        CheckpointError: a number in config.json is missing or wrong.
        """
        shape = model_shape(source.config, source.where)
        try:
            return cls(source, shape, read_layers(source.config, shape, source.where))
        except UnknownLayersError as error:
            return cls(source, shape, (), str(error))

    @cached_property
    def recipe_source(self) -> Checkpoint:
        """The checkpoint in 16 bits."""
        return dequantized(self.source)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of module of each tensor, in both forms."""
        tensors = {**self.source.tensors, **self.recipe_source.tensors}
        return {
            name: module_kind(name, len(tensor.shape), self.shape.layers)
            for name, tensor in tensors.items()
        }

    def parameters(self) -> int:
        """Return the number of parameters; packed elements count several times."""
        return sum(tensor.elements for tensor in self.recipe_source.tensors.values())


@dataclass(frozen=True)
class EngineSettings:
    """Engine settings that memory depends on."""

    source: str  # the profile, or vLLM's defaults
    utilization: float  # share of the GPU's memory that the engine may use
    step_tokens: int
    sequences: int
    block_size: int  # tokens of a block of the cache
    held: int  # tokens in flight, which layers with a window store as well
    context: int | None
    stored: Stored  # of variants' cache
    baseline_stored: Stored
    own_stored: Mapping[str, Stored]  # of variants with another KV cache
    unknown_formats: Mapping[str, str]  # of those whose bytes are not known
    expert_parallel: bool | None = None  # None: not set, so that a plan may switch it on

    @classmethod
    def of(
        cls,
        gpu: GpuType,
        profile: ServingProfile | None,
        kv_formats: Mapping[str, str] | None = None,
    ) -> EngineSettings:
        """Read the profile, or take vLLM's defaults and an FP8 cache if supported.

        `kv_formats` are those of variants that do not have the profile's.
        UsageError: no profile for GPUs.
        """
        if profile is not None and profile.accelerator != "cuda":
            raise UsageError(
                f"the profile '{profile.name}' is not for GPUs",
                where=f"--profile {profile.name}",
                hint="leave --profile out, or name a profile whose accelerator is cuda",
            )
        arguments: Mapping[str, Any] = profile.engine_arguments if profile else {}
        memory = 0 if SMALLER_STEPS in gpu.driver_name else gpu.memory_bytes
        _, step, sequences = next(default for default in DEFAULTS if memory >= default[0])
        kinds = ("fp8" if gpu.compute_capability >= NATIVE_FP8 else "auto", "auto")
        if profile is not None:
            kinds = (profile.kv_cache_dtype, profile.baseline_kv_cache_dtype)
        if "kv-cache-dtype-skip-layers" in arguments:
            kinds = ("auto", "auto")
        model_bytes = 4 if arguments.get("dtype") in ("float32", "float") else 2
        step = arguments.get("max-num-batched-tokens", step)
        batches = 1 if arguments.get("no-async-scheduling") is True else BATCHES_IN_FLIGHT
        experts = arguments.get(EXPERT_PARALLEL)
        if arguments.get("disable-expert-parallel") is True:
            experts = False
        return cls(
            source=f"profile {profile.name}" if profile else "vLLM's defaults",
            utilization=memory_share(arguments),
            step_tokens=step,
            sequences=arguments.get("max-num-seqs", sequences),
            block_size=arguments.get("block-size", BLOCK_SIZE),
            held=batches * step,
            context=arguments.get("max-model-len"),
            stored=_stored(kinds[0], model_bytes),
            baseline_stored=_stored(kinds[1], model_bytes),
            own_stored={
                name: _stored(kv_format, model_bytes)
                for name, kv_format in (kv_formats or {}).items()
            },
            unknown_formats={
                name: kv_format
                for name, kv_format in (kv_formats or {}).items()
                if kv_format not in STORED
            },
            expert_parallel=experts if isinstance(experts, bool) else None,
        )

    def stored_of(self, variant: str, *, is_baseline: bool) -> Stored:
        """Return the bytes of the model's cache."""
        if is_baseline:
            return self.baseline_stored
        return self.own_stored.get(variant, self.stored)

    def reserve_bytes(self, shape: ModelShape, gpus: int) -> int:
        """Estimate each GPU's bytes besides weights and cache."""
        inner = -(-INNER_COPIES * shape.inner // gpus)
        step = 2 * self.step_tokens * (HIDDEN_COPIES * shape.hidden + inner)
        sampler = self.sequences * shape.vocabulary * SAMPLER_BYTES
        return RESERVE_BYTES + COMMUNICATION_BYTES * (gpus > 1) + max(step, sampler)


@dataclass(frozen=True)
class Fit:
    """A variant on `gpus` GPUs, with each GPU's bytes."""

    variant: str
    gpus: int
    copies: int  # replicas on all GPUs
    weights_bytes: int
    reserve_bytes: int  # an estimate
    cache_bytes: int  # left for keys and values
    tokens: int | None  # of a replica's cache, in sequences of full length; None if not known
    sequences: int | None  # concurrent sequences of full length on a replica
    answer: Answer
    reason: str = ""
    hint: str = ""
    expert_parallel: bool = False  # the GPUs of a replica divide the experts by number


@dataclass(frozen=True)
class Gpus:
    """GPUs and settings that variants are fitted with."""

    model: Model
    gpu: GpuType
    number: int
    engine: EngineSettings
    context: int  # tokens of a sequence
    draft_bytes: int = 0  # of the variants' draft model

    @classmethod
    def of(
        cls,
        model: Model,
        gpu: GpuType,
        number: int,
        profile: ServingProfile | None,
        context: int | None = None,
        draft_bytes: int = 0,
        kv_formats: Mapping[str, str] | None = None,
    ) -> Gpus:
        """Read the settings; the context is the profile's limit, or the model's.

        UsageError: no profile for GPUs, or a context above the model's.
        """
        if context is not None and context > model.shape.context:
            raise UsageError(
                f"the model was trained for {model.shape.context:,} tokens of context, "
                f"not for {context:,}",
                where=f"--context {context}",
                hint=f"give at most {model.shape.context}",
            )
        engine = EngineSettings.of(gpu, profile, kv_formats)
        longest = min(model.shape.context, engine.context or model.shape.context)
        return cls(model, gpu, number, engine, context or longest, draft_bytes)

    def fits(
        self, weights: Mapping[str, VariantWeights], numbers: Sequence[int]
    ) -> tuple[Fit, ...]:
        """Fit each variant, the baseline first, on each number of GPUs."""
        return tuple(
            self.fit(name, division, number, is_baseline=place == 0)
            for place, (name, made) in enumerate(weights.items())
            for division in (Division.of(self.model, made),)
            for number in numbers
        )

    def fit(
        self,
        variant: str,
        division: Division,
        gpus: int,
        *,
        is_baseline: bool,
        with_hint: bool = True,
    ) -> Fit:
        """Fit one replica of a variant."""
        engine = self.engine
        model = self.model
        split, experts_split = division.obstacles(model, gpus)
        whole = bool(engine.expert_parallel)
        if engine.expert_parallel is None and experts_split and model.shape.experts >= gpus:
            whole = True  # the only remedy
        of_experts = division.expert_bytes
        others = division.bytes + (0 if is_baseline else self.draft_bytes)
        if _quantization(model.source.config).get("quant_method") == "mxfp4":
            of_experts = int(of_experts * (MXFP4_TILES if gpus == 1 else MXFP4_TILES_OF_A_PART))
        if whole and model.shape.experts:
            of_experts = of_experts * -(-model.shape.experts // gpus) * gpus // model.shape.experts
        even = UNEVEN if gpus > 1 else 1.0
        held = int((others + of_experts) / gpus * even)
        reserve = engine.reserve_bytes(model.shape, gpus)
        usable = int(self.gpu.memory_bytes * engine.utilization)
        left = usable - held - reserve
        size = engine.stored_of(variant, is_baseline=is_baseline)
        one = sequence_bytes(
            *(model.layers, self.context, size),
            gpus=gpus,
            block=engine.block_size,
            held=engine.held,
        )
        fraction = max(0, left) / one if one else None
        answer, reason = self._answer(usable, left, one, split or ("" if whole else experts_split))
        if (unknown := engine.unknown_formats.get(variant)) and not split:
            fraction = None
            answer = "the engine tells"
            reason = f"the bytes of a KV cache of type {unknown} are not known"
        hint = ""
        if answer == "does not fit" and with_hint:
            hint = self._hint(variant, division, gpus, is_baseline, left)
        return Fit(
            variant,
            gpus,
            self.number // gpus,
            held,
            reserve,
            max(0, left),
            None if fraction is None else int(fraction * self.context),
            None if fraction is None else min(int(fraction), engine.sequences),
            answer,
            reason,
            hint,
            whole,
        )

    def _answer(self, usable: int, left: int, one: int, split: str) -> tuple[Answer, str]:
        if split:
            return "does not fit", split
        lacking = one - left
        border = BORDER * usable
        if lacking > border:
            size = decimal(lacking)
            return "does not fit", f"one sequence of {self.context:,} tokens lacks {size} a GPU"
        if self.model.unknown:
            return "the engine tells", f"the memory of its cache is not known: {self.model.unknown}"
        if lacking > -border:
            return "the engine tells", "the estimate is within 5 % of what the engine may use"
        return "fits", ""

    def _hint(
        self, variant: str, division: Division, gpus: int, is_baseline: bool, left: int
    ) -> str:
        """Return a shorter context or another number of GPUs."""
        hints = []
        size = self.engine.stored_of(variant, is_baseline=is_baseline)
        token = sum(layer.token_bytes(size, gpus) for layer in self.model.layers)
        if token and left > 0 and (short := int(left / token * 0.9) // 16 * 16) < self.context:
            hints += [f"set max-model-len to at most {short}"] * (short > 0)
        # Existing GPUs come first.
        others = [count for count in range(1, MAX_GPUS + 1) if count != gpus]
        for number in sorted(others, key=lambda n: (n > self.number, n < gpus, abs(n - gpus))):
            other = self.fit(variant, division, number, is_baseline=is_baseline, with_hint=False)
            if other.answer != "does not fit":
                hints.append(f"--gpus-a-copy {number}")
                break
        return "; or ".join(hints) or "use GPUs with more memory"


@dataclass(frozen=True)
class Division:
    """What decides how GPUs divide a variant's weights."""

    bytes: int  # without experts and unloaded tensors
    expert_bytes: int
    # (rows or columns that are divided, group of columns or None, of experts)
    sizes: frozenset[tuple[int, int | None, bool]]

    @classmethod
    def of(cls, model: Model, weights: VariantWeights) -> Division:
        total = {True: 0, False: 0}
        sizes = set()
        block = None if weights.forms else _block_of_source(model.source.config)
        for weight in weights.tensors:
            kind = model.kinds.get(weight.name, "other")
            if kind == "mtp":  # unless speculative decoding uses it
                continue
            total[kind == "experts"] += _served(weight)
            leaf = weight.name.split(".")[-2] if "." in weight.name else weight.name
            is_matrix = kind in MATRICES and is_linear_weight(weight.name, weight.tensor)
            if not is_matrix or leaf in LATENT or leaf in ("k_proj", "v_proj"):
                continue  # on every GPU; vLLM replicates key-value heads that it cannot divide
            by_columns = leaf in SPLIT_BY_COLUMNS
            group = weight.form.shared_columns if weight.form else None
            if block and weight.tensor.dtype == "F8_E4M3":
                group = block
            size = weight.tensor.shape[1 if by_columns else 0]
            sizes.add((size, group if by_columns else None, kind == "experts"))
        return cls(total[False], total[True], frozenset(sizes))

    def obstacles(self, model: Model, gpus: int) -> tuple[str, str]:
        """Return why GPUs cannot divide model or experts."""
        shape = model.shape
        if shape.heads % gpus:
            return f"{shape.heads} attention heads cannot be split over {gpus} GPUs", ""
        heads = max((layer.heads for layer in model.layers), default=1)
        if heads > 1 and heads % gpus and gpus % heads:
            return f"{heads} key-value heads cannot be split over {gpus} GPUs", ""
        obstacles = {True: "", False: ""}
        for size, group, of_experts in sorted(self.sizes, key=str):
            if size % gpus:
                obstacles[of_experts] = (
                    f"a layer of {size} rows or columns cannot be split over {gpus} GPUs"
                )
            elif group and size // gpus % group:
                obstacles[of_experts] = (
                    f"groups of {group} do not divide the {size // gpus} columns that each of "
                    f"{gpus} GPUs gets of {size}"
                )
        return obstacles[False], obstacles[True]


def variants_of(
    source: Checkpoint, recipes: Iterable[Recipe], adopted: Mapping[str, Checkpoint]
) -> dict[str, VariantWeights]:
    """Return the weights of each variant by name.

    `adopted` has headers of variants that others quantized.
    """
    return {
        recipe.name: stored_weights(source.tensors, adopted[recipe.name].tensors)
        if recipe.name in adopted
        else planned_weights(source, recipe.quantization)
        for recipe in recipes
    }


def choose_gpus(fits: Sequence[Fit]) -> int:
    """Return the GPUs a replica of every model, for one common profile.

    They are the fewest on which all models fit, with at least half the best number of sequences.
    """
    for accepted in (("fits",), ("fits", "the engine tells")):
        numbers: dict[int, dict[str, int]] = {}
        for fit in fits:
            if fit.answer in accepted:
                held = fit.copies * (fit.sequences or 0)
                numbers.setdefault(fit.gpus, {})[fit.variant] = held
        names = {name for held_by in numbers.values() for name in held_by}
        best = {name: max(f.get(name, 0) for f in numbers.values()) for name in names}
        for number, held_by in sorted(numbers.items()):
            if all(name in held_by and 2 * held_by[name] >= best[name] for name in names):
                return number
        if numbers:
            return max(numbers, key=lambda number: (len(numbers[number]), -number))
    return 1


def divisors(gpus: int) -> list[int]:
    """Return the numbers that use all GPUs."""
    return [number for number in range(1, gpus + 1) if gpus % number == 0]


def _served(tensor: VariantTensor) -> int:
    if not tensor.quantized and tensor.tensor.dtype in ("F32", "F64"):
        return 2 * tensor.tensor.elements
    return tensor.bytes


def _block_of_source(config: dict[str, Any]) -> int | None:
    block = _quantization(config).get("weight_block_size")
    is_pair = isinstance(block, list) and len(block) == 2 and type(block[1]) is int
    return block[1] if is_pair and block else None


def _quantization(config: dict[str, Any]) -> dict[str, Any]:
    said = text_level(config).get("quantization_config")
    return said if isinstance(said, dict) else {}


def _stored(dtype: str, model_bytes: int) -> Stored:
    plain = Stored(model_bytes)
    return plain if dtype == "auto" else STORED.get(dtype, plain)
