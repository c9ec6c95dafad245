"""Deployment files of a registered version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml

from artifacts.deploy.registered import (
    RegisteredVersion,
    check_new_folder,
    checked_folder,
    find_version,
    open_version,
)
from artifacts.deployable import Deployable
from artifacts.registry import MANIFEST_TAG, Registry, Version
from pipeline.environments.compile_caches import VARIABLES
from pipeline.environments.cuda_home import cuda_home
from pipeline.environments.definition import define, environments_folder, folder_name
from pipeline.environments.settings import Settings
from pipeline.serving.served_model import SERVED_NAME
from pipeline.stages import speed_role
from prepare.errors import StoreError, UsageError, raise_as
from prepare.escape import one_line
from prepare.own_command import own_command
from prepare.process_environment import ENDPOINT_KEY, server_environment
from prepare.record import Record
from recipes.accelerator import Accelerator
from recipes.engine_arguments import COMPILES, count_gpus
from recipes.engines import Engine, LaunchSpec, find_engine
from recipes.policy import Policy
from recipes.workload import read_pinned

Measure = Literal["ttft", "tpot", "latency"]
MEASURES: dict[str, Measure] = {"ttft_ms": "ttft", "tpot_ms": "tpot", "latency_ms": "latency"}
TARGETS = ("kubernetes", "argo-rollouts", "litellm", "monitoring", "watch")
# Targets that fetch their files from a registry.
FETCHING = ("kubernetes", "argo-rollouts", "watch")
COPIES = ("oci://", "hf://")  # which have no registry
PORT = 8000
# Paths in a container: in the image (`Containerfile`), and of volumes.
IMAGE_HOME = Path("/var/lib/prepare")
VOLUME = "/weights"
WEIGHTS = "/weights/model"
CACHES = "/caches"
POLICY = "/policy/policy.yaml"
# Factor on the measured time of a start: caches are cold, disks are slower.
START_MARGIN = 3
START_MIN_SECONDS = 120
_LOCAL = ("sqlite:", "file:")
# A name becomes part of addresses, labels and units; registries allow more.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._/-]{0,199}")
_VERSION = re.compile(r"[A-Za-z0-9]{1,20}")
_LONGEST = 40  # DNS labels have at most 63 characters


class CertifiedLimit(Record):
    """A latency limit of a passed performance gate."""

    gate: str
    measure: Measure
    percentile: int
    seconds: float

    def as_rule(self, engine: Engine) -> dict[str, Any] | None:
        """Return Prometheus' variables; None if no bucket reaches the limit."""
        bounds = engine.buckets.get(self.measure, ())
        bound = next((bound_s for bound_s in bounds if bound_s >= self.seconds), None)
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
class Export:
    """A version whose files, tags and evidence were checked, and where it goes."""

    name: str
    version: str
    deployable: Deployable
    trust_remote_code: bool
    manifest: str  # digest of the manifest
    ready_seconds: float
    certified: Certified
    policy: Policy
    family: str
    image: str
    source: str  # a registry, or oci://HOST/REPOSITORY@DIGEST
    canary: str | None = None
    canary_weight: int = 10  # percent
    previous: str | None = None

    @property
    def engine(self) -> Engine:
        return find_engine(self.deployable.serving.engine)

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

    @property
    def fetch(self) -> list[str]:
        """Command that pulls the files, unless the volume has them."""
        where = [f"{self.name}@{self.version}", WEIGHTS, f"--registry={self.source}"]
        if self.source.startswith(COPIES):
            where = [self.source, WEIGHTS]
        start = ["sh", "-c", f'test -d {WEIGHTS} || exec "$@"', "fetch", "prepare", "pull"]
        return [*start, *where, f"--require={MANIFEST_TAG}={self.manifest}"]

    @property
    def shares(self) -> dict[str, int]:
        """Percentage of requests by version."""
        if self.canary is None:
            return {self.version: 100}
        return {self.version: 100 - self.canary_weight, self.canary: self.canary_weight}


