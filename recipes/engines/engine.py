"""Description of a serving engine."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recipes.weight_format import WeightFormat


@dataclass(frozen=True)
class LaunchSpec:
    """Settings of one server start."""

    model: str  # of the checkpoint
    arguments: Mapping[str, Any]  # by long name without dashes; true is a bare flag
    trust_remote_code: bool = False  # run code from the checkpoint's directory
    name: str = ""  # in requests
    host: str = ""  # to listen on
    port: int = 0
    socket: str = ""  # Unix socket instead of a port


# Members of every tuple, under the names that all engines share. A profile has its own key for the
# second; recorded arguments contain both.
LENGTH = "max-model-len"
KV_DTYPE = "kv-cache-dtype"


def kv_suffix(kv_format: str) -> str:
    """Return the end of the name of a variant with this KV cache."""
    return f".kv-{kv_format.replace('_', '-')}"


@dataclass(frozen=True)
class ApiCapabilities:
    """Request fields that not every OpenAI-compatible server accepts."""

    # `echo` with `logprobs` returns the log-probabilities of a prompt's tokens.
    scores_prompts: bool = False
    # `logprob_token_ids` returns those of chosen tokens (one request per question).
    scores_tokens: bool = False


@dataclass(frozen=True)
class DraftMethod:
    """Method of drafting tokens for speculative decoding."""

    wants_draft: bool = False  # needs a separate checkpoint
    looks_up: bool = False  # looks up n-grams of the prompt
    on: tuple[str, ...] = ("cpu", "cuda")  # kinds of machine that support it


@dataclass(frozen=True)
class AcceptanceRule:
    """Rule that decides which drafted tokens are accepted."""

    lossy: str = ""  # how answers may differ from the model's; "" if they do not
    unfit: str = ""  # why it excludes promotion; "" if it does not
    fewest: int = 1  # of drafted tokens per step
    on: tuple[str, ...] = ("cpu", "cuda")  # kinds of machine that support it


PLAIN = ("bfloat16", "float16", "float32")  # types of a KV cache that is not quantized
# Facts that a tuple records.
KERNELS = ("linear_kernel", "moe_kernel", "attention", "kv_cache", "kv_scales", "fusions")


class Engine(Protocol):
    """OpenAI-compatible server; attributes with a default are optional."""

    name: str  # in profiles and evidence
    title: str  # for people
    homepage: str  # for the model card
    environment: str  # that it runs in, of the entry points in `prepare.environments`
    accelerators: tuple[str, ...] = ("cpu", "cuda")
    # Shared libraries that its build for CPUs is linked with, and Debian's package of each.
    cpu_libraries: Mapping[str, str] = {}
    key_variable: str  # of the API key
    health: str = "/health"  # returns 200 when the server is ready
    dialect: ApiCapabilities = ApiCapabilities()
    echoes: tuple[str, ...] = ()  # parts of logged exceptions that only repeat another exception
    # Regular expression of a failure's reason, and a hint; the first match is used.
    hints: tuple[tuple[str, str], ...] = ()
    # Metrics that a load test reads from `/metrics`: our name, and the engine's.
    counters: Mapping[str, str] = {}
    # Metrics of exported rules and dashboards, and the bucket bounds of latency histograms, in
    # seconds.
    monitored: Mapping[str, str] = {}
    buckets: Mapping[str, tuple[float, ...]] = {}
    # For an engine without a report: expressions of its log's warnings that scales of the KV cache
    # are 1, and that those of a checkpoint were not read, which matters for a cache of 8 bits.
    lost_scales: str = "(?!)"
    unread_scales: str = "(?!)"
    # Facts that reports show from its log: name, and expression whose group is the value.
    facts: Mapping[str, str] = {}
    # Long names that no profile may set, by reason; `*` at the end matches any suffix.
    ours: Mapping[str, tuple[str, ...]] = {}
    # Arguments that a profile may set though one of `ours` begins so.
    whole_names: frozenset[str] = frozenset()
    # Arguments whose value is one of these words, or otherwise a directory.
    words_or_folders: Mapping[str, tuple[str, ...]] = {}
    # Speculative decoding, by the engine's names: drafting methods, those of them that no profile
    # may use, with the reason, and acceptance rules.
    drafting: Mapping[str, DraftMethod] = {}
    refused_drafting: Mapping[str, str] = {}
    acceptance: Mapping[str, AcceptanceRule] = {}
    # Expression of its tuning variables, in addition to those of its libraries.
    tuning: str = "(?!)"
    # Expression of those among them that load code or open connections.
    reaching: str = "(?!)"
    # Expression of those that hide lines of its log, as NAME=VALUE.
    silencing: str = "(?!)"

    @abstractmethod
    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        """Return the command line of a server in its environment's interpreter."""

    @abstractmethod
    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        """Return the command line for users of the package index."""

    @abstractmethod
    def package(self, accelerator: str) -> str:
        """Return the name on the package index."""

    def install_command(self, accelerator: str, version: str) -> str:
        """Return a shell command or comment that tells how to get the public command."""
        return f'pip install "{self.package(accelerator)}=={version}"'

    def parse_command(self, python: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a command that parses the arguments of several servers and starts none.

        It exits with 0, or prints the fault last; an empty list if there is no such command.
        """
        return []

    @abstractmethod
    def model_in(self, listing: Any) -> str:
        """Return the served directory from `/v1/models`; raises LookupError or TypeError."""

    @abstractmethod
    def version_command(self, python: str) -> list[str]:
        """Return a command whose output includes the line `engine-version VERSION`."""

    def lacks(self, features: Collection[str], kv_cache_dtype: str = "auto") -> str:
        """Return why it cannot serve on an x86 CPU with these features, or ''."""
        return ""

    def lacks_cache(self, kv_cache_dtype: str, config: Mapping[str, Any], capability: float) -> str:
        """Return why it has no such KV cache for a model on GPUs of this capability, or ''."""
        return ""

    def cannot_load(self, config: Mapping[str, Any], accelerator: str) -> str:
        """Return why it cannot load weights with this `quantization_config`, or ''."""
        return ""

    def cannot_draft(self, config: Mapping[str, Any]) -> str:
        """Return why it cannot draft with weights of this `quantization_config`, or ''."""
        return ""

    def lacks_experts(self, form: WeightFormat, features: Collection[str]) -> str:
        """Return why it serves no experts of this format on such a CPU as a GPU does, or ''."""
        return ""

    def speculative_arguments(self, settings: Mapping[str, Any], draft: str) -> dict[str, str]:
        """Return the arguments of speculative decoding, or {} if the engine has none.

        `settings` are `SpeculativeConfig.to_dict`; `draft` is the draft model's directory, or ''.
        """
        return {}

    def prepare_report(self, folder: Path) -> dict[str, str]:
        """Have a server write reports of its KV cache (`kv_report.py`) into this private folder.

        Return its variables; {} if the engine cannot tell.
        """
        return {}

    def cpu_cache_bytes(self, environment: Mapping[str, str]) -> int:
        """Return the KV cache's memory on a CPU, or 0 if these variables do not set it."""
        return 0

    def facts_in(self, log: str) -> dict[str, str]:
        """Return the facts in a log, each with its distinct values."""
        matches = {fact: re.findall(pattern, log) for fact, pattern in self.facts.items()}
        return {
            fact: ", ".join(dict.fromkeys(values)) for fact, values in matches.items() if values
        }


def options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield long options; true is a bare flag, false is omitted, a list is several words."""
    for name, value in arguments.items():
        if value is not False:
            yield f"--{name}"
            words = value if isinstance(value, list) else [value]
            yield from [] if value is True else map(str, words)
