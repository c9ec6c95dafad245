"""Base of quantization kinds: recipe keys, verification limits and descriptions.

A kind is a subclass of :class:`Quantization` in the entry point group `prepare.quantizers`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from prepare.errors import UsageError
from prepare.plugins import QUANTIZERS, find_plugin, load_class
from recipes.config_model import ConfigModel, Seed
from recipes.module_lists import check_patterns
from recipes.of_kind import OfKind
from recipes.weight_format import WeightFormat, find_dividing

Rounding = Literal["nearest", "compensated", "rescaled"]


class Calibration(ConfigModel):
    """Texts that the quantizer runs through the model to record activations."""

    dataset: str | None = Field(
        None, description="Hub dataset id, 'builtin' for the project's own texts, or a file path"
    )
    split: str = Field("train", description="split of a Hub dataset")
    column: str = Field("text", description="column or JSON key that holds the text or messages")
    revision: str | None = Field(None, description="commit or tag of a Hub dataset")
    fallback: Literal["builtin"] | None = Field(
        None,
        description="texts to use on a machine without a Hub, or where a profile chooses so; the "
        "run reports it. A Hub that is late is an error",
    )
    samples: int = Field(
        256, ge=1, le=1_000_000, description="blocks of max_tokens tokens, cut from the texts"
    )
    max_tokens: int = Field(
        512,
        ge=16,
        le=1_000_000,
        description="tokens of a block; texts are shuffled by seed and concatenated",
    )
    batch_size: int = Field(1, ge=1, le=10_000, description="blocks per forward pass")
    seed: Seed = Field(20240814, description="seed of the shuffle, and of torch while quantizing")


# A name that ends so is a file's: forms that are not read are refused, not asked of the Hub.
_FILE_NAME = re.compile(
    r"\.(jsonl|json|ndjson|txt|md|csv|tsv|parquet|arrow|gz|bz2|xz|zst|zip)$", re.IGNORECASE
)


def names_file(dataset: str) -> bool:
    """Return whether a dataset is a file."""
    return dataset.startswith((".", "/", "~")) or _FILE_NAME.search(dataset) is not None


LLM_COMPRESSOR_WORKER = "recipes.quantizers.llm_compressor_worker"
"""Loads the model, and quantizes it as a whole."""

MODEL_FREE_WORKER = "recipes.quantizers.model_free_worker"
"""Casts the weights file by file, without the model."""


class Quantization(ConfigModel):
    """Base of quantization kinds.

    A subclass sets `kind`, `worker`, `weight_formats` and `sqnr_floor_db`.
    """

    kind: str
    ignore: list[str] = Field(
        default=["lm_head"],
        max_length=2_000,
        description="modules left in 16 bits: names, shell patterns, or 're:' expressions",
    )
    calibration: Calibration | None = None

    quantizes: ClassVar[bool] = True  # False for the baseline
    # Managed environment that the worker runs in, of the entry points in `prepare.environments`:
    # `quantize` has llm-compressor and torch.
    environment: ClassVar[str] = "quantize"
    # Whether unquantized tensors are stored in the source's types.
    keeps_types: ClassVar[bool] = True
    # Whether the worker copies heads for multi-token prediction, which transformers does not load.
    carries_mtp: ClassVar[bool] = True

    @property
    @abstractmethod
    def worker(self) -> str:
        """Module with `run(spec, progress, output) -> facts of QuantizeResult`.

        `spec` has checkpoint (directory), quantization (the recipe's keys, with `ignore` resolved),
        group_sizes, calibration_file, trust_remote_code, compute_dtype. At module level it imports
        only the standard library and packages of `environment`.
        """

    @property
    @abstractmethod
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        """Weight formats: one for each group size, in order."""

    @property
    @abstractmethod
    def sqnr_floor_db(self) -> float:
        """Minimum SQNR in dB; a swapped layer has -3 or 0."""

    @property
    def rounding(self) -> Rounding:
        """Change of weights in addition to rounding.

        compensated: later weights absorb an error. rescaled: columns are scaled, and the preceding
        layers by the inverse.
        """
        return "nearest"

    @property
    def kv_cache_strategy(self) -> str | None:
        """Unit of stored scales: tensor, attn_head, or None without any."""
        return None

    @property
    def parts(self) -> tuple[Quantization, ...]:
        """One kind, unless a recipe gives some modules another format."""
        return (self,)

    def part_of(self, module: str) -> int:
        """Return the place in `parts`."""
        return 0

    def for_module(self, module: str) -> Quantization:
        """Return the one of `parts` for this module."""
        return self.parts[self.part_of(module)]

    @property
    def is_streamed(self) -> bool:
        """Whether weights are cast file by file."""
        return False

    @property
    def keeps_stacked_experts(self) -> bool:
        """Whether experts in one tensor stay; else such models are refused."""
        return False

    def format_description(self, group_size: int | None) -> str:
        """Return the number formats, for a model card."""
        return self.weight_formats[0].label

    @property
    def method_description(self) -> str:
        return ""

    @property
    def is_fp8(self) -> bool:
        """Whether weights become 8-bit floating-point numbers."""
        return all((form.number, form.bits) == ("float", 8) for form in self.weight_formats)

    def limit_scales(self, most: int) -> tuple[Quantization, str]:
        """Return it trying at most that many scales a layer, with a remark if it is limited."""
        return self, ""

    def floor_of(self, module: str, form: WeightFormat) -> float:
        """Return a module's minimum SQNR in dB."""
        return self.for_module(module).sqnr_floor_db

    def bytes_on_cpu(self, size: int, *, wide: bool) -> int:
        """Return the memory of `size` bytes of weights; `wide`: in float32."""
        return self.weight_formats[0].bytes_on_cpu(size, wide=wide)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Columns that may share a scale, in order."""
        sizes = (form.shared_columns for form in self.weight_formats)
        return tuple(size for size in sizes if size is not None)

    @property
    def rows_of_block(self) -> int | None:
        """Rows that share a scale and divide merged layers' rows."""
        block = self.weight_formats[0].block if self.weight_formats else None
        return block[0] if block else None

    def choose_format(self, columns: Iterable[int]) -> WeightFormat:
        """Return the first format whose groups divide the columns, else the first."""
        size = find_dividing(self.group_sizes, columns)
        formats = self.weight_formats
        return next((form for form in formats if form.shared_columns == size), formats[0])

    @field_validator("ignore")
    @classmethod
    def _ignored_expressions_are_such(cls, ignore: list[str]) -> list[str]:
        return check_patterns(ignore)


class InGroups(Quantization):
    """Quantization in which groups of columns share a scale."""

    group_size: int = Field(128, description="columns that share a scale", ge=1, le=65_536)
    smaller_group_sizes: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[64, 32],
        max_length=16,
        description="tried in this order if group_size does not divide; the run reports it",
    )
    calibration: Calibration

    def in_each_size(self, form: Callable[[int], WeightFormat]) -> tuple[WeightFormat, ...]:
        """Return a format for each group size."""
        return tuple(form(size) for size in (self.group_size, *self.smaller_group_sizes))