def read_version(
    version: Version,
    weights: Path | None,
    settings: Settings,
    *,
    trust_remote_code: bool = False,
    image: str | None = None,
    **places: Any,
) -> Export:
    """Return an export, checked as in :class:`Deployment`; `places` are the export's own."""
    service_of(version.name, version.version)
    folder = checked_folder(version, weights, settings, "export")
    past = open_version(version, folder, trust_remote_code=trust_remote_code)
    judged = past.deployable
    judged.check_servable(f"{version.name} version {version.version}")
    if judged.serving.speculative is not None and judged.serving.speculative.model is not None:
        raise UsageError(
            "it was judged with a draft model, which no registry has",
            where="speculative.model",
            hint="serve it with "
            f"`{own_command('serve', f'{version.name}@{version.version}')} --draft-model FOLDER`",
        )
    return Export(
        name=version.name,
        version=version.version,
        deployable=judged,
        trust_remote_code=past.judged.trust_remote_code,
        manifest=version.tags[MANIFEST_TAG],
        ready_seconds=past.judged.sanity.result.server.ready_seconds,
        certified=certified_by(past),
        policy=past.policy,
        family=past.recipe.family,
        image=image or f"prepare:{judged.accelerator.value}",
        **places,
    )


def certified_by(past: RegisteredVersion) -> Certified:
    """Return what passed gates on limits showed."""
    limits: list[CertifiedLimit] = []
    rates = []
    concurrencies = []
    hit_rates = []
    for report in past.bundle.variant.speed:
        measured = past.judged.speed.get(speed_role(report.gate))
        if measured is None or report.verdict != "pass" or measured.parameters.rule.kind != "slo":
            continue
        rule = measured.parameters.rule
        arrivals = read_pinned(measured.parameters.workload).arrivals
        for name, limit in rule.limits.items():
            measure, _, percentile = name.rpartition("_p")
            if measure in MEASURES:
                certified = {"measure": MEASURES[measure], "percentile": int(percentile)}
                limits.append(CertifiedLimit(gate=report.gate, seconds=limit / 1000, **certified))
        hit_rates += [rule.hit_rate] if rule.hit_rate else []
        rates += [arrivals.rate] if arrivals.rate is not None else []
        concurrencies += [arrivals.concurrency] if arrivals.concurrency is not None else []
    return Certified(
        limits=tuple(limits),
        rate=max(rates, default=None),
        concurrency=max(concurrencies, default=None),
        hit_rate=min(hit_rates, default=None),
    )


REACHABLE = "name with --from the address of an MLflow server that the cluster can reach"


def write_export(export: Export, target: str, destination: Path) -> list[Path]:
    """Write the target's files into a new folder."""
    if target in FETCHING and is_of_this_machine(export.source):
        push = own_command("push", f"{export.name}@{export.version}", "oci://HOST/REPOSITORY")
        hint = (
            f"`{push}`, then add the address that it prints: --from "
            "oci://HOST/REPOSITORY@sha256:..."
        )
        raise UsageError(
            "the cluster cannot reach the registry, which is on this machine",
            where=export.source,
            hint=REACHABLE if target == "watch" else hint,
        )
    if target == "watch" and export.source.startswith(COPIES):
        raise UsageError(
            "a check finds its record in a registry, and a copy has none",
            where=f"--from {export.source}",
            hint=REACHABLE,
        )
    files = render(export, target)
    check_new_folder(destination)
    hint = "name a folder that you may write"
    with raise_as(StoreError, "the export cannot be written", str(destination), hint):
        destination.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (destination / name).write_text(text, encoding="utf-8")
    return [destination / name for name in files]


def render(export: Export, target: str) -> dict[str, str]:
    """Return the target's files by name."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("artifacts.deploy"),
        autoescape=False,  # noqa: S701 - YAML, for which the filter `q` is
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(q=quote, literal=_literal, from_yaml=yaml.safe_load)  # noqa: TID251
    facts = _facts(export)
    return {
        name.removeprefix(f"{target}/").removesuffix(".j2"): environment.get_template(name).render(
            facts
        )
        for name in environment.list_templates()
        if name.startswith(f"{target}/") and name.endswith((".yaml.j2", ".json.j2"))
    }


def quote(value: Any) -> str:
    """Return inert YAML on one line."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=10**9).strip()
    return f"[{', '.join(map(quote, value))}]"


