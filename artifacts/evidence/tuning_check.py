"""Computes the confirmation of a `prepare tune` again from kept loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from artifacts.evidence.load_log_check import find_draw_mismatches
from artifacts.evidence.recompute import UNREADABLE, VariantCheck
from artifacts.evidence.rule_check import find_differing_values, find_other_claim
from artifacts.evidence.source import Evidence
from artifacts.run_record import RunReport
from artifacts.tuning_report import TuningReport
from eval_gates.speed.load_run import LOADS, LoadRun
from eval_gates.speed.report import SpeedGateReport, decide_speed_gate
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from pipeline.core.errors import UsageError
from pipeline.core.stage_record import StageRecord
from pipeline.stages.speed import SPEED


def judge_confirmed(record: StageRecord, loads: Sequence[LoadRun]) -> SpeedGateReport:
    """Judge the blocks of the winner and of the engine's defaults."""
    told = SPEED.parameters_of(record).decided_by
    return decide_speed_gate(
        f"ratio.{told.name}", told.rule, workload=told.name, tier="critical", loads=loads
    )


def check_tuning(report: RunReport, source: Evidence) -> VariantCheck:
    """Check the winner's confirmation; the screening itself has no gate.

    Raises:
        UsageError: the run confirmed nothing.
    """
    tuning = report.tuning
    if tuning is None or tuning.winner is None or tuning.confirmation is None:
        raise UsageError(
            f"run {report.run} measured no winner, so there is nothing to compute",
            where=f"run {report.run}",
            hint="`prepare runs show` has the screening",
        )
    computed: SpeedGateReport | None = None
    differences: list[str] = []
    try:
        record = source.find(SPEED.name, tuning.stage or "")
        if record is None:
            differences.append(f"{source.place(SPEED.name, tuning.stage or '')} is missing")
        else:
            loads = source.loads(SPEED.name, record.key)
            differences += _find_changed(tuning, record, loads, source)
            computed = judge_confirmed(record, loads)
    except UNREADABLE as error:
        differences.append(f"the verdict cannot be computed: {error}")
    if computed is not None:
        kept = tuning.confirmation.model_dump()
        differences += find_differing_values("", kept, computed.model_dump())
        if tuning.verdict != computed.verdict:
            differences.append(f"verdict: kept {tuning.verdict}, computed {computed.verdict}")
    verdict = computed.verdict if computed else None
    return VariantCheck(tuning.winner, tuning.verdict or "none", verdict, 0, tuple(differences))


def _find_changed(
    tuning: TuningReport,
    record: StageRecord,
    loads: Sequence[LoadRun],
    source: Evidence,
) -> Iterator[str]:
    place = source.place(SPEED.name, record.key)
    if source.key_of(record) != record.key:
        yield f"{place}: its parameters do not give its key, so they were changed afterwards"
    kept = SPEED.typed(record)
    if source.digest(SPEED.name, record.key, LOADS) != kept.result.loads_digest:
        yield f"{place}/{LOADS}: the timings are not those that were measured"
    asked = kept.parameters
    if not isinstance(asked.rule, ThroughputRatioRule) or asked.rule.min_ratio != 1.0:
        yield f"{place}: it is no gate on a gain over the defaults"
    if asked.sides["baseline"].serving.engine_arguments != tuning.engine_defaults:
        yield f"{place}: its baseline is not that of this run"
    trial = tuning.trial
    if trial is None or trial.alpha != tuning.alpha:
        yield f"{place}: its trial is not known, or has another error rate"
        return
    yield from find_draw_mismatches(place, record, loads)
    (claim,), own = tuning.speed.claims, tuning.speed.workloads
    level = trial.level
    yield from find_other_claim(place, asked.decided_by, claim, own, tuning.served, level)