class WithKvScales(Quantization):
    """Quantization by llm-compressor that may store scales of keys and values."""

    kv_cache_scales: Literal["tensor", "head"] | None = Field(
        None,
        description="calibrate scales of an FP8 KV cache and store them with the weights: one a "
        "layer (tensor), or one a key-value head, which vLLM serves with FlashAttention on a GPU",
    )

    @property
    def kv_cache_strategy(self) -> str | None:
        return "attn_head" if self.kv_cache_scales == "head" else self.kv_cache_scales


def groups_of(size: int | None) -> str:
    """Return text for a model card."""
    return f" in groups of {size}" if size else ""


def _model(kind: str) -> type[Quantization]:
    model: type[Quantization] = load_class(QUANTIZERS, kind, Quantization)
    return model


AnyQuantization = Annotated[Quantization, OfKind(QUANTIZERS, _model)]


def check_worker(quantization: Quantization) -> None:
    """Raise UsageError if the kind's worker is no module."""
    worker = quantization.worker
    try:
        spec = find_spec(worker)
    except ModuleNotFoundError:  # a package above it is missing
        spec = None
    if spec is None:
        plugin = find_plugin(QUANTIZERS, quantization.kind)
        raise UsageError(
            f"the kind '{quantization.kind}' has no worker: there is no module {worker}",
            where=plugin.words,
            hint=f"install a version of {plugin.package} that fits, or remove it",
        )


def for_worker(quantization: Quantization) -> dict[str, str]:
    """Return how a worker imports the kind."""
    return find_plugin(QUANTIZERS, quantization.kind).for_worker()
