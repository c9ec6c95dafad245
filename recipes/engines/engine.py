"""What is to be known of an engine to serve a model with it: described here, run elsewhere."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class LaunchSpec:
    """How one server is started."""

    model: str  # folder of the checkpoint
    arguments: Mapping[str, Any]  # the engine's, by long name without dashes; true is a bare flag
    trust_remote_code: bool = False  # let the engine run code from the checkpoint's folder
    name: str = ""  # that requests call the model by
    host: str = ""  # that it listens on
    port: int = 0  # of that host
    socket: str = ""  # a Unix socket, instead of a port; "" without one


@dataclass(frozen=True)
class ApiCapabilities:
    """Which fields requests may use beyond what every OpenAI-like server takes."""

    # `echo` with `logprobs` gives the log-probabilities of a prompt's tokens.
    scores_prompts: bool = False
    # `logprob_token_ids` gives those of chosen tokens (one request a question).
    scores_tokens: bool = False


@dataclass(frozen=True)
class EngineCliOptions:
    """The command line of one version, as its own parser knows it."""

    version: str  # the engine with its version, for messages
    defaults: Mapping[str, str | None]  # by long name; None where the engine finds it at start
    shorts: Mapping[str, str]  # `-tp` to its long name
    variables: frozenset[str]  # of the environment, that it reads


@dataclass(frozen=True)
class DraftMethod:
    """One way to draft tokens for speculative decoding."""

    wants_draft: bool = False  # a separate checkpoint drafts
    looks_up: bool = False  # it looks up n-grams of the prompt
    on: tuple[str, ...] = ("cpu", "cuda")  # kinds of machine that it runs on


@dataclass(frozen=True)
class AcceptanceRule:
    """One rule of which drafted tokens are accepted."""

    lossy: str = ""  # why answers are not the model's own, in words; '' where they are
    unfit: str = ""  # why nothing that is served so may be promoted, in words; '' where it may
    fewest: int = 1  # tokens drafted a step that it needs
    on: tuple[str, ...] = ("cpu", "cuda")  # kinds of machine that it is there on


class Engine(Protocol):
    """An OpenAI-compatible server; what has a default here need not be said."""

    name: str  # in profiles and evidence
    title: str  # for people
    homepage: str  # for the model card
    environment: str  # name of the environment that it runs in
    modules: tuple[str, ...]  # that have to import there
    key_variable: str  # variable that names the key which its clients must show
    health: str = "/health"  # path that answers 200 once it serves
    dialect: ApiCapabilities = ApiCapabilities()  # of its requests
    echoes: tuple[str, ...] = ()  # words of an exception in its log that only repeats another's
    # Expression that a failure's reason matches, and what a user can do; first the known.
    hints: tuple[tuple[str, str], ...] = ()
    # What a load test reads of its `/metrics`, by our name, and the engine's own.
    counters: Mapping[str, str] = {}
    # Name of what reports show of its log, and the expression whose group is its value.
    facts: Mapping[str, str] = {}
    # Long names that no profile may set, by the reason; one ending in `*` stands for all that begin
    # so.
    ours: Mapping[str, tuple[str, ...]] = {}
    # Arguments whose value is one of these words, or else a folder.
    words_or_folders: Mapping[str, tuple[str, ...]] = {}
    # Speculative decoding, by the engine's names: what drafts, what of that no profile may ask for,
    # with the reason, and which tokens are accepted.
    drafting: Mapping[str, DraftMethod] = {}
    refused_drafting: Mapping[str, str] = {}
    acceptance: Mapping[str, AcceptanceRule] = {}
    # Expression of the variables that tune it, next to those of the libraries it uses.
    tuning: str = "(?!)"
    # Expression of those among them that have it load code or answer to others.
    reaching: str = "(?!)"

    @abstractmethod
    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        """The command line of a server, in its environment's interpreter."""

    @abstractmethod
    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        """The command line for who installed the engine from the package index."""

    @abstractmethod
    def package(self, accelerator: str) -> str:
        """Its name on the package index."""

    @abstractmethod
    def known_arguments(self, accelerator: str) -> tuple[str, Collection[str]]:
        """The engine with its version, for messages, and the long names that its parser knows."""

    def options_of(self, accelerator: str) -> EngineCliOptions:
        """All that a foreign command line may have; of an engine that tells no more, the names."""
        version, names = self.known_arguments(accelerator)
        return EngineCliOptions(version, dict.fromkeys(names), {}, frozenset())

    @abstractmethod
    def model_in(self, listing: Any) -> str:
        """The folder that `/v1/models` says is served; raises LookupError or TypeError."""

    @abstractmethod
    def version_command(self, python: str) -> list[str]:
        """What prints, among other things, a line of `engine-version` and the version."""

    def lacks(self, features: Collection[str], kv_cache_dtype: str = "auto") -> str:
        """Why it cannot serve on an x86 CPU of these features; "" where it can."""
        return ""

    def speculative_arguments(self, settings: Mapping[str, Any], draft: str) -> dict[str, str]:
        """Arguments that turn speculative decoding on; nothing where the engine has none.

        Args:
            settings: as `Speculation.to_dict` of recipes/speculative.py.
            draft: folder of what drafts; '' without one.
        """
        return {}

    def cpu_cache_bytes(self, environment: Mapping[str, str]) -> int:
        """Memory of the KV cache on a CPU with these variables; 0 where they do not tell."""
        return 0

    def facts_in(self, log: str) -> dict[str, str]:
        """What the log says; of a fact that it says several times, every value once."""
        found = {fact: re.findall(pattern, log) for fact, pattern in self.facts.items()}
        return {fact: ", ".join(dict.fromkeys(each)) for fact, each in found.items() if each}


def options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as long options: true is a bare flag, false a flag left out."""
    for name, value in arguments.items():
        if value is not False:
            yield f"--{name}"
            yield from [] if value is True else [str(value)]
