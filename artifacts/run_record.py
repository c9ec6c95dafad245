"""The record of a run, which `--json` prints, and its reader."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from artifacts.recheck_report import RecheckReport
from artifacts.requests import (
    GateRequest,
    ModelRequest,
    RecheckRequest,
    RequestKind,
    TuneRequest,
)
from eval_gates.engine_metrics import SpecDecodeStats
from eval_gates.gate_result import Side, Verdict, not_shown
from eval_gates.quality_result import QualityResult
from eval_gates.speed.report import SpeedGateResult
from eval_gates.statistics.effect import Effect
from pipeline.stages.attempts import History, Trial
from pipeline.stages.verdict import JUDGE, AnyGate, JudgeResult
from prepare.errors import StoreError, UsageError
from prepare.record import Record
from prepare.store import RUN_RECORD, RunFolders, Store, is_alive
from prepare.untrusted import read_record
from recipes.checkpoints.source_info import SourceInfo
from recipes.schema import ServingProfile
from recipes.speed import SpeedPolicy

RUN_ID = "%Y%m%d-%H%M%S-%f"
_DATED = re.compile(r"\d{8}-\d{6}-\d{6}")


class ScreeningReport(Record):
    """Result of one candidate; its numbers only choose the winner."""

    name: str
    outcome: Literal["measured", "failed", "dropped"] = Field(
        description="failed: it did not start, died, or its loads are no measurement; dropped: it "
        "was not tried"
    )
    reason: str = Field("", description="of all without a measurement, why")
    arguments: dict[str, Any] = Field({}, description="the engine's, as it was served")
    output_tokens_per_s: float | None = Field(None, description="mean of its loads")
    ratio_to_defaults: float | None = Field(
        None, description="ratio to that of the engine's defaults; no evidence"
    )
    stage: str | None = Field(None, description="key of the stage that measured it")


class ScreenedModel(Record):
    """One arm of `prepare model --screen`, which gates nothing."""

    name: str
    weights_bytes: int | None = Field(None, description="None when they were never made")
    effect: Effect | None = Field(
        None, description="what it loses of the baseline's text; None where it was not measured"
    )
    output_tokens_per_s: float | None = Field(None, description="of one load; no evidence")
    stages: dict[str, str] = Field({}, description="keys of what was measured, by stage")
    reason: str = Field("", description="why it was not measured")
    cache: dict[str, str] = Field(
        {}, description="what its engine says of its KV cache: format, bytes a token, tokens"
    )
    is_part: bool = Field(
        False, description="of `--ablate`: what a variant's weights or its KV cache cost alone"
    )

    def is_beaten_by(self, other: ScreenedModel) -> bool:
        """Return whether the other loses and weighs no more, is no slower, and differs."""
        ours = self._figures
        theirs = other._figures
        return all(b <= a for a, b in zip(ours, theirs, strict=True)) and ours != theirs

    @property
    def _figures(self) -> tuple[float, float, float]:
        nats = self.effect.nats if self.effect is not None else math.inf
        return self.weights_bytes or math.inf, nats, -(self.output_tokens_per_s or 0.0)


class TuningReport(Record):
    """A whole `prepare tune`."""

    workload: str = Field(description="its name")
    speed: SpeedPolicy = Field(description="its gate")
    served: ServingProfile = Field(description="profile of the engine's defaults, as applied")
    engine_defaults: dict[str, Any] = Field(
        description="arguments, next to the engine's own defaults"
    )
    screening: list[ScreeningReport] = Field(
        [], fail_fast=True, description="the engine's defaults first"
    )
    winner: str | None = Field(
        None, description="of the screening; None: nothing was faster than the defaults"
    )
    alpha: float = Field(description="error rate of the policy")
    trial: Trial | None = Field(None, description="None while no winner is confirmed")
    confirmation: SpeedGateResult | None = Field(
        None, description="winner against the defaults, on fresh servers"
    )
    stage: str | None = Field(None, description="key of the stage that measured it")
    verdict: Verdict | None = Field(None, description="pass: there is a tuned profile")
    reason: str = ""
    profile: str | None = Field(None, description="file of the tuned profile")

    @property
    def min_gain(self) -> float | None:
        """Lower bound of the gain in output tokens/s; None unless confirmed."""
        return self.confirmation.lower if self.confirmation and self.verdict == "pass" else None


# Ends a variant's reason if another one got the alias.
NOT_PREFERRED = "; registered, but "


SCHEMA_VERSION: Literal[1] = 1

AnyRequest = Annotated[
    ModelRequest | GateRequest | RecheckRequest | TuneRequest, Field(discriminator="kind")
]


class ResolvedOptions(Record):
    """What a request amounts to on this machine, for readers."""

    checkpoint: str = Field(description="what is judged; of `tune`, what is served")
    recipes: tuple[str, ...] = Field((), description="names of the variants")
    profile: str = Field("", description="name of the profile; of `gate`, how both are served")
    policy: str = Field("", description="name of the policy")
    name: str | None = Field(None, description="name in the registry")
    gpus_a_copy: int | None = None
    cpu_overrides: dict[str, str] = Field({}, description="reasons for other arguments, by name")
    kv_cache_note: str | None = None
    speculation: str = ""
    asked_by: str = Field("", description="how endpoints are asked, unless by token ids")
    attempted: tuple[str, ...] = Field((), description="variants that were tried together")
    changed: tuple[str, ...] = Field((), description="of `recheck`: changes of the tuple")
    workload: str = Field("", description="of `tune`")


StageStatus = Literal["ran", "reused", "failed", "interrupted"]


class VariantReport(Record):
    """Result of one recipe."""

    recipe: str
    weights_bytes: int | None = Field(description="None when it was never made")
    verdict: Verdict | Literal["error", "skipped"] = Field(
        description="skipped: it was not asked, since a larger one did not pass (--until pass)"
    )
    reason: str = Field(description="why, in words; for an error: message, where and hint")
    p_value: float | None = Field(
        None, description="of 'worse than allowed', the largest of its gates'; None if not judged"
    )
    history: History | None = Field(
        None, description="what was judged against this baseline before; None if not judged"
    )
    promoted: bool
    registry_version: str | None = Field(None, description="when it was registered")
    gates: list[AnyGate] = Field(
        fail_fast=True, description="in the policy's order: quality, speed, cost"
    )
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {},
        description="what speculative decoding drafted and had accepted, by suite; "
        "empty without it",
    )

    @property
    def not_shown(self) -> str:
        """Gates that its pass says nothing of; else ''."""
        return not_shown(self.gates) if self.verdict == "pass" else ""

    @property
    def short_verdict(self) -> str:
        """The verdict, with the names of gates that its pass does not wholly show."""
        others = [gate.name for gate in self.gates if gate.is_doubtful or gate.doubts]
        if self.verdict != "pass" or not others:
            return self.verdict
        return f"pass (not shown: {', '.join(others)})"

    @property
    def quality(self) -> list[QualityResult]:
        """The gates on suites."""
        return [gate for gate in self.gates if isinstance(gate, QualityResult)]

    @property
    def speed(self) -> list[SpeedGateResult]:
        """The performance gates."""
        return [gate for gate in self.gates if isinstance(gate, SpeedGateResult)]

    def rate(self, side: Side) -> float | None:
        """Return a side's median output tokens/s, if measured."""
        return next((gate.typical(side) for gate in self.speed if gate.is_ratio), None)


