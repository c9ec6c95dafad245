"""Deployment files of a registered version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from artifacts.deploy.deployment import check_files, find_version, folder_of
from artifacts.deploy.exported import (
    CACHES,
    PORT,
    VOLUME,
    WEIGHTS,
    Certified,
    CertifiedLimit,
    ExportedVersion,
    ExportRequest,
    Measure,
    service_of,
)
from artifacts.deploy.recorded_verdict import (
    RecordedVerdict,
    read_past,
    refuse_changed_tags,
    refuse_code,
)
from artifacts.deployable import Deployable
from artifacts.registry import MANIFEST_TAG, Registry, Version
from eval_gates.speed.report import SpeedGateResult
from eval_gates.speed.rules import SpeedRule
from pipeline.core.errors import StoreError, UsageError, raise_as
from pipeline.core.escape import one_line
from pipeline.core.process_environment import ENDPOINT_KEY
from pipeline.environments.definition import Accelerator
from pipeline.environments.settings import Settings
from pipeline.serving.served_model import SERVED_NAME
from pipeline.stages.speed import ROLE
from recipes.engine_arguments import count_gpus
from recipes.workload import read_pinned

MEASURES: dict[str, Measure] = {"ttft_ms": "ttft", "tpot_ms": "tpot", "latency_ms": "latency"}
TARGETS = ("kubernetes", "argo-rollouts", "litellm", "monitoring")
# Targets that fetch their files from a registry.
FETCHING = ("kubernetes", "argo-rollouts")
POLICY = "/policy/policy.yaml"
# Factor on the measured time of a start: caches are cold, disks are slower.
START_MARGIN = 3
START_MIN_SECONDS = 120
_LOCAL = ("sqlite:", "file:")


def read_version(
    version: Version, weights: Path | None, settings: Settings, *, trust_remote_code: bool = False
) -> ExportedVersion:
    """Return an export's input, checked as in :class:`Deployment`."""
    service_of(version.name, version.version)
    command = "prepare export {reference} --weights FOLDER"
    folder = folder_of(version, weights, settings.store, command)
    check_files(version, folder, settings.digests, public_key=settings.signing.public_key)
    past = read_past(version, folder)
    refuse_changed_tags(version, past)
    if not trust_remote_code:
        refuse_code(version, past)
    past.deployable.check_servable(f"{version.name} version {version.version}")
    _refuse_draft(past.deployable)
    return ExportedVersion(
        name=version.name,
        version=version.version,
        deployable=past.deployable,
        trust_remote_code=past.judged.trust_remote_code,
        required_tags={MANIFEST_TAG: version.tags[MANIFEST_TAG]},
        ready_seconds=past.judged.screen.result.server.ready_seconds,
        certified=certified_by(past),
        policy=past.policy,
        family=past.recipe.family,
    )


def certified_by(past: RecordedVerdict) -> Certified:
    """Return what passed gates on limits showed."""
    limits: list[CertifiedLimit] = []
    rates, concurrencies, hit_rates = [], [], []
    for report in past.bundle.variant.speed:
        measured = past.judged.speed.get(ROLE + report.gate)
        gate = measured.parameters if measured is not None else None
        rule = gate.rule if gate is not None else None
        if gate is None or rule is None or report.verdict != "pass" or rule.kind != "slo":
            continue
        workload = read_pinned(gate.workload)
        hit_rates += [rule.hit_rate] if rule.hit_rate else []
        limits += _limits_of(report, rule)
        arrivals = workload.arrivals
        rates += [arrivals.rate] if arrivals.rate is not None else []
        concurrencies += [arrivals.concurrency] if arrivals.concurrency is not None else []
    return Certified(
        limits=tuple(limits),
        rate=max(rates, default=None),
        concurrency=max(concurrencies, default=None),
        hit_rate=min(hit_rates, default=None),
    )


