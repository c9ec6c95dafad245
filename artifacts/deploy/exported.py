"""An export's data and server command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.deployable import Deployable
from pipeline.core.errors import UsageError
from pipeline.core.process_environment import server_environment
from pipeline.core.record import Record
from pipeline.environments.compile_caches import VARIABLES
from pipeline.environments.cuda_home import cuda_home
from pipeline.environments.definition import (
    Accelerator,
    define,
    environments_folder,
    folder_name,
)
from pipeline.serving.served_model import SERVED_NAME
from recipes.engine_arguments import COMPILES
from recipes.engines import Engine, LaunchSpec, find_engine
from recipes.policy import Policy

PORT = 8000
# Paths in a container: in the image (`Containerfile`), and of volumes.
IMAGE_HOME = Path("/var/lib/prepare")
VOLUME, WEIGHTS, CACHES = "/weights", "/weights/model", "/caches"
# A name becomes part of addresses, labels and units; registries allow more.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_VERSION = re.compile(r"[A-Za-z0-9]{1,20}")
_LONGEST = 40  # DNS labels have at most 63 characters

Measure = Literal["ttft", "tpot", "latency"]


class CertifiedLimit(Record):
    """A latency limit of a passed performance gate."""

    gate: str
    measure: Measure
    percentile: int
    seconds: float

    def as_rule(self, engine: Engine) -> dict[str, Any] | None:
        """Return Prometheus' variables; None if no bucket reaches the limit."""
        bounds = engine.buckets.get(self.measure, ())
        bound = next((each for each in bounds if each >= self.seconds), None)
        if bound is None:
            return None
        gate = re.sub("[^A-Za-z0-9]", "_", self.gate)
        words = f"{gate}_{self.measure}".title().replace("_", "")
        # Some client versions write 1 as 1.0.
        forms = "|".join(dict.fromkeys((f"{bound:g}", str(bound)))).replace(".", r"\\.")
        return {
            **self.model_dump(),
            "bound": bound,
            "bucket": f',le=~"{forms}"',
            "name": f"{self.measure}_p{self.percentile}_{gate}",
            "title": f"{words}P{self.percentile}",
            "budget": 1 - self.percentile / 100,  # share of requests that may exceed it
        }


class Certified(Record):
    """Results of the passed performance gates on one server."""

    limits: tuple[CertifiedLimit, ...] = ()
    rate: float | None = None  # requests/s
    concurrency: int | None = None  # requests in flight
    hit_rate: float | None = None  # the workload's prefix cache hit rate


@dataclass(frozen=True)
class ExportedVersion:
    """A version whose files, tags and evidence were checked."""

    name: str
    version: str
    deployable: Deployable
    trust_remote_code: bool
    required_tags: dict[str, str]
    ready_seconds: float
    certified: Certified
    policy: Policy
    family: str

    @property
    def engine(self) -> Engine:
        return find_engine(self.deployable.serving.engine)

    @property
    def app(self) -> str:
        """DNS label, equal for all versions."""
        return app_of(self.name)

    @property
    def service(self) -> str:
        return service_of(self.name, self.version)

    @property
    def python(self) -> Path:
        """Interpreter of the judged environment in the image."""
        tuple_ = self.deployable
        key = define(self.engine.environment, tuple_.accelerator).key
        name = folder_name(key, tuple_.serve_environment)
        return environments_folder(IMAGE_HOME) / name / "bin" / "python"

    @property
    def command(self) -> list[str]:
        launch = LaunchSpec(
            model=WEIGHTS,
            arguments=self.deployable.serving.for_engine(),
            trust_remote_code=self.trust_remote_code,
            name=SERVED_NAME,
            host="0.0.0.0",  # noqa: S104 - in a container, with a key
            port=PORT,
        )
        return self.engine.command(str(self.python), launch)

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the server, without its key."""
        caches = {name: f"{CACHES}/{place}" for name, place in VARIABLES.items()}
        own = dict(self.deployable.serving.environment)
        compiler = {}
        if self.deployable.accelerator is Accelerator.CUDA:
            compiler = {"CUDA_HOME": str(cuda_home(self.python, own))}
            own.pop(COMPILES, None)
        return {**caches, **server_environment({}, own, python=self.python), **compiler}

    def rules(self) -> Iterator[dict[str, Any]]:
        """Yield the limits that Prometheus can watch."""
        for limit in self.certified.limits:
            rule = limit.as_rule(self.engine)
            if rule is not None:
                yield rule


@dataclass(frozen=True)
class ExportRequest:
    """One export."""

    version: ExportedVersion
    image: str
    registry: str
    source: str  # a registry, or oci://HOST/REPOSITORY@DIGEST
    canary: str | None = None
    canary_weight: int = 10  # percent
    previous: str | None = None

    @property
    def fetch(self) -> list[str]:
        """Command that pulls the files, unless the volume has them."""
        version = self.version
        where = [f"{version.name}@{version.version}", WEIGHTS, f"--registry={self.source}"]
        if self.source.startswith(("oci://", "hf://")):
            where = [self.source, WEIGHTS]
        required = [f"--require={name}={value}" for name, value in version.required_tags.items()]
        start = ["sh", "-c", f'test -d {WEIGHTS} || exec "$@"', "fetch", "prepare", "pull"]
        return [*start, *where, *required]

    @property
    def shares(self) -> dict[str, int]:
        """Percentage of requests by version."""
        if self.canary is None:
            return {self.version.version: 100}
        return {self.version.version: 100 - self.canary_weight, self.canary: self.canary_weight}


def app_of(name: str) -> str:
    """Return a DNS label, or raise UsageError."""
    label = re.sub("[^a-z0-9]+", "-", name.lower())[:_LONGEST].strip("-")
    if not _NAME.fullmatch(name) or not label[:1].isalpha():
        raise UsageError(
            f"exports cannot use the name {ascii(name)[:100]}",
            where="NAME@ALIAS",
            hint="register it under a name that starts with a letter and has only letters, "
            "digits and . _ - /",
        )
    return label


def service_of(name: str, version: str) -> str:
    """Return the name of one version's server."""
    if not _VERSION.fullmatch(version):
        raise UsageError(
            f"exports cannot use the version {ascii(version)[:100]}",
            where="NAME@ALIAS",
            hint="name a version of letters and digits",
        )
    number = version.lower()
    return f"{app_of(name)}-{number if number[0].isalpha() else f'v{number}'}"
