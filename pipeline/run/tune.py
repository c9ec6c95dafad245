"""One `prepare tune`: a screening, then one speed gate on its winner.

Each candidate is added to the best so far, and stays if faster. The screening is no evidence: the
best of equal candidates looks faster. The gate has new starts and prompts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from artifacts.evidence.recorded_loads import judge_confirmed
from artifacts.requests import ModelRequest, TuneRequest
from artifacts.run_record import RunReport, ScreeningReport, TuningReport
from pipeline.environments.definition import LOAD_GENERATOR, SUITE_ASKER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.build import Builder
from pipeline.plan.choice import choose
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.locator import Locator
from pipeline.plan.model_plan import served_arm
from pipeline.plan.plan import Arm, Plan, PlanProgress
from pipeline.plan.screening_plan import load_stage
from pipeline.plan.serving_profile import fit_profile, load_named_profile, refuse_unfit
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.plan.tuned_arm import TunedArm, add_candidate, gain_policy, make_defaults
from pipeline.preflight.gpu_fit import spread_over_gpus
from pipeline.preflight.machine import Machine, find_driver_fault, find_missing_gpus, machine_of
from pipeline.preflight.survey import refuse
from pipeline.run.run import Run
from pipeline.run.screening import measure_arm
from pipeline.run.servers import Servers
from pipeline.stages import FIRST_TEXTS, speed_role
from pipeline.stages.speed import SPEED, count_starts
from prepare.errors import ExitCode, ServingError, StageError, UsageError, raise_as
from prepare.events import Progress
from prepare.hardware import NodeInfo, this_node
from prepare.private_files import write_atomically
from recipes.catalog import BASELINE
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.source_info import describe_source
from recipes.engine_arguments import (
    count_gpus,
)
from recipes.engines import find_engine
from recipes.policy import Policy
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import Recipe, ServingProfile
from recipes.tuning_candidates import (
    AS_PROFILED,
    CandidateFile,
    ServingCandidate,
    load_candidates,
)
from recipes.workload import named_in_full

CODES = {"pass": ExitCode.SUCCESS, "fail": ExitCode.GATES_FAILED, "undecided": ExitCode.UNDECIDED}
PROFILE = "tuned-profile.yaml"
NOT_THERE = "the tuned profile cannot be written there"
ELSEWHERE = "name a file in a folder that exists and that you may write"
STAYS = 1.01  # ratio to the best so far from which a candidate's arguments stay


def run_tune(
    request: TuneRequest, source: str, settings: Settings, progress: Progress
) -> RunReport:
    """Screen, confirm, and write a profile if a gain is confirmed.

    `source` is the checkpoint: that of the request, or the folder of its registered version.

    `exit_code` is 0 for a tuned profile, 4 for no gain, 5 for undecided. PrepareError: the request
    is invalid, so there is no run.
    """
    output = request.output.absolute() if request.output else None
    if (file := output) is not None:  # hours before it is written
        with raise_as(UsageError, NOT_THERE, f"--output {file}", ELSEWHERE):
            is_open = file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)
            if not is_open or (not file.is_file() and os.path.lexists(file)):
                raise UsageError(NOT_THERE, where=f"--output {file}", hint=ELSEWHERE)
    candidates = load_candidates(request.candidates)
    node = this_node()
    asked = ModelRequest(
        checkpoint=source,
        profile=request.profile,
        policy=request.policy,
        trust_remote_code=request.trust_remote_code,
        promote=False,
        gpus_a_copy=request.gpus_a_copy,
    )
    choices = choose(asked, settings, node, default_recipes=())
    if choices.profile.accelerator == "cuda":
        choices = spread_over_gpus(choices, settings)
    profile = choices.profile
    if profile.accelerator == "cpu":  # unfitted, for any CPU
        profile = load_named_profile(request.profile, node)
    refuse_unfit(profile, request.profile)  # it would win
    defaults = make_defaults(profile, candidates)
    served = fit_profile(defaults.profile, node)
    policy = gain_policy(choices.policy, served, request.workload)
    find_speed_gates(policy, served)
    try:
        for name, candidate in candidates.candidates.items():
            if candidate.accelerator in (None, profile.accelerator):
                add_candidate(name, candidate, defaults)
    except UsageError as error:
        where = f"--candidates {request.candidates}, key {error.where}"
        raise UsageError(error.message, where=where, hint=error.hint) from error
    machine = machine_of(node, settings.store, with_gpu=profile.accelerator == "cuda")
    faults = (find_missing_gpus(profile, machine), find_driver_fault(profile, machine))
    refuse(fault for fault in faults if fault is not None)
    accelerator = profile.accelerator
    workload = request.workload or policy.gates_on(None)[0].workload
    resolved = choices.resolved().model_copy(update={"workload": workload})
    request = replace(request, output=output)
    run = Run(request, resolved, accelerator, settings, progress)
    with run:
        trusts_code = request.trust_remote_code
        known = choices.checkpoints
        locator = Locator(
            choices.profile, settings, run.output_of, run.progress, known, trusts_code
        )
        checkpoint = locator.source(choices, to_quantize=False)
        run.log.update(checkpoint=describe_source(checkpoint), registered_name=choices.name)
        environments = {SUITE_ASKER, LOAD_GENERATOR, find_engine(profile.engine).environment}
        run.exit_code = Tuning(
            checkpoint=checkpoint,
            profile=profile,
            defaults=defaults,
            policy=policy,
            candidates=candidates,
            identities={name: identity(name, accelerator, settings) for name in environments},
            node=node,
            machine=machine,
            sources=SourceResolver(None, "", settings.digests, run.progress),
            servers=Servers(run),
            trust_remote_code=choices.asked.trust_remote_code,
        ).run(output)
    return run.log.report()


@dataclass
class Tuning:
    """The screening and the confirmation.

    `profile` is as in its file, and a candidate. `policy` has the one gate. `identities` are
    environments' digests.
    """

    checkpoint: Checkpoint
    profile: ServingProfile
    defaults: TunedArm
    policy: Policy
    candidates: CandidateFile
    identities: Mapping[str, str]
    node: NodeInfo
    machine: Machine
    sources: SourceResolver
    servers: Servers
    trust_remote_code: bool = False

    def run(self, output: Path | None = None) -> ExitCode:
        """Screen, confirm the winner, write its profile."""
        self._best = self.defaults
        self._rate = 0.0  # output tokens/s
        assert self.policy.speed is not None
        self._report = TuningReport(
            workload=self.policy.speed.gates[0].workload,
            speed=self.policy.speed,
            served=self._served.as_applied(),
            engine_defaults=self.defaults.serving(self.node).engine_arguments,
            alpha=self.policy.alpha,
        )
        self._screen(self.defaults)
        for name, candidate in self._candidates():
            if isinstance(candidate, str):
                self._screened(ScreeningReport(name=name, outcome="dropped", reason=candidate))
            else:
                self._screen(candidate)
        if self._best == self.defaults:
            self._note(verdict="fail", reason="no screened candidate was faster than the defaults")
        else:
            self._confirm(output)
        return CODES[self._report.verdict or "undecided"]

    @cached_property
    def _served(self) -> ServingProfile:
        return fit_profile(self.defaults.profile, self.node)

    def _candidates(self) -> Iterator[tuple[str, TunedArm | str]]:
        """Yield each candidate, or why it is skipped."""
        for name, added in {AS_PROFILED: None, **self.candidates.candidates}.items():
            try:
                yield name, self._candidate(name, added)
            except UsageError as error:
                yield name, error.message

    def _candidate(self, name: str, added: ServingCandidate | None) -> TunedArm | str:
        candidate = TunedArm(name, self.profile)
        if added is not None:
            if added.accelerator not in (None, self.profile.accelerator):
                return (
                    f"for {added.accelerator}, and this profile is for {self.profile.accelerator}"
                )
            needed = added.minimum_compute_capability
            has = self.machine.compute_capability
            if needed is not None and has is not None and has < needed:
                return f"needs compute capability {needed}, {self.machine.gpu} has {has}"
            candidate = add_candidate(name, added, self._best)
        if (drafts := candidate.profile.speculative) is not None and drafts.model is not None:
            return "it drafts by a model, and draft models are not tuned"
        serving = candidate.serving(self.node)
        best = self._best.serving(self.node)
        if serving == best:
            overrides = fit_profile(candidate.profile, self.node).in_effect.values()
            because = "; ".join(override.reason for override in overrides)
            return f"here it is the same as '{self._best.name}'{f': {because}' * bool(because)}"
        wanted, there = (count_gpus(arguments.engine_arguments) for arguments in (serving, best))
        return candidate if wanted == there else f"it uses {wanted} GPUs and the defaults {there}"

    def _screen(self, candidate: TunedArm) -> None:
        """Measure one start; record a candidate's failure, raise the defaults'."""
        plan = self._plan(candidate)
        arm = plan.baseline if candidate == self.defaults else plan.variants[0]
        (speed_gate,) = find_speed_gates(plan.policy, self._served)
        loads = self.candidates.repetitions
        machine = self.node.machine
        spec = load_stage(arm, speed_gate, self.identities[LOAD_GENERATOR], machine, loads)
        rule = SPEED.parameters_of(spec).rule
        served = {FIRST_TEXTS: arm.stages[FIRST_TEXTS], speed_role("screening"): spec}
        arguments = candidate.serving(self.node).for_engine()
        report = ScreeningReport(name=candidate.name, outcome="measured", arguments=arguments)
        try:
            self._measure(plan, replace(arm, stages=served))
            finding = rule.evaluate(
                self.servers.run.loads(spec), count_starts(spec, self.servers.run.store)
            )
            rate = finding.estimate
            if finding.state != "pass" or rate is None:
                raise ServingError(
                    f"the load is no measurement: {finding.why}",
                    where=str(self.servers.run.store.stage_folder(spec.stage, spec.key)),
                    hint="give the workload other arrivals, more seconds, or another hit_rate",
                )
        except (ServingError, StageError) as error:
            if candidate == self.defaults:
                raise
            self.servers.run.progress.note(f"{candidate.name}: {error}")
            failed = {"outcome": "failed", "reason": error.message}
            self._screened(report.model_copy(update=failed))
            return
        first = next((e.output_tokens_per_s for e in self._report.screening), None) or rate
        if rate > self._rate * STAYS:
            self._best = candidate
            self._rate = rate
        measured = {"output_tokens_per_s": rate, "ratio_to_defaults": rate / first}
        self._screened(report.model_copy(update={**measured, "stage": spec.key}))

    def _confirm(self, output: Path | None) -> None:
        winner = self._best
        self.servers.run.progress.note(
            f"{winner.name} was the fastest in the screening; now it is measured "
            "against the defaults, on fresh servers, with other prompts"
        )
        plan = self._plan(winner)
        (arm,) = plan.variants
        self._measure(plan, arm)
        (spec,) = (spec for spec in arm.stages.values() if spec.stage == SPEED.name)
        confirmation = judge_confirmed(
            self.servers.run.find_finished(spec), self.servers.run.loads(spec)
        )
        self._note(
            winner=winner.name,
            trial=plan.trial,
            confirmation=confirmation,
            stage=spec.key,
            verdict=confirmation.verdict,
            reason=confirmation.reason,
        )
        if confirmation.verdict != "pass":
            return
        log = self.servers.run.log
        text = self._tuned(winner)
        write_atomically(log.folder / PROFILE, text)
        self._note(profile=str(log.folder / PROFILE))
        if output is not None:
            with raise_as(UsageError, NOT_THERE, f"--output {output}", ELSEWHERE):
                write_atomically(output, text)
            self._note(profile=str(output))

    def _plan(self, candidate: TunedArm) -> Plan:
        return Builder(
            policy=self.policy,
            baseline=self._arm(BASELINE, self.defaults),
            variants=[] if candidate == self.defaults else [self._arm(candidate.name, candidate)],
            reference={"checkpoint": self.checkpoint.digest, "tuned for": self._report.workload},
            sources=self.sources,
            identities=self.identities,
            store=self.servers.run.store.root,
            machine=self.node.machine,
            profile=self._served,
            tried=[candidate.name],
            run=self.servers.run.log.run_id,
        ).build()

    def _arm(self, name: str, candidate: TunedArm) -> Arm:
        return served_arm(
            *(_recipe(name), self.checkpoint, candidate.profile, candidate.serving(self.node)),
            *(self.identities, self.node),
            trust_remote_code=self.trust_remote_code,
        )

    def _measure(self, plan: Plan, arm: Arm) -> None:
        measure_arm(self.servers, PlanProgress(plan, self.servers.run.store), arm)

    def _tuned(self, winner: TunedArm) -> str:
        """Return a file for `prepare model --profile`."""
        gain = f"tuned for {self._report.workload}: at least {self._report.min_gain or 0:.3f} "
        gain += f"of the defaults' output tokens/s (run {self.servers.run.log.run_id})"
        workloads = winner.profile.workloads.items()
        tuned = winner.profile.model_copy(
            update={
                "name": f"{self.profile.name}-tuned",
                "summary": f"{winner.profile.summary}; {gain}",
                "gpu_name_contains": [],
                "starts": self.profile.starts,
                "workloads": {name: named_in_full(workload) for name, workload in workloads},
            }
        )
        plain = tuned.model_dump(mode="json", exclude_defaults=True)
        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))

    def _screened(self, report: ScreeningReport) -> None:
        self._note(screening=[*self._report.screening, report])

    def _note(self, **changes: Any) -> None:
        self._report = self._report.model_copy(update=changes)
        self.servers.run.log.update(tuning=self._report)


def _recipe(name: str) -> Recipe:
    return Recipe(
        name=name,
        summary="the source's weights, served with other arguments",
        family="baseline",
        quantization=NoQuantization(),
    )
