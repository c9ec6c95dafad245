"""Computes the confirmation of a tuning again from its recorded loads."""

from __future__ import annotations

from artifacts.evidence.differences import UNREADABLE, VariantCheck, find_differing_values
from artifacts.evidence.recompute import key_of
from artifacts.evidence.recorded_loads import find_draw_mismatches, judge_confirmed
from artifacts.run_record import RunReport
from eval_gates.speed.load_run import LOADS
from eval_gates.speed.rules import build_rule
from pipeline.stages.evidence import Evidence, place_of
from pipeline.stages.speed import SPEED
from prepare.digest import digest_file
from prepare.errors import UsageError
from prepare.own_command import own_command
from prepare.stage import StageReference
from prepare.store import Store
from recipes.workload import read_pinned


def check_tuning(report: RunReport, store: Store) -> VariantCheck:
    """Check a tuning's confirmation; the screening has no gate."""
    tuning = report.tuning
    if tuning is None or tuning.winner is None or tuning.confirmation is None:
        raise UsageError(
            f"run {report.run} measured no winner, so there is nothing to compute",
            where=f"run {report.run}",
            hint=f"`{own_command('runs', 'latest')}` has the screening",
        )
    key = tuning.stage or ""
    computed = None
    place = place_of(StageReference(stage=SPEED.name, key=key))
    differences: list[str] = []
    try:
        record = store.find(SPEED.name, key)
        if record is None:
            raise LookupError(f"{place} is missing")
        inputs = Evidence(store, {"speed": record.as_reference()})
        loads = inputs.loads("speed")
        asked = SPEED.parameters_of(record)
        file = store.stage_folder(SPEED.name, key) / LOADS
        (gate,) = tuning.speed.gates
        workload = read_pinned(asked.workload)
        level = tuning.trial.level if tuning.trial is not None else tuning.alpha
        served = tuning.served
        rule = build_rule(gate, level, served.accelerator if served else None, workload, served)
        timings = digest_file(file)
        defaults = asked.sides["baseline"].serving.engine_arguments
        trial = tuning.trial
        faults = {
            "its parameters do not give its key": key_of(record) != key,
            f"{LOADS}: the timings are not those that were measured": (
                timings != SPEED.result_of(record).loads_digest
            ),
            "measured by another rule than the tuning's": asked.rule != rule,
            "its baseline is not that of this run": defaults != tuning.engine_defaults,
            "its trial is not known, or has another error rate": (
                trial is None or trial.alpha != tuning.alpha
            ),
        }
        differences += [f"{place}: {words}" for words, is_fault in faults.items() if is_fault]
        differences += find_draw_mismatches(place, record, loads)
        computed = judge_confirmed(record, loads)
        kept = tuning.confirmation.model_dump()
        differences += find_differing_values("", kept, computed.model_dump())
        if tuning.verdict != computed.verdict:
            differences.append(f"verdict: kept {tuning.verdict}, computed {computed.verdict}")
    except UNREADABLE as error:
        differences.append(f"the verdict cannot be computed: {error}")
    verdict = computed.verdict if computed is not None else None
    return VariantCheck(tuning.winner, tuning.verdict or "none", verdict, 0, tuple(differences))
