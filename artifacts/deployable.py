"""The deployable tuple, the subject of a verdict.

Commands come from the evidence, because registry tags are untrusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError, field_validator

from artifacts.registry import TUPLE_TAG
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.evidence import Evidence
from prepare.digest import digest_json
from prepare.errors import EvidenceError
from prepare.hardware import Hardware
from prepare.record import SparseRecord
from prepare.untrusted import first_fault
from recipes.accelerator import Accelerator
from recipes.engine_arguments import check_arguments, check_variables
from recipes.engines import KERNELS
from recipes.engines.engine import KV_DTYPE
from recipes.speculative import ACCEPTANCE_KEY

# Members that can differ where it is served; weights have digests of their own.
WORDS = {
    "engine_version": "engine version",
    "environment.serve": "environment 'serve'",
    "environment.evaluate": "environment 'evaluate'",
    "serving": "serving",
    "hardware": "hardware",
}
ABSENT = "none"
SHORT = 12


@dataclass(frozen=True)
class TupleDifference:
    """One member that differs."""

    member: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.member}: judged {self.then}, here {self.now}"


class Deployable(SparseRecord, serialize_by_alias=True):
    """The deployable tuple; its digest covers all members.

    The kernels are not a member: stages have keys before a server reports them.
    """

    weights: str = Field(description="digest of the names and contents of the weight files")
    engine_version: str = Field(description="as the engine reports it")
    quantize_environment: str = Field(alias="environment.quantize", description="identity")
    serve_environment: str = Field(alias="environment.serve", description="identity")
    evaluate_environment: str = Field(alias="environment.evaluate", description="identity")
    serving: ServingArguments
    hardware: Hardware
    kernels: dict[str, str] | None = Field(
        None,
        description="what the engine started with: kernels, fusions, format and scales of the KV "
        "cache; not in the digest",
    )

    @classmethod
    def of(cls, evidence: Evidence) -> Deployable:
        """Return the tuple that was judged; EvidenceError if records are incomplete."""
        try:
            sanity = evidence.sanity.result
            served = evidence.sanity.parameters
            facts = sanity.server.__pydantic_extra__ or {}
            evaluated, *_ = evidence.evaluations.values()
            return cls.model_validate(
                {
                    "weights": evidence.weights.result.weights_digest,
                    "engine_version": sanity.engine_version,
                    "environment.quantize": evidence.weights.parameters.environment,
                    "environment.serve": served.engine,
                    "environment.evaluate": evaluated.parameters.environment,
                    "serving": served.serving,
                    "hardware": served.hardware,
                    "kernels": {k: fact for k, fact in facts.items() if k in KERNELS} or None,
                }
            )
        except (ValueError, LookupError) as error:
            raise unservable_error(error, f"stage judge {evidence.judge.record.key}") from error

    @field_validator("hardware")
    @classmethod
    def _check_kind_of_machine(cls, hardware: Hardware) -> Hardware:
        Accelerator(hardware.accelerator or "")
        return hardware

    @property
    def members(self) -> dict[str, Any]:
        return self.model_dump(exclude={"kernels"})

    @property
    def digest(self) -> str:
        """Hexadecimal digest, which identifies versions."""
        return digest_json(self.members)

    @property
    def accelerator(self) -> Accelerator:
        return Accelerator(self.hardware.accelerator or "")

    def tags(self) -> dict[str, str]:
        """Return the digest and each member as text."""
        return {
            TUPLE_TAG: self.digest,
            **{f"prepare.{name}": as_tag(member) for name, member in self.model_dump().items()},
        }

    def differences(self, here: Deployable) -> list[TupleDifference]:
        """Return each differing member; serving and hardware part by part."""
        then = self.members
        now = here.members
        if self.hardware.cpu_features is None:
            now["hardware"].pop("cpu_features", None)
        return [
            change
            for name, words in WORDS.items()
            for change in _compare(words, then[name], now[name])
        ]

    def kernel_differences(self, facts: Mapping[str, str]) -> list[TupleDifference]:
        """Return what differs of the engines' starts, if both sides are known."""
        if self.kernels is None:
            return []
        both = [(name, self.kernels.get(name, ABSENT), facts.get(name, ABSENT)) for name in KERNELS]
        return [
            TupleDifference(f"kernels, {name.replace('_', ' ')}", then, now)
            for name, then, now in both
            if {*then.split(", ")} != {*now.split(", ")}
        ]

    def check_servable(self, where: str) -> None:
        """Raise EvidenceError for a refused argument or variable."""
        serving = self.serving
        of_a_profile = {k: v for k, v in serving.engine_arguments.items() if k != KV_DTYPE}
        try:
            check_arguments(of_a_profile, serving.engine)
            check_variables(serving.environment, serving.engine)
            if serving.speculative is not None:
                serving.speculative.check(self.accelerator, serving.engine)
        except ValueError as error:
            raise unservable_error(error, where) from error
        if why := self.unfit:
            raise unservable_error(ValueError(why), where)

    @property
    def unfit(self) -> str:
        """Why this serving must not be promoted."""
        speculative = self.serving.speculative
        why = speculative.unfit(self.serving.engine) if speculative is not None else ""
        return f"{ACCEPTANCE_KEY}: {why}" if why else ""


def unservable_error(error: Exception, where: str) -> EvidenceError:
    """Return the error for evidence without a permitted tuple."""
    return EvidenceError(
        f"what was judged cannot be served: {_words(error)}",
        where=where,
        hint="the evidence was changed, or another version of prepare wrote it",
    )


def as_tag(value: Any) -> str:
    """Return text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _compare(name: str, then: Any, now: Any) -> Iterator[TupleDifference]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from _compare(f"{name}, {key}", then.get(key, ABSENT), now.get(key, ABSENT))
    elif then != now:
        yield TupleDifference(name, _show(then), _show(now))


def _show(value: Any) -> str:
    text = str(value)
    is_digest = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:SHORT] if is_digest else text


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_fault(error)
    return f"it has no {error}" if isinstance(error, LookupError) else str(error)
