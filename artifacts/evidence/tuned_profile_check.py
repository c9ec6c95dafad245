"""Compares a profile's key `tuned` with the run that measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from artifacts.evidence.verify import Evidence, check_tuning
from artifacts.run_loader import read_run
from artifacts.tuning_report import TuningReport
from pipeline.core.errors import PrepareError
from pipeline.core.run_folders import RunFolders
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.speed import SPEED
from recipes.engines import options
from recipes.schema import TuningProvenance


@dataclass(frozen=True)
class TunedProfileCheck:
    """Result for a profile's tuning."""

    state: Literal["checked", "not checked", "differs"]
    why: str = ""

    @property
    def words(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state


def tuned_of(run: str, tuning: TuningReport, record: StageRecord) -> TuningProvenance:
    """Return what a run has confirmed about its winner.

    Args:
        run: its id.
        tuning: that passed.
        record: of the stage that compared the winner with the defaults.

    Raises:
        ValueError: the run confirmed nothing.
        EvidenceError: prepare did not write the record.
    """
    found, kept = tuning.confirmation, SPEED.typed(record)
    if found is None or found.lower is None or found.estimate is None:
        raise ValueError(f"run {run} confirmed no gain")
    served = kept.parameters.sides["candidate"]
    return TuningProvenance(
        min_gain=found.lower,
        gain=found.estimate,
        alpha=found.alpha,
        workload=found.workload,
        engine_defaults=list(options(tuning.engine_defaults)),
        checkpoint=served.checkpoint,
        hardware=served.hardware,
        run=run,
        evidence=kept.result.loads_digest,
        requires_regate=tuning.requires_regate,
    )


def check_tuned(
    told: TuningProvenance, serving: ServingArguments | None, store: Store
) -> TunedProfileCheck:
    """Compare a tuning with the run's record, and the record with every request's timings.

    Args:
        told: by a profile.
        serving: of its variants; None on another machine, which may change arguments.
        store: that may contain the run.
    """
    folder = next((each for each in RunFolders(store).all() if each.name == told.run), None)
    if folder is None:
        return TunedProfileCheck("not checked", f"run {told.run} is not in this store")
    try:
        report = read_run(folder)
        tuning = report.tuning
        if tuning is None or tuning.verdict != "pass":
            return TunedProfileCheck("differs", f"run {told.run} confirmed no gain")
        record = store.find(SPEED.name, tuning.stage or "")
        if record is None:
            return TunedProfileCheck("not checked", f"what run {told.run} measured is gone")
        differences = list(check_tuning(report, Evidence(store)).differences)
        if differences:
            return TunedProfileCheck(
                "differs", f"run {told.run} does not hold itself: {differences[0]}"
            )
        found = tuned_of(report.run, tuning, record)
    except (PrepareError, ValueError, LookupError) as error:
        return TunedProfileCheck("not checked", f"run {told.run} cannot be read: {error}")
    said_of_all = told.model_dump()
    for key, wanted in found.model_dump().items():
        if (said := said_of_all[key]) != wanted:
            return TunedProfileCheck("differs", f"{key} is {said}, run {told.run} says {wanted}")
    measured = SPEED.parameters_of(record).sides["candidate"].serving
    if serving not in (None, measured):
        return TunedProfileCheck("differs", f"run {told.run} measured other serving arguments")
    return TunedProfileCheck("checked")