def report_judged(recipe: str, weights: int | None, judged: JudgeResult) -> VariantReport:
    """Return a judged variant's report before promotion."""
    return VariantReport(recipe=recipe, weights_bytes=weights, promoted=False, **dict(judged))


def report_unjudged(
    recipe: str, verdict: Literal["fail", "error", "skipped"], reason: str, weights: int | None
) -> VariantReport:
    """Return the report of a variant without gates."""
    return VariantReport(
        recipe=recipe,
        weights_bytes=weights,
        verdict=verdict,
        reason=reason,
        promoted=False,
        p_value=None,
        registry_version=None,
        gates=[],
    )


class StageReport(Record):
    """Result of one stage of a run."""

    name: str = Field(description="for people: the stage, of a suite with suite and round")
    stage: str = Field(description="as the store names it; 'serve' is none of its stages")
    variant: str
    status: StageStatus
    seconds: float = Field(description="wall time; of a reused stage, to find it")
    key: str | None = Field(
        pattern=r"^[0-9A-Za-z]{1,64}$",
        description="in the store; None for 'serve', which has no output",
    )


class RunReport(Record):
    """A whole run, in run.json and for `--json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run: str = Field(description="id of the run")
    status: Literal["running", "finished", "failed", "interrupted", "killed"] = Field(
        description="killed: it ended without an outcome, by SIGKILL or on a full disk"
    )
    exit_code: int | None
    started: str
    seconds: float
    request: AnyRequest = Field(description="options as given, with the defaults that applied")
    resolved: ResolvedOptions
    checkpoint: SourceInfo | None
    registered_name: str | None = Field(None, description="name in the model registry")
    moves_before: int = Field(
        0, description="number of the name's last move in the registry, as the run began"
    )
    variants: list[VariantReport]
    stages: list[StageReport]
    running: list[str] = Field(
        [], description="variant and name of the stages that run now, or follow on one server"
    )
    notes: list[str] = Field(description="the notes that were reported")
    recheck: RecheckReport | None = Field(None, description="of `prepare recheck`")
    tuning: TuningReport | None = Field(None, description="of `prepare tune`")
    screened: list[ScreenedModel] = Field(
        [], fail_fast=True, description="of `prepare model --screen`, the baseline first"
    )
    error: dict[str, str] | None = Field(None, description="of a run that failed as a whole")

    @property
    def kind(self) -> RequestKind:
        """The command that made it."""
        return self.request.kind

    @property
    def registry(self) -> str | None:
        """The registry that the user named, if any."""
        return self.request.registry

    @property
    def attempted(self) -> tuple[str, ...]:
        """Variants that were tried together; a recheck measures one of them."""
        tried = self.resolved.attempted or self.resolved.recipes
        return tuple(dict.fromkeys([*tried, *(variant.recipe for variant in self.variants)]))

    @property
    def judges(self) -> dict[str, str]:
        """Keys of judge stages by recipe."""
        return {
            stage.variant: str(stage.key)
            for stage in self.stages
            if stage.stage == JUDGE.name and stage.status in ("ran", "reused")
        }


def read_run(folder: Path) -> RunReport:
    """Return a folder's record; StoreError if it is missing or damaged."""
    path = folder / RUN_RECORD
    try:
        report = read_record(path, RunReport)
        return report if report.status != "running" else _as_it_is_now(report, folder)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise StoreError(f"a run's record cannot be read: {error}", where=str(path)) from error