def _literal(value: str | list[str]) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    return [item.replace("$", "$$") for item in value]


def _facts(export: Export) -> dict[str, Any]:
    """Return the templates' variables: the export's own, and what follows from them."""
    judged = export.deployable
    engine = export.engine
    app = app_of(export.name)
    is_cuda = judged.accelerator is Accelerator.CUDA
    origin = (
        f"Written by `prepare export` for {export.name} version {export.version}; nothing was "
        "applied.",
        f"Policy {export.policy.name}, deployable tuple {judged.digest}",
    )
    numbers = filter(None, (export.version, export.canary, export.previous))
    policy = export.policy.model_dump(mode="json", exclude_unset=True)
    rules = (limit.as_rule(engine) for limit in export.certified.limits)
    return {
        **vars(export),
        "origin": "\n".join(f"# {one_line(line)}" for line in origin),
        "app": app,
        "service": service_of(export.name, export.version),
        "services": {number: service_of(export.name, number) for number in numbers},
        "shares": export.shares,
        "digest": judged.digest,
        "port": PORT,
        "volume": VOLUME,
        "caches": CACHES,
        "served_name": SERVED_NAME,
        "fetch": export.fetch,
        "command": export.command,
        "variables": export.variables,
        "key_variable": engine.key_variable,
        "endpoint_key": ENDPOINT_KEY,
        "health": engine.health,
        "start_seconds": max(START_MARGIN * export.ready_seconds, START_MIN_SECONDS),
        "gpu": re.sub("[^A-Za-z0-9._-]+", "-", judged.hardware.gpu or "")[:63].strip("-._"),
        "gpus": count_gpus(judged.serving.engine_arguments) if is_cuda else 0,
        "cores": judged.hardware.cores or 1,
        "metrics": {**engine.counters, **engine.monitored},
        "has_drafts": judged.serving.speculative is not None,
        "limits": [rule for rule in rules if rule is not None],
        "policy": yaml.safe_dump(policy, sort_keys=False),
        "watch": [
            *("prepare", "gate", f"--baseline={export.name}@{export.version}"),
            f"--candidate=http://{service_of(export.name, export.version)}:{PORT}",
            *(f"--weights={WEIGHTS}", f"--registry={export.source}"),
        ],
        "gate": [
            *("prepare", "gate", f"--baseline=http://{app}-stable:{PORT}"),
            *(f"--candidate=http://{app}-canary:{PORT}", f"--tokenizer={WEIGHTS}"),
            *(f"--policy={POLICY}", f"--family={export.family}"),
        ],
    }


def is_of_this_machine(source: str) -> bool:
    """Return whether other machines reach something else at this address."""
    if source.startswith("databricks"):
        return False
    if "://" not in source or source.startswith(_LOCAL):
        return True
    host = urlsplit(source).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def other_versions(
    registry: Registry, version: Version, canary: str | None
) -> tuple[str | None, str | None]:
    """Return the canary's version, and the alias' previous version."""
    number = find_version(registry, f"{version.name}@{canary}").version if canary else None
    if number == version.version:
        raise UsageError(
            "the canary is the version itself",
            where=f"--canary {canary}",
            hint="name another version or alias",
        )
    previous = registry.aliases(version.name).get("previous")
    return number, previous if previous not in (version.version, number) else None


def app_of(name: str) -> str:
    """Return a DNS label, equal for all versions, or raise UsageError."""
    label = re.sub("[^a-z0-9]+", "-", name.lower())[:_LONGEST].strip("-")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"exports cannot use the name {ascii(name)[:100]}",
            where="NAME@ALIAS",
            hint="register it under a name that starts with a letter and has only letters, "
            "digits and . _ -",
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
