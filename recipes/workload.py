"""Workloads of speed measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, TypeAdapter, model_validator

from recipes.config_model import ConfigModel, Name

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]

MAX_SECONDS = 3_600  # of a load


class Arrivals(ConfigModel):
    """Arrivals of requests: `{rate: 12}` or `{concurrency: 64}`."""

    rate: float | None = Field(
        None,
        ge=1e-3,
        le=1e5,
        description="requests a second, as a Poisson process: their number differs between loads",
    )
    concurrency: int | None = Field(
        None, ge=1, le=100_000, description="requests in flight: one begins where another ends"
    )

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Arrivals:
        if (self.rate is None) == (self.concurrency is None):
            raise ValueError("give one of {rate: 12} and {concurrency: 64}")
        return self

    @property
    def words(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"{self.concurrency} requests in flight"

    @property
    def load(self) -> str:
        """The load of a server: `64 concurrent requests`."""
        if self.rate is not None:
            return self.words
        return f"{self.concurrency} concurrent request{'s' * (self.concurrency != 1)}"


class WorkloadBase(ConfigModel):
    """Keys that all workloads have."""

    arrivals: Arrivals
    seconds: float = Field(
        30,
        ge=1,
        le=MAX_SECONDS,
        description="minimum duration of each load without its first wave and its end; a round "
        "with a rate lasts at least ten median answers",
    )

    warmup_seconds: float = Field(
        10,
        ge=0,
        le=600,
        description="for a rate: these seconds do not count at the start, and are sent "
        "again at the end, so that the last counted requests run under the same load",
    )

    @property
    def longest(self) -> int | None:
        """Tokens of the longest prompt with its answer, if known."""
        return None

    @property
    def declared_hit_rate(self) -> float | None:
        """Share of prompt tokens from the prefix cache."""
        return None

    @property
    def load(self) -> str:
        """What a server is measured under: concurrent requests, tokens in and out."""
        return f"{self.arrivals.load}, {self.tokens}"

    @property
    def tokens(self) -> str:
        """Tokens of a prompt and of an answer, as text."""
        return ""


class RandomWorkload(WorkloadBase):
    """Random prompts without a common prefix."""

    kind: Literal["random"]
    input_tokens: Tokens
    output_tokens: Tokens

    @property
    def longest(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def declared_hit_rate(self) -> float:
        return 0.0

    @property
    def tokens(self) -> str:
        return f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"


class SharedPrefixWorkload(WorkloadBase):
    """Random prompts that start with one of a few prefixes, similar to system prompts."""

    kind: Literal["shared_prefix"]
    prefixes: int = Field(1, ge=1, le=100_000, description="number of different prefixes")
    prefix_tokens: Tokens
    suffix_tokens: Tokens
    output_tokens: Tokens
    hit_rate: float = Field(
        gt=0,
        lt=1,
        description="share of all prompt tokens that the prefix cache should answer; a load with "
        "another measured rate is invalid",
    )

    @model_validator(mode="after")
    def _the_prefix_suffices(self) -> SharedPrefixWorkload:
        most = self.prefix_tokens / (self.prefix_tokens + self.suffix_tokens)
        if self.hit_rate > most:
            raise ValueError(
                f"a hit_rate of {self.hit_rate:g} is more than the prefix can give: "
                f"{self.prefix_tokens} of {self.prefix_tokens + self.suffix_tokens} tokens are "
                f"{most:.3g}"
            )
        return self

    @property
    def longest(self) -> int:
        return self.prefix_tokens + self.suffix_tokens + self.output_tokens

    @property
    def declared_hit_rate(self) -> float:
        return self.hit_rate

    @property
    def tokens(self) -> str:
        whole = self.prefix_tokens + self.suffix_tokens
        shared = f"{self.prefix_tokens:,} shared"
        return f"{whole:,} tokens in ({shared}), {self.output_tokens:,} out"


class FileWorkload(WorkloadBase):
    """Requests of a file."""

    file: str = Field(min_length=1)
    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="digest of the file; a file with other content is rejected. Evidence has it",
    )
    hit_rate: float | None = Field(
        None, ge=0, lt=1, description="share of prompt tokens that the prefix cache should answer"
    )

    # Not a key: a policy or profile means the same in every directory.
    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def path(self) -> Path:
        return self._folder / self.file

    def find_in(self, folder: Path) -> Self:
        """Return the workload with its file relative to that directory."""
        placed = self.model_copy()
        placed._folder = folder
        return placed

    @property
    def declared_hit_rate(self) -> float | None:
        return self.hit_rate


class RequestsWorkload(FileWorkload):
    """Prompts of a file: JSON Lines with `prompt`, or ShareGPT's JSON."""

    kind: Literal["requests"]
    file: str = Field(min_length=1, description="`.jsonl` of prompts, or `.json` of conversations")
    output_tokens: Tokens = Field(
        description="length of every answer, equal on both sides; with `output: natural` the "
        "largest"
    )
    output: Literal["fixed", "natural"] = Field(
        "fixed",
        description="fixed: answers have `output_tokens`, so that only the engine differs. "
        "natural: an answer ends where the model ends it; the ratio is then of tokens/s at these "
        "lengths, and requests/s depend on both. Prompts without content have no natural answers",
    )

    @property
    def tokens(self) -> str:
        most = "at most " * (self.output == "natural")
        return f"prompts of a file in, {most}{self.output_tokens:,} tokens out"


AnyWorkload = Annotated[
    RandomWorkload | SharedPrefixWorkload | RequestsWorkload,
    Field(discriminator="kind"),
]


class NamedWorkload(ConfigModel):
    """A workload in a separate file."""

    name: Name
    summary: str
    workload: AnyWorkload


def named_in_full(workload: AnyWorkload) -> AnyWorkload:
    """Return the workload with an absolute path."""
    if not isinstance(workload, FileWorkload):
        return workload
    return workload.model_copy(update={"file": str(workload.path.absolute())})


def without_place(workload: AnyWorkload) -> dict[str, Any]:
    """Return plain data with the file's digest instead of its path."""
    plain = workload.model_dump()
    if isinstance(workload, FileWorkload):
        plain["file"] = plain.pop("sha256")
    return plain


def read_pinned(plain: Mapping[str, Any]) -> AnyWorkload:
    """Parse the result of :func:`without_place`; raises ValidationError."""
    digest = {"sha256": plain["file"]} if "file" in plain else {}
    workload: AnyWorkload = TypeAdapter(AnyWorkload).validate_python({**plain, **digest})
    return workload


def change_arrivals(workload: AnyWorkload, arrivals: Arrivals) -> AnyWorkload:
    """Return the same requests otherwise; ValidationError if impossible."""
    type(workload).model_validate({**workload.model_dump(), "arrivals": arrivals.model_dump()})
    return workload.model_copy(update={"arrivals": arrivals})