def _as_it_is_now(report: RunReport, folder: Path) -> RunReport:
    if not is_alive(folder):
        return report.model_copy(update={"status": "killed"})
    passed = datetime.now(UTC) - datetime.fromisoformat(report.started)
    return report.model_copy(update={"seconds": max(report.seconds, passed.total_seconds())})


def folders_by_start(store: Store) -> list[Path]:
    """Return the runs' folders, the newest last; a run may have a name of the user's."""
    return sorted(RunFolders(store).all(), key=_start_of)


def _start_of(folder: Path) -> str:
    """Return when a run began, as ids have it, or when its folder changed if no record tells."""
    if _DATED.fullmatch(folder.name):
        return folder.name
    try:
        started = datetime.fromisoformat(read_run(folder).started)
    except (StoreError, ValueError):
        started = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    return started.astimezone(UTC).strftime(RUN_ID)


def find_run(store: Store, name: str, *, judged: bool = False) -> RunReport:
    """Return the run of an id, a prefix or 'latest'.

    With `judged`, 'latest' is the last run that judged a variant, if any.
    """
    folders = folders_by_start(store)
    if not folders:
        raise UsageError(
            "there is no run here yet",
            where=str(store.root / "runs"),
            hint="make one (prepare model demo:smollm2-135m), or name another store with --store",
        )
    if name == "latest" and judged:
        for folder in reversed(folders):
            report = read_run(folder)  # an unreadable one may be the last that was judged
            if any(variant.gates for variant in report.variants) or report.tuning:
                return report
    matching = folders[-1:] if name == "latest" else [f for f in folders if f.name.startswith(name)]
    if len(matching) != 1:
        known = ", ".join(folder.name for folder in folders[-5:])
        raise UsageError(
            f"{'more than one run starts' if matching else 'no run starts'} with '{name}'",
            where=str(store.root / "runs"),
            hint=f"the newest runs: {known}; or 'latest'",
        )
    return read_run(matching[0])
