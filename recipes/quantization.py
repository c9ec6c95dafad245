"""What a kind of quantization is: its keys in a recipe, and what every other package asks of it.

A kind is a subclass of :class:`Quantization`, found by the entry point of its name in the group
`prepare.quantizers`. Only the core imports it. The worker that it names runs in another environment
and gets plain data.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from pipeline.core.plugins import QUANTIZERS, find_plugin, load_class
from recipes.config_model import ConfigModel, Seed
from recipes.group_sizes import find_dividing
from recipes.of_kind import OfKind
from recipes.weight_format import WeightFormat

Rounding = Literal["nearest", "compensated", "rescaled"]


class Calibration(ConfigModel):
    """Texts that the quantizer runs through the model to see its activations."""

    dataset: str | None = Field(
        None, description="Hub dataset id, 'builtin' for the project's own texts, or a file path"
    )
    split: str = Field("train", description="split of a Hub dataset")
    column: str = Field("text", description="column or JSON key that holds the text or messages")
    revision: str | None = Field(None, description="commit or tag of a Hub dataset")
    fallback: Literal["builtin"] | None = Field(
        None, description="what to use when the Hub cannot be reached; its use is reported"
    )
    samples: int = Field(
        256, ge=1, le=1_000_000, description="blocks of max_tokens tokens, cut from the texts"
    )
    max_tokens: int = Field(
        512,
        ge=16,
        le=1_000_000,
        description="tokens of a block; texts are shuffled by seed and laid end to end",
    )
    batch_size: int = Field(1, ge=1, le=10_000, description="blocks a forward pass")
    seed: Seed = Field(20240814, description="of the shuffle, and of torch while quantizing")


class Quantization(ConfigModel):
    """One kind of quantization. A subclass sets `kind`, `worker`, `weight_formats` and
    `sqnr_floor_db`, and overrides what differs.
    """

    kind: str
    ignore: list[str] = Field(
        default=["lm_head"],
        max_length=2_000,
        description="modules kept in 16 bits: names, shell patterns, or 're:' expressions",
    )
    calibration: Calibration | None = None

    quantizes: ClassVar[bool] = True  # False for the baseline
    # Managed environment that the worker runs in: `quantize` has llm-compressor and torch.
    environment: ClassVar[str] = "quantize"

    @property
    @abstractmethod
    def worker(self) -> str:
        """Module with `run(spec, progress, output) -> facts of QuantizeResult`.

        `spec` has checkpoint (folder), quantization (the recipe's keys, with `ignore` resolved),
        group_sizes, calibration_file (None for a Hub dataset), trust_remote_code, compute_dtype.
        At module level it may import the standard library and what `environment` has.
        """

    @property
    @abstractmethod
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        """Possible formats of the weights: one for each group size, in the order to try."""

    @property
    def is_streamed(self) -> bool:
        """Whether weights are cast file by file, without the model, and a killed try is resumed."""
        return False

    # What verification expects (docs/explanation/weight-verification.md).

    @property
    @abstractmethod
    def sqnr_floor_db(self) -> float:
        """Minimum SQNR of a sound layer. A swapped layer has -3 or 0."""

    @property
    def rounding(self) -> Rounding:
        """What is done to weights in addition to rounding.

        nearest: nothing. compensated: later weights absorb an error, so rows may differ in places.
        rescaled: columns are scaled, and the layers before them by the inverse.
        """
        return "nearest"

    @property
    def stores_kv_scales(self) -> bool:
        """Whether scales of an FP8 KV cache are stored with the weights."""
        return False

    # Whether unquantized tensors are stored in the source's types.
    keeps_types: ClassVar[bool] = True

    # Resources and time.

    # Bytes for each weight of a matrix that verification must hold completely.
    checked_bytes: ClassVar[float] = 0.0

    @property
    def forward_passes(self) -> float | None:
        """How often the calibration's tokens go through the layers; None where it is not known."""
        return None

    def bytes_on_cpu(self, size: int, *, wide: bool) -> int:
        """Return memory of `size` bytes of weights on a CPU server.

        Args:
            wide: the profile serves in float32.
        """
        return size

    # Words for a model card.

    def format_description(self, group_size: int | None) -> str:
        """Number formats of weights and activations, with the group size that was used."""
        return self.weight_formats[0].label

    @property
    def method_description(self) -> str:
        """How weights are quantized, as sentences."""
        return ""

    # Consequences of the formats.

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Columns that may share a scale, in the order to try; empty if any number will do."""
        sizes = (form.shared_columns for form in self.weight_formats)
        return tuple(size for size in sizes if size is not None)

    @property
    def rows_of_block(self) -> int | None:
        """Rows that share a scale, which must divide those of layers that the engine merges."""
        block = self.weight_formats[0].block
        return block[0] if block else None

    def choose_format(self, columns: Iterable[int]) -> WeightFormat:
        """Return the first format whose groups divide these columns, else the first of all."""
        size = find_dividing(self.group_sizes, columns)
        formats = self.weight_formats
        return next((form for form in formats if form.shared_columns == size), formats[0])

    @field_validator("ignore")
    @classmethod
    def _expressions_are_such(cls, ignore: list[str]) -> list[str]:
        for word in ignore:
            try:
                re.compile(word.removeprefix("re:") if word.startswith("re:") else "")
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{word[:80]!r} is no regular expression: {error}") from error
        return ignore


def _model(kind: str) -> type[Quantization]:
    found: type[Quantization] = load_class(QUANTIZERS, kind, Quantization)
    return found


AnyQuantization = Annotated[Quantization, OfKind(QUANTIZERS, _model)]


def for_worker(quantization: Quantization) -> dict[str, str]:
    """Return what a worker imports the kind's package by."""
    return find_plugin(QUANTIZERS, quantization.kind).for_worker()
