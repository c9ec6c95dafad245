"""One `prepare tune`: a screening of serving arguments, then one speed gate on its winner.

Each candidate's arguments are added to the best so far, and stay if it is faster. The screening is
no evidence: the best of many equal candidates looks faster than it is. Only the winner's speed gate
against the engine defaults counts: on new server starts and prompts, at its own error rate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from artifacts.evidence.verify import judge_confirmed
from artifacts.run_record import RunReport
from artifacts.tuning_report import ScreeningReport, TuningReport
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.checkpoint.source_info import report_checkpoint
from pipeline.core.errors import ExitCode, ServingError, StageError, UsageError, raise_as
from pipeline.core.events import Progress
from pipeline.core.hardware import this_node
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import write_atomically
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.gpu_fit import spread_over_gpus
from pipeline.plan.machine import Machine, find_driver_fault, find_missing_gpus, machine_of
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.plan.preflight import refuse
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.plan.serving_profile import load_named_profile, refuse_unfit
from pipeline.plan.tuning import (
    SCREENING,
    TunedArm,
    TuningPlanner,
    add_candidate,
    as_profiled,
    claim_gain,
    find_claim,
    first_workload,
    make_defaults,
    misfit,
    skip_reason,
)
from pipeline.run.blocks import measure_blocks
from pipeline.run.recorder import RunRecorder
from pipeline.run.serving import Serving
from pipeline.run.session import RunSession
from pipeline.run.stage_run import StageRunner
from pipeline.stages.speed import SPEED
from recipes.engines import find_engine
from recipes.schema import ServingProfile
from recipes.tuning_candidates import ENGINE_DEFAULTS, load_candidates
from recipes.workload import named_in_full

CODES = {"pass": ExitCode.SUCCESS, "fail": ExitCode.GATES_FAILED, "undecided": ExitCode.UNDECIDED}
PROFILE = "tuned-profile.yaml"
NOT_THERE = "the tuned profile cannot be written there"
ELSEWHERE = "name a file in a folder that exists and that you may write"
STAYS = 1.01  # ratio to the best so far from which a candidate's arguments stay


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
    candidates, node = load_candidates(request.candidates), this_node()
    asked = ModelRequest(
        checkpoint=request.checkpoint,
        recipes=None,
        profile=request.profile,
        policy=request.policy,
        trust_remote_code=request.trust_remote_code,
        promote=False,
        gpus_a_copy=request.gpus_a_copy,
    )
    choices = spread_over_gpus(choose(asked, settings, node), settings)
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
                add_candidate(name, each, defaults)
    except UsageError as error:
        where = f"--candidates {request.candidates}, key {error.where}"
        raise UsageError(error.message, where=where, hint=error.hint) from error
    machine = machine_of(node, settings.store, with_gpu=profile.accelerator == "cuda")
    faults = (find_missing_gpus(profile, machine), find_driver_fault(profile, machine))
    refuse(fault for fault in faults if fault is not None)
    accelerator = Accelerator(profile.accelerator)
    told = {"workload": workload, "candidates": request.candidates, "version": request.version}
    command = {**choices.to_dict(), **told}
    session = RunSession("tune", command, accelerator, settings, progress)

    def work() -> ExitCode:
        stages, environments = session.stages, {"serve", find_engine(profile.engine).environment}
        checkpoint = locate(
            choices, settings, stages.output_of, session.progress, to_quantize=False
        )
        session.log.note_checkpoint(report_checkpoint(checkpoint), choices.name)
        planner = TuningPlanner(
            checkpoint=checkpoint,
            defaults=defaults,
            policy=choices.policy,
            workload=workload,
            candidates=candidates,
            identities={str(e): identity(e, accelerator, settings) for e in environments},
            store=settings.store,
            trust_remote_code=choices.trust_remote_code,
        )
        plan = planner.plan()
        serving = session.serving(plan)
        run = TuningRun(planner, plan, stages, serving, session.log, profile, machine)
        return run.run(request.output)

    return session.run(work)


def check_place(file: Path) -> None:
    """Check that a tuned profile can be written there; raise UsageError, hours before it is."""
    with raise_as(UsageError, NOT_THERE, f"--output {file}", ELSEWHERE):
        is_open = file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)
        if not (is_open and (file.is_file() or not os.path.lexists(file))):
            raise UsageError(NOT_THERE, where=f"--output {file}", hint=ELSEWHERE)


class TuningRun:
    """The screening and the confirmation of one planner.

    Args:
        plan: of the planner.
        profile: as in its file; a candidate itself if it differs from the defaults.
    """

    def __init__(
        self,
        planner: TuningPlanner,
        plan: Plan,
        stages: StageRunner,
        serving: Serving,
        log: RunRecorder,
        profile: ServingProfile,
        machine: Machine,
    ) -> None:
        self._planner = planner
        self._stages = stages
        self._log = log
        self._profile = profile
        self._machine = machine
        self._plan = plan
        self._serving = serving
        self._best, self._rate = planner.defaults, 0.0  # output tokens/s
        claim, served = planner.claim(planner.policy.alpha), planner.defaults.fitted
        self._report = TuningReport(
            workload=claim.name,
            load=claim.workload.model_dump(),
            speed=claim_gain(planner.policy, served, planner.workload).speed,
            served=served.carried_out(),
            engine_defaults=planner.defaults.serving.engine_arguments,
            alpha=planner.policy.alpha,
        )

    def run(self, output: Path | None = None) -> ExitCode:
        """Screen, confirm the winner, write its profile.

        Raises:
            PrepareError: the defaults failed, or the cause is no candidate's.
        """
        defaults = self._planner.defaults
        self._screen(defaults)
        for name, parameter, arm in self._candidates():
            why = arm if isinstance(arm, str) else misfit(arm, self._best)
            if isinstance(arm, str) or why:
                dropped = ScreeningReport(
                    name=name, parameter=parameter, outcome="dropped", reason=why
                )
                self._note(screening=[*self._report.screening, dropped])
            else:
                self._screen(arm)
        if self._best == defaults:
            self._note(verdict="fail", reason="no screened candidate was faster than the defaults")
        else:
            self._confirm(self._best, output)
        return CODES[self._report.verdict or "undecided"]

    def _candidates(self) -> Iterator[tuple[str, str, TunedArm | str]]:
        """Yield name, parameter, and the arm on top of the best so far, or why there is none."""
        profiled = as_profiled(self._profile, self._planner.defaults)
        if profiled.serving != self._planner.defaults.serving:
            yield profiled.name, profiled.parameter, profiled
        for name, candidate in self._planner.candidates.candidates.items():
            why = skip_reason(candidate, self._profile, self._machine)
            try:
                arm = why or add_candidate(name, candidate, self._best)
                if isinstance(arm, TunedArm):
                    arm.fitted  # noqa: B018 - raises where this machine cannot serve so
            except UsageError as error:
                arm = error.message
            yield name, candidate.parameter, arm

    def _screen(self, arm: TunedArm) -> None:
        """Measure one server start; a candidate's failure is recorded, the defaults' raised."""
        variant = self._planner.screen(arm)
        facts: dict[str, Any] = {
            "name": arm.name,
            "parameter": arm.parameter,
            "arguments": arm.serving.for_engine(),
            "changes_outputs": arm.changes_outputs,
        }
        try:
            self._hold(variant)
            spec = variant.stages[f"speed.{SCREENING}"]
            _, loads = self._measured(spec)
            facts |= {"stage": spec.key, "repetitions": len(loads)}
            found = SPEED.parameters_of(spec).rule.evaluate(loads)
            rate = found.estimate
            if found.state != "pass" or rate is None:
                raise ServingError(
                    f"the load is no measurement: {found.why}",
                    where=str(self._stages.store.stage_folder(spec.stage, spec.key)),
                    hint="give the workload other arrivals, more seconds, or another hit_rate",
                )
        except (ServingError, StageError) as error:
            if arm.name == ENGINE_DEFAULTS:
                raise
            self._stages.progress.note(f"{arm.name}: {error}")
            facts |= {"outcome": "failed", "reason": error.message}
        else:
            first = next((e.output_tokens_per_s for e in self._report.screening), None) or rate
            facts |= {"outcome": "measured", "output_tokens_per_s": rate}
            facts["ratio_to_defaults"] = rate / first
            if rate > self._rate * STAYS:
                self._best, self._rate = arm, rate
        self._note(screening=[*self._report.screening, ScreeningReport(**facts)])

    def _confirm(self, winner: TunedArm, output: Path | None) -> None:
        self._stages.progress.note(
            f"{winner.name} was the fastest in the screening; now it is measured "
            "against the defaults, on fresh servers, with other prompts"
        )
        trial = self._planner.trial()
        variant = self._planner.confirm(winner, trial, self._log.run_id)
        self._hold(variant)
        spec = next(spec for spec in variant.stages.values() if spec.stage == SPEED.name)
        found = judge_confirmed(*self._measured(spec))
        self._note(
            winner=winner.name,
            trial=trial,
            confirmation=found,
            stage=spec.key,
            verdict=found.verdict,
            reason=found.reason,
            requires_regate=winner.changes_outputs,
        )
        if found.verdict != "pass":
            return
        file, text = self._log.folder / PROFILE, dump_profile(self._tuned(winner))
        write_atomically(file, text)
        self._note(profile=str(file))
        if output is not None:
            with raise_as(UsageError, NOT_THERE, f"--output {output}", ELSEWHERE):
                write_atomically(output, text)
            self._note(profile=str(output))

    def _hold(self, variant: VariantPlan) -> None:
        stages = self._plan.served_stages(variant, self._stages.find_reusable)
        self._serving.hold(variant, stages)
        measure_blocks(variant, self._plan, self._stages, self._serving)

    def _tuned(self, winner: TunedArm) -> ServingProfile:
        gain = f"tuned for {self._report.workload}: at least {self._report.min_gain or 0:.3f} "
        gain += f"of the defaults' output tokens/s (run {self._log.run_id})"
        name = f"{self._planner.defaults.profile.name}-tuned"
        known = winner.profile.workloads.items()
        return winner.profile.model_copy(
            update={
                **{"name": name, "summary": f"{winner.profile.summary}; {gain}"},
                **{"gpu_name_contains": [], "starts": self._profile.starts},
                "workloads": {name: named_in_full(each) for name, each in known},
            }
        )

    def _measured(self, spec: StageSpec) -> tuple[StageRecord, list[LoadRun]]:
        folder = self._stages.store.stage_folder(spec.stage, spec.key)
        return self._stages.find_finished(spec), read_loads(folder / LOADS)

    def _note(self, **changes: Any) -> None:
        self._report = self._report.model_copy(update=changes)
        self._log.note_tuning(self._report)


def dump_profile(profile: ServingProfile) -> str:
    """Return it as a file for `prepare model --profile`."""
    plain = profile.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