def write_export(request: ExportRequest, target: str, destination: Path) -> list[Path]:
    """Write the target's files into a new folder."""
    if target in FETCHING and is_of_this_machine(request.source):
        reference = f"{request.version.name}@{request.version.version}"
        raise UsageError(
            "the cluster cannot fetch the files: the registry is on this machine",
            where=request.source,
            hint=f"`prepare push {reference} oci://HOST/REPOSITORY`, then add the address that it "
            "prints: --from oci://HOST/REPOSITORY@sha256:...",
        )
    files = render(request, target)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "the destination is there already, and not empty",
            where=str(destination),
            hint="name a new folder",
        )
    hint = "name a folder that you may write"
    with raise_as(StoreError, "the export cannot be written", str(destination), hint):
        destination.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (destination / name).write_text(text, encoding="utf-8")
    return [destination / name for name in files]


def render(request: ExportRequest, target: str) -> dict[str, str]:
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
    facts = _facts(request)
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
    return [each.replace("$", "$$") for each in value]


def _facts(request: ExportRequest) -> dict[str, Any]:
    version = request.version
    judged, engine, app = version.deployable, version.engine, version.app
    gpu = re.sub("[^A-Za-z0-9._-]+", "-", judged.hardware.gpu or "")[:63].strip("-._")
    is_cuda = judged.accelerator is Accelerator.CUDA
    origin = (
        f"Written by `prepare export` for {version.name} version {version.version}; nothing was "
        "applied.",
        f"Policy {version.policy.name}, deployable tuple {judged.digest}",
    )
    numbers = filter(None, (version.version, request.canary, request.previous))
    policy = version.policy.model_dump(mode="json", exclude_unset=True)
    return {
        "origin": "\n".join(f"# {one_line(line)}" for line in origin),
        "name": version.name,
        "version": version.version,
        "app": app,
        "service": version.service,
        "services": {number: service_of(version.name, number) for number in numbers},
        "shares": request.shares,
        "previous": request.previous,
        "canary_weight": request.canary_weight,
        "digest": judged.digest,
        "image": request.image,
        "port": PORT,
        "volume": VOLUME,
        "caches": CACHES,
        "served_name": SERVED_NAME,
        "fetch": request.fetch,
        "command": version.command,
        "variables": version.variables,
        "key_variable": engine.key_variable,
        "endpoint_key": ENDPOINT_KEY,
        "health": engine.health,
        "ready_seconds": version.ready_seconds,
        "start_seconds": max(START_MARGIN * version.ready_seconds, START_MIN_SECONDS),
        "gpu": gpu,
        "gpus": count_gpus(judged.serving.engine_arguments) if is_cuda else 0,
        "cores": judged.hardware.cores or 1,
        "metrics": {**engine.counters, **engine.monitored},
        "has_drafts": judged.serving.speculative is not None,
        "certified": version.certified,
        "limits": list(version.rules()),
        "policy": yaml.safe_dump(policy, sort_keys=False),
        "gate": [
            *("prepare", "gate", f"--baseline=http://{app}-stable:{PORT}"),
            *(f"--candidate=http://{app}-canary:{PORT}", f"--tokenizer={WEIGHTS}"),
            *(f"--policy={POLICY}", f"--family={version.family}"),
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
    for each in filter(None, (number, previous)):
        service_of(version.name, each)
    return number, previous if previous not in (version.version, number) else None


def _limits_of(report: SpeedGateResult, rule: SpeedRule) -> Iterator[CertifiedLimit]:
    for name, limit in rule.limits.items():
        measure, _, percentile = name.rpartition("_p")
        if measure in MEASURES:
            yield CertifiedLimit(
                gate=report.gate,
                measure=MEASURES[measure],
                percentile=int(percentile),
                seconds=limit / 1000,
            )


def _refuse_draft(judged: Deployable) -> None:
    speculative = judged.serving.speculative
    if speculative is not None and speculative.model is not None:
        raise UsageError(
            "it was judged with a draft model, which no registry has",
            where="speculative.model",
            hint="serve it with `prepare serve --draft-model FOLDER`",
        )
