"""The deployable tuple as far as serving goes, read from evidence or from a registry's tags.

Whoever may write to a registry may set a tag, so tags are read here as a stranger's text, and what
is started is never taken from them: it comes from the evidence beside the weights, which a digest
covers and from which the verdict can be computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from artifacts.registry.registry import Version
from artifacts.serving_arguments import ServingArguments
from pipeline.core.errors import CheckpointError, EvidenceError, RegistryError
from pipeline.core.foreign.record import first_fault
from pipeline.core.hardware import hardware
from pipeline.environments.environment import Accelerator
from recipes.engine_arguments import EngineArgumentError, check_arguments, check_variables
from recipes.engines import DEFAULT
from recipes.schema import EngineName, EngineValue

# A profile sets it by a key of its own, and the judged arguments have it among them.
KV_DTYPE = "kv-cache-dtype"
TRUST_OPTION = "--yes-trust-remote-code"


class _Serving(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    engine_arguments: dict[str, EngineValue]
    environment: dict[str, str]
    engine: EngineName = DEFAULT


class _Hardware(BaseModel):
    model_config = ConfigDict(extra="allow")

    accelerator: Accelerator


class _Members(BaseModel):
    model_config = ConfigDict(extra="ignore")

    engine_version: str
    environment: str = Field(alias="environment.serve")
    serving: _Serving
    hardware: _Hardware


class _Tags(BaseModel):
    """The same members as text, the way that tags have them."""

    model_config = ConfigDict(extra="ignore")

    engine_version: str = Field(alias="prepare.engine_version")
    environment: str = Field(alias="prepare.environment.serve")
    serving: Json[_Serving] = Field(alias="prepare.serving")
    hardware: Json[_Hardware] = Field(alias="prepare.hardware")


@dataclass(frozen=True)
class JudgedTuple:
    """What a version was judged as.

    Args:
        engine_version: as the engine reports it.
        environment: identity of the serving environment.
        arguments: how it was served.
        hardware: facts of the machine.
        trust_remote_code: whether it was served with code of the checkpoint's own.
    """

    engine_version: str
    environment: str
    arguments: ServingArguments
    hardware: dict[str, Any]
    trust_remote_code: bool

    @classmethod
    def of(cls, version: Version) -> JudgedTuple:
        """Read the tags; raises RegistryError where they do not say it."""
        try:
            found = _Tags.model_validate(dict(version.tags))
        except ValidationError as error:
            raise RegistryError(
                f"version {version.version} of '{version.name}' does not say how it was judged: "
                f"{first_fault(error)}",
                where=f"{version.name} version {version.version}, tags prepare.*",
                cure="it was not registered by `prepare`, or its tags were changed",
            ) from error
        trusted = version.tags.get("prepare.trust_remote_code") == "true"
        return cls._of(found, trust_remote_code=trusted)

    @classmethod
    def of_members(
        cls, members: Mapping[str, Any], where: str, *, trust_remote_code: bool
    ) -> JudgedTuple:
        """Read the deployable tuple of evidence.

        Args:
            members: of the tuple.
            where: they were read from, for messages.
            trust_remote_code: whether it was served with code of the checkpoint's own.

        Raises:
            EvidenceError: they are none that could be served, or say what is not theirs to say.
        """
        try:
            found = _Members.model_validate(dict(members))
            arguments = found.serving.engine_arguments
            of_a_profile = {name: arguments[name] for name in arguments if name != KV_DTYPE}
            engine = found.serving.engine
            check_arguments(found.hardware.accelerator, of_a_profile, engine)
            check_variables(found.serving.environment, engine)
        except (ValidationError, EngineArgumentError) as error:
            words = first_fault(error) if isinstance(error, ValidationError) else str(error)
            raise EvidenceError(
                f"what was judged cannot be served: {words}",
                where=where,
                cure="the evidence was changed, or another version of prepare wrote it",
            ) from error
        return cls._of(found, trust_remote_code=trust_remote_code)

    @classmethod
    def _of(cls, found: _Tags | _Members, *, trust_remote_code: bool) -> JudgedTuple:
        serving = found.serving
        return cls(
            engine_version=found.engine_version,
            environment=found.environment,
            arguments=ServingArguments(**serving.model_dump()),
            hardware=found.hardware.model_dump(mode="json"),
            trust_remote_code=trust_remote_code,
        )

    @property
    def accelerator(self) -> Accelerator:
        """Which kind of machine it was judged on."""
        return Accelerator(self.hardware["accelerator"])

    def differences(self, environment: str) -> list[str]:
        """Members in which this machine differs, in words, the engine's own version left out.

        Args:
            environment: identity of the environment that would serve.
        """
        here = hardware(self.accelerator)
        pairs: list[tuple[str, Any, Any]] = [
            ("environment 'serve'", self.environment, environment),
            *(
                (f"hardware, {key}", self.hardware.get(key), here.get(key))
                for key in sorted(self.hardware.keys() | here.keys())
                # What the prepare of then did not look at cannot differ.
                if key in self.hardware or key != "cpu_features"
            ),
        ]
        return [f"{name}: judged {was}, here {now}" for name, was, now in pairs if was != now]


def refuse_code(comes_with_code: bool, where: str) -> None:
    """Refuse to run a checkpoint's own code where nobody on this machine has agreed to.

    Args:
        comes_with_code: whether it was judged with such code.
        where: the version, for messages.

    Raises:
        CheckpointError: it was.
    """
    if comes_with_code:
        raise CheckpointError(
            "it was judged with Python code that comes with the checkpoint, and serving it runs "
            "that code here",
            where=where,
            cure="read the *.py files beside its weights; where you trust them, add "
            f"{TRUST_OPTION}",
        )
