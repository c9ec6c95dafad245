"""One `prepare tune`: a screening of serving arguments, then one confirmation of the winner.

The screening is no evidence: the best of many equal candidates looks faster than it is. Only the
winner's speed gate against the engine defaults counts: on new server starts and prompts, at its own
error rate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from artifacts.evidence.verify import judge_confirmed
from artifacts.run_record import RunReport
from artifacts.tuning_report import ScreeningReport, TuningReport
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from eval_gates.speed.screening import ScreeningRule
from pipeline.checkpoint.folder import Checkpoint
from pipeline.checkpoint.source_info import report_checkpoint
from pipeline.core.errors import (
    CheckpointError,
    ExitCode,
    ServingError,
    StageError,
    UsageError,
    raise_as,
)
from pipeline.core.events import Progress
from pipeline.core.hardware import this_node
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import write_atomically
from pipeline.environments.environment import Accelerator
from pipeline.environments.settings import Settings
from pipeline.inspection.header_source import read_folder
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.gpu_fit import spread_over_gpus
from pipeline.plan.machine import Machine, find_driver_fault, find_missing_gpus, machine_of
from pipeline.plan.memory import Model
from pipeline.plan.plan import VariantPlan
from pipeline.plan.preflight import refuse
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.plan.serving_profile import load_named_profile, refuse_unfit
from pipeline.plan.tuning_fit import misfit, skip_reason
from pipeline.plan.tuning_plan import (
    SCREENING,
    ScreeningCandidate,
    TuningPlanner,
    find_claim,
    first_workload,
    identities_of,
    list_candidates,
    make_defaults,
    make_profiled,
    make_screened,
)
from pipeline.run.recorder import RunRecorder
from pipeline.run.serving import Serving
from pipeline.run.session import RunSession
from pipeline.run.stage_run import StageRunner
from pipeline.stages.speed import SPEED
from recipes.schema import ServingProfile
from recipes.tuning_candidates import (
    AS_PROFILED,
    COMBINED,
    ENGINE_DEFAULTS,
    ServingCandidate,
    combine,
    load_candidates,
)
from recipes.workload import named_in_full

CODES = {"pass": ExitCode.SUCCESS, "fail": ExitCode.GATES_FAILED, "undecided": ExitCode.UNDECIDED}
PROFILE = "tuned-profile.yaml"
NOT_THERE = "the tuned profile cannot be written there"
ELSEWHERE = "name a file in a folder that exists and that you may write"


@dataclass(frozen=True)
class TuneRequest:
    """The options of `prepare tune`."""

    checkpoint: str
    policy: str | None
    profile: str
    workload: str | None
    candidates: str
    version: str | None = None  # registered, whose folder the checkpoint is
    trust_remote_code: bool = False
    output: Path | None = None  # further file for the tuned profile
    gpus_a_copy: int | None = None  # as for `prepare model`


def run_tune(request: TuneRequest, settings: Settings, progress: Progress) -> RunReport:
    """Screen, confirm, and write a profile if a gain is confirmed.

    Returns:
        the report, whose `exit_code` is 0 for a tuned profile, 4 for no gain, 5 for undecided.

    Raises:
        PrepareError: the request itself is invalid, so there is no run.
    """
    if request.output is not None:
        check_place(request.output)
    candidates = load_candidates(request.candidates)
    node = this_node()
    choices = choose(
        ModelRequest(
            checkpoint=request.checkpoint,
            recipes=None,
            profile=request.profile,
            policy=request.policy,
            name=None,
            registry=None,
            eval_data=None,
            trust_remote_code=request.trust_remote_code,
            promote=False,
            gpus_a_copy=request.gpus_a_copy,
        ),
        settings,
        node,
    )
    choices = spread_over_gpus(choices, settings)
    profile = choices.profile
    if profile.accelerator == "cpu":  # unfitted, for any CPU
        profile = load_named_profile(request.profile, node)
    refuse_unfit(profile, request.profile)  # it would win
    defaults = make_defaults(profile, candidates, node)
    workload = request.workload or first_workload(choices.policy)
    find_claim(choices.policy, defaults.fitted, workload, choices.policy.alpha)
    try:
        for name, each in candidates.candidates.items():
            if each.accelerator in (None, profile.accelerator):
                make_screened(name, each, defaults)
    except UsageError as error:
        where = f"--candidates {request.candidates}, key {error.where}"
        raise UsageError(error.message, where=where, hint=error.hint) from error
    machine = machine_of(node, settings.store, with_gpu=profile.accelerator == "cuda")
    faults = (find_missing_gpus(profile, machine), find_driver_fault(profile, machine))
    refuse(fault for fault in faults if fault is not None)
    command = {
        **choices.to_dict(),
        **{"workload": workload, "candidates": request.candidates, "version": request.version},
    }
    accelerator = Accelerator(profile.accelerator)
    session = RunSession("tune", command, accelerator, settings, progress)

    def work() -> ExitCode:
        checkpoint = locate(
            choices, settings, session.stages.output_of, session.progress, to_quantize=False
        )
        session.log.note_checkpoint(report_checkpoint(checkpoint), choices.name)
        planner = TuningPlanner(
            checkpoint=checkpoint,
            engine_defaults=defaults,
            policy=choices.policy,
            workload=workload,
            candidates=candidates,
            identities=identities_of(profile, settings),
            store=settings.store,
            trust_remote_code=choices.trust_remote_code,
        )
        found = _model_of(checkpoint)
        serving = session.serving(planner.plan())
        tuning = TuningRun(planner, session.stages, serving, session.log, profile, machine, found)
        return tuning.run(request.output)

    return session.run(work)


def check_place(file: Path) -> None:
    """Check that a tuned profile can be written there; raise UsageError, hours before it is."""
    with raise_as(UsageError, NOT_THERE, f"--output {file}", ELSEWHERE):
        is_open = file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)
        if not (is_open and (file.is_file() or not os.path.lexists(file))):
            raise UsageError(NOT_THERE, where=f"--output {file}", hint=ELSEWHERE)


def _model_of(checkpoint: Checkpoint) -> Model | None:
    try:
        return Model.of(read_folder(checkpoint.path))
    except CheckpointError:
        return None


class TuningRun:
    """The screening and the confirmation of one planner.

    Args:
        profile: as in its file; a candidate itself if it differs from the defaults.
        model: of the checkpoint; None if its shape is unknown.
    """

    def __init__(
        self,
        planner: TuningPlanner,
        stages: StageRunner,
        serving: Serving,
        log: RunRecorder,
        profile: ServingProfile,
        machine: Machine,
        model: Model | None = None,
    ) -> None:
        self._planner = planner
        self._stages = stages
        self._log = log
        self._profile = profile
        self._machine = machine
        self._model = model
        self._plan = planner.plan()
        self._asking = serving
        claim = planner.claim(planner.policy.alpha)
        claimed = planner.claimed()
        self._report = TuningReport(
            workload=claim.name,
            load=claim.workload.model_dump(),
            speed=claimed.speed,
            served=planner.engine_defaults.fitted.carried_out(),
            engine_defaults=planner.engine_defaults.serving.engine_arguments,
            alpha=planner.policy.alpha,
        )
        self._screened: dict[str, ScreeningCandidate] = {ENGINE_DEFAULTS: planner.engine_defaults}

    def run(self, output: Path | None = None) -> ExitCode:
        """Screen, confirm the winner, write its profile.

        Raises:
            PrepareError: the defaults failed, or the cause is no candidate's.
        """
        self._screen(self._planner.engine_defaults)
        wanted = list_candidates(
            self._planner.candidates, self._profile, self._planner.engine_defaults
        )
        for name, candidate in wanted:
            self._enter(name, candidate)
        self._race_combined()
        winner = self._find_winner()
        if winner is None:
            self._note(verdict="fail", reason="no screened candidate was faster than the defaults")
        else:
            self._confirm(winner, output)
        return CODES[self._report.verdict or "undecided"]

    def _enter(self, name: str, candidate: ServingCandidate | None, parameter: str = "") -> None:
        """Screen it, or record why not; `lever` replaces the candidate's own."""
        defaults = self._planner.engine_defaults
        parameter = parameter or (candidate.parameter if candidate else AS_PROFILED)
        if candidate and (why := skip_reason(candidate, self._profile.accelerator, self._machine)):
            self._drop(name, parameter, why)
            return
        try:
            screened = (
                make_screened(name, candidate, defaults)
                if candidate
                else make_profiled(self._profile, defaults)
            )
            why = misfit(screened, defaults, self._model)
        except UsageError as error:  # this machine cannot serve so
            why = error.message
        if why:
            self._drop(name, parameter, why)
        else:
            self._screen(replace(screened, parameter=parameter))

    def _drop(self, name: str, parameter: str, reason: str) -> None:
        self._add(ScreeningReport(name=name, parameter=parameter, outcome="dropped", reason=reason))

    def _screen(self, screened: ScreeningCandidate) -> None:
        """Measure one server start.

        A candidate's failure is recorded, the defaults' ends the run.
        """
        best = max((e.output_tokens_per_s or 0.0 for e in self._report.screening), default=0.0)
        variant = self._planner.screen(screened, best or None)
        facts: dict[str, Any] = {
            "name": screened.name,
            "parameter": screened.parameter,
            "arguments": screened.serving.for_engine(),
            "changes_outputs": screened.changes_outputs,
        }
        self._screened[screened.name] = screened
        try:
            self._ask(variant)
        except (ServingError, StageError) as error:
            if screened.name == ENGINE_DEFAULTS:
                raise
            self._stages.progress.note(f"{screened.name}: {error}")
            self._add(ScreeningReport(**facts, outcome="failed", reason=error.message))
            return
        spec = variant.stages[f"speed.{SCREENING}"]
        _, loads = self._measured(spec)
        self._add(self._judge_race(facts, spec, loads))

    def _judge_race(
        self, facts: dict[str, Any], spec: StageSpec, loads: Sequence[LoadRun]
    ) -> ScreeningReport:
        rule = SPEED.parameters_of(spec).rule
        assert isinstance(rule, ScreeningRule)
        state, found = rule.state(loads), {"stage": spec.key, "repetitions": len(loads)}
        if state == "invalid":
            why = str(rule.invalid_reasons(loads)[0])
            if facts["name"] == ENGINE_DEFAULTS:
                raise ServingError(
                    f"the engine's defaults cannot be measured under this load: {why}",
                    where=str(self._stages.store.stage_folder(spec.stage, spec.key)),
                    hint="give the workload other arrivals, more seconds, or another hit_rate",
                )
            return ScreeningReport(**facts, **found, outcome="invalid", reason=why)
        rate = rule.typical_rate(loads)
        defaults = next((e.output_tokens_per_s for e in self._report.screening), None) or rate
        is_pruned = state == "pruned"
        return ScreeningReport(
            **facts,
            **found,
            outcome="pruned" if is_pruned else "measured",
            reason=f"more than {100 * rule.prune_margin:g} % behind the leader"
            if is_pruned
            else "",
            output_tokens_per_s=rate,
            ratio_to_defaults=rate / defaults,
        )

    def _race_combined(self) -> None:
        """Screen the best value of each lever together, if several beat the defaults."""
        best: dict[str, ScreeningReport] = {}
        known = self._planner.candidates.candidates
        for each in self._report.screening:
            if (
                each.name in known
                and each.outcome == "measured"
                and (each.ratio_to_defaults or 0) > 1
            ):
                before = best.get(each.parameter)
                if before is None or (each.ratio_to_defaults or 0) > (
                    before.ratio_to_defaults or 0
                ):
                    best[each.parameter] = each
        if len(best) > 1:
            together = combine(known[each.name] for each in best.values())
            self._enter(COMBINED, together, " and ".join(best))

    def _find_winner(self) -> ScreeningCandidate | None:
        """Return the fastest candidate; None if the defaults are the fastest."""
        measured = [each for each in self._report.screening if each.outcome == "measured"]
        best = max(measured, key=lambda each: each.output_tokens_per_s or 0.0)
        return None if best.name == ENGINE_DEFAULTS else self._screened[best.name]

    def _confirm(self, winner: ScreeningCandidate, output: Path | None) -> None:
        self._stages.progress.note(
            f"{winner.name} was the fastest in the screening; now it is measured "
            "against the defaults, on fresh servers, with other prompts"
        )
        trial = self._planner.trial()
        variant = self._planner.confirm(winner, trial, self._log.run_id)
        self._ask(variant)
        spec = next(spec for spec in variant.stages.values() if spec.stage == SPEED.name)
        record, loads = self._measured(spec)
        found = judge_confirmed(record, loads)
        self._note(
            winner=winner.name,
            trial=trial,
            confirmation=found,
            stage=spec.key,
            verdict=found.verdict,
            reason=found.reason,
            requires_regate=winner.changes_outputs,
        )
        if found.verdict == "pass":
            file = self._log.folder / PROFILE
            text = dump_profile(self._tuned(winner))
            write_atomically(file, text)
            self._note(profile=str(file))
            if output is not None:
                with raise_as(UsageError, NOT_THERE, f"--output {output}", ELSEWHERE):
                    write_atomically(output, text)
                self._note(profile=str(output))

    def _ask(self, variant: VariantPlan) -> None:
        self._asking.hold(variant, self._plan.served_stages(variant, self._stages.find_reusable))

    def _tuned(self, winner: ScreeningCandidate) -> ServingProfile:
        gain = f"tuned for {self._report.workload}: at least {self._report.min_gain or 0:.3f} "
        gain += f"of the defaults' output tokens/s (run {self._log.run_id})"
        name = f"{self._planner.engine_defaults.profile.name}-tuned"
        summary = f"{winner.profile.summary}; {gain}"
        known = winner.profile.workloads.items()
        return winner.profile.model_copy(
            update={
                **{"name": name, "summary": summary, "gpu_name_contains": []},
                "starts": self._profile.starts,
                "workloads": {name: named_in_full(each) for name, each in known},
            }
        )

    def _measured(self, spec: StageSpec) -> tuple[StageRecord, list[LoadRun]]:
        folder = self._stages.store.stage_folder(spec.stage, spec.key)
        return self._stages.find_finished(spec), read_loads(folder / LOADS)

    def _add(self, report: ScreeningReport) -> None:
        self._note(screening=[*self._report.screening, report])

    def _note(self, **changes: Any) -> None:
        self._report = self._report.model_copy(update=changes)
        self._log.note_tuning(self._report)


def dump_profile(profile: ServingProfile) -> str:
    """Return it as a file for `prepare model --profile`."""
    plain = profile.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
