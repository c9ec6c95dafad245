"""`prepare recheck`: judges a registered version on the present deployable tuple.

If no member of the tuple has changed, nothing is measured. Kernels are compared only if a server is
started. Else two questions are asked: is the variant what was promoted, by its own recorded
answers? And if that is not shown, or on request: does it keep up with its source here? Each is a
run. The outcome is a tag of the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from artifacts.deploy.on_fail import FailedCheck, Rollback
from artifacts.deploy.recheck_record import RecheckRecord, rechecks_of, record_of, stands
from artifacts.deploy.registered import (
    RegisteredVersion,
    checked_folder,
    find_version,
    open_version,
)
from artifacts.deployable import Deployable, TupleDifference
from artifacts.recheck_report import RecheckAnswer, RecheckReport
from artifacts.registry import Move, Registry
from artifacts.requests import ModelRequest, RecheckRequest
from artifacts.run_record import ResolvedOptions, RunReport, VariantReport
from pipeline.environments.definition import SUITE_ASKER
from pipeline.environments.environment import ensure, identity
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import served_profile
from pipeline.plan.choice import Choice, environments_of, find_gates
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.locator import Locator
from pipeline.plan.plan import Plan, PlanProgress
from pipeline.plan.recorded_arm import record_of_version
from pipeline.plan.registered_arm import Here, RegisteredPlanner, discard_if_gone
from pipeline.plan.serving_profile import check_processor, choose_profile, refuse_unfit
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.preflight.machine import find_missing_gpus, machine_of
from pipeline.preflight.power import check_power, engine_margins
from pipeline.preflight.survey import check_early
from pipeline.run.loop import finish_plan
from pipeline.run.recorded_gate import leave_out, words_of_record
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.serving.argument_check import engine_version
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.evidence import Evidence
from pipeline.stages.recorded import engine_margin
from pipeline.stages.verdict import exit_code_of
from prepare.errors import CheckpointError, ExitCode, UsageError
from prepare.events import Progress
from prepare.hardware import NodeInfo, this_node
from prepare.own_command import own_command
from prepare.stage import StageSpec
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import CheckpointReference, parse_reference
from recipes.checkpoints.source_info import describe_source
from recipes.engines import find_engine
from recipes.schema import ServingProfile


@dataclass(frozen=True)
class RecheckOutcome:
    """What a recheck found.

    `runs` are those that were made, the variant against itself first; none if nothing had to be
    measured. `report` is None without an answer. `refuted` is an earlier recheck of this very tuple
    that failed.
    """

    past: RegisteredVersion  # the version with its verdict
    changed: tuple[TupleDifference, ...]
    runs: tuple[RunReport, ...] = ()
    report: RecheckReport | None = None
    refuted: RecheckRecord | None = None
    moved: Move | None = None  # of the alias, by --on-fail rollback

    @property
    def failed_check(self) -> FailedCheck | None:
        """The answer that failed, of this recheck or an earlier one of this very tuple."""
        report = self.report
        if report is None and self.refuted is not None:
            report = self.refuted.report
        answers = [report.engine, report.source] if report is not None else []
        for answer in answers:
            if answer is not None and answer.verdict == "fail" and self.stands is False:
                return FailedCheck(answer.run, answer.judge, answer.reason)
        return None

    @property
    def stands(self) -> bool | None:
        """Whether the version's verdict holds; None if unknown."""
        if not self.runs:
            return self.refuted is None
        if self.report is None or (self.report.verdict == "pass" and self._failed is not None):
            return None
        return stands(self.past.bundle.variant.verdict, self.report)

    @property
    def run(self) -> str | None:
        """Id of the run that a reader should look at: the last."""
        if self.runs:
            return self.runs[-1].run
        return self.refuted.runs[-1] if self.refuted else None

    @property
    def _failed(self) -> RunReport | None:
        """A run without a verdict."""
        return next((run for run in self.runs if not answer_of(run)), None)

    @property
    def error(self) -> dict[str, str] | None:
        """The error of a run that ended with one."""
        return self._failed.error if self._failed is not None else None

    @property
    def exit_code(self) -> int:
        if self.report is not None and self.report.verdict != "pass":
            return exit_code_of([self.report.verdict])
        if self._failed is not None:
            code = self._failed.exit_code
            return ExitCode.UNEXPECTED if code is None else code
        if self.refuted is not None:
            return exit_code_of([self.refuted.report.verdict])
        return ExitCode.SUCCESS

    def variant_of(self, answer: RecheckAnswer | None) -> VariantReport | None:
        """Return the verdict with its gates."""
        runs = [run for run in self.runs if answer is not None and run.run == answer.run]
        return runs[0].variants[0] if runs else None

    def to_dict(self) -> dict[str, Any]:
        report = self.report
        shown = {}
        for question in ("engine", "source"):
            asked: RecheckAnswer | None = getattr(report, question, None)
            variant = self.variant_of(asked)
            shown[question] = variant.model_dump(mode="json") if variant is not None else None
        return {
            "schema_version": 2,
            "name": self.past.version.name,
            "version": self.past.version.version,
            "recipe": self.past.bundle.recipe,
            "changed": [vars(change) for change in self.changed],
            "measured": bool(self.runs),
            "stands": self.stands,
            "cell": report.cell if report is not None else None,
            "exit_code": self.exit_code,
            "then": self.past.bundle.variant.model_dump(mode="json"),
            **shown,
            "run": self.run,
            "runs": [run.run for run in self.runs],
            "moved": self.moved.model_dump() if self.moved is not None else None,
            "error": self.error,
        }


def answer_of(run: RunReport) -> RecheckAnswer | None:
    """Return what a run answers, if it has a verdict."""
    for variant in run.variants:
        key = run.judges.get(variant.recipe)
        if variant.verdict not in ("error", "skipped") and run.error is None:
            return RecheckAnswer.model_validate(
                {
                    "run": run.run,
                    "judge": key or "",
                    "verdict": variant.verdict,
                    "reason": variant.reason,
                }
            )
    return None


def run_recheck(request: RecheckRequest, settings: Settings, progress: Progress) -> RecheckOutcome:
    """Compare, and measure if something changed; the outcome has a measurement's error.

    PrepareError: version, files or evidence are unavailable or invalid, or the machine is
    unsuitable.
    """
    registry = Registry(settings.registry_uri(request.registry))
    past = open_past(request, registry, settings)
    known = Checkpoints()
    here = find_here(request, past, settings, known, progress)
    return Recheck(request, past, here, registry, settings, known, progress).run()


def open_past(request: RecheckRequest, registry: Registry, settings: Settings) -> RegisteredVersion:
    """Return the version with its verdict; raises as :func:`run_recheck`."""
    version = find_version(registry, request.reference)
    folder = checked_folder(version, request.weights, settings, "recheck")
    return open_version(version, folder, trust_remote_code=request.trust_remote_code)


def find_here(
    request: RecheckRequest,
    past: RegisteredVersion,
    settings: Settings,
    known: Checkpoints,
    progress: Progress,
) -> Here:
    """Return this machine for the version; the serving environment is built."""
    node = this_node()
    profile = choose_own_profile(request, past, node, settings.store)
    accelerator = profile.accelerator

    def made(spec: StageSpec) -> Path:  # nothing is made before a change is known
        store = settings.open_store()
        if store.find(spec.stage, spec.key) is None:
            raise UsageError(
                "the demo that drafts is not made yet",
                where="key speculative.model",
                hint="`prepare model` with this profile makes it",
            )
        return store.stage_folder(spec.stage, spec.key) / "output"

    draft = Locator(profile, settings, made, progress, known, request.trust_remote_code).draft()
    serve = ensure(find_engine(profile.engine).environment, accelerator, settings, progress)
    find_speed_gates(past.policy, profile)
    environments = environments_of([past.recipe], profile, past.policy)
    return Here(
        node,
        profile,
        {name: identity(name, accelerator, settings) for name in environments},
        engine_version(profile.engine, serve.python),
        draft,
    )


@dataclass
class Recheck:
    """One recheck of a version on a machine."""

    request: RecheckRequest
    past: RegisteredVersion
    here: Here
    registry: Registry
    settings: Settings
    known: Checkpoints
    progress: Progress
    runs: list[RunReport] = field(default_factory=list)

    def run(self) -> RecheckOutcome:
        """Ask the questions that are open."""
        if self.request.source is not None:
            self._source()
        rollback = None
        if self.request.on_fail == "rollback":
            version = self.past.version.version
            rollback = Rollback.of(self.registry, self.request.reference, version)
        outcome = self._ask()
        if rollback is not None and (failed := outcome.failed_check) is not None:
            return replace(outcome, moved=rollback.move_back(failed, self.progress.note))
        return outcome

    def _ask(self) -> RecheckOutcome:
        past = self.past
        request = self.request
        wanted = self.here.tuple_of(past)
        changed = past.deployable.differences(wanted)
        gates = find_gates(request.remeasure, past.policy, self.here.profile.accelerator)
        if not changed and not request.force and not gates:
            return RecheckOutcome(past, (), refuted=self._refuted(wanted))
        for change in changed:
            self.progress.note(f"changed: {change}")
        if request.force:
            speed = past.policy.speed
            gates = (*past.policy.suites, *(speed.tiers if speed is not None else ()))
        engine = None
        if changed or set(gates) & past.policy.suites.keys():
            self.runs.append(self._ask_about_engine(changed, gates))
            engine = answer_of(self.runs[-1])
        source = None
        if not self.runs or (engine is not None and self._needs_source(engine, gates)):
            has_failed = engine is not None and engine.verdict == "fail"
            if has_failed and not self._is_failure_on_record(wanted):
                # A kill while the source is asked must not lose this.
                self._record(wanted, changed, RecheckReport.of(engine, None))
            try:
                self.runs.append(self._ask_about_source(changed, gates, engine))
                source = answer_of(self.runs[-1])
            except CheckpointError as error:
                if not has_failed:
                    raise
                self.progress.note(f"{error.message}, so the cause of the failure is not known")
        if engine is None and source is None:
            return RecheckOutcome(past, tuple(changed), tuple(self.runs))
        outcome = self._record(wanted, changed, RecheckReport.of(engine, source))
        for change in outcome.changed[len(changed) :]:
            self.progress.note(f"changed: {change}")
        return outcome

    def _record(
        self, wanted: Deployable, changed: Sequence[TupleDifference], report: RecheckReport
    ) -> RecheckOutcome:
        """Return the outcome of these answers, with changed kernels, and tag the version."""
        past = self.past
        kernels = self._kernels()
        others = past.deployable.kernel_differences(kernels) if kernels else ()
        told = (*changed, *others)
        outcome = RecheckOutcome(past, told, tuple(self.runs), report)
        if outcome.stands is not None:
            served = wanted.model_copy(update={"kernels": kernels})
            tags = record_of(past, served, told, report).tags()
            self.registry.set_tags(past.version.name, past.version.version, tags)
        return outcome

    def _refuted(self, wanted: Deployable) -> RecheckRecord | None:
        """Return an earlier recheck of this very tuple that failed."""
        earlier = rechecks_of(self.past.version)
        same = [recheck for recheck in earlier if recheck.tuple_digest == wanted.digest]
        return next((recheck for recheck in same if not recheck.stands), None)

    def _is_failure_on_record(self, wanted: Deployable) -> bool:
        """Return whether a failure of this very tuple is on record, perhaps with its cause."""
        refuted = self._refuted(wanted)
        return refuted is not None and refuted.report.verdict == "fail"

    def _needs_source(self, engine: RecheckAnswer, gates: Sequence[str]) -> bool:
        """Return whether the variant is compared with its source, too."""
        request = self.request
        has_speed = bool(set(gates) - self.past.policy.suites.keys()) and not request.force
        is_asked = request.source is not None or has_speed or bool(request.leave_out)
        return engine.verdict != "pass" or is_asked

    def _kernels(self) -> dict[str, str] | None:
        keys = [key for run in self.runs for key in run.judges.values()]
        judged = [Evidence.of_variant(self.settings.open_store(), key) for key in keys]
        return Deployable.of(judged[0]).kernels if judged else None

    # --- what a test of the loop replaces -------------------------------------------------------

    def open_run(self, resolved: ResolvedOptions) -> Run:
        asked = replace(
            self.request, reference=f"{self.past.version.name}@{self.past.version.version}"
        )
        accelerator = self.here.profile.accelerator
        return Run(asked, resolved, accelerator, self.settings, self.progress)

    def open_servers(self, run: Run) -> Servers:
        return Servers(run)

    def survey(self, choices: Choice, run: Run) -> SourceResolver:
        """Refuse early what would fail with the source; return where questions are."""
        made = frozenset({self.past.recipe.name})
        return check_early(choices, run.settings, run.progress, made).sources

    # --- the two questions ----------------------------------------------------------------------

    def _ask_about_engine(
        self, changed: Sequence[TupleDifference], gates: Sequence[str]
    ) -> RunReport:
        """Judge the variant here against its own recorded answers."""
        past = self.past
        record = record_of_version(past)
        sources = SourceResolver(
            None, self.here.identities[SUITE_ASKER], self.settings.digests, self.progress
        )
        record = leave_out(record, self.request.leave_out, sources, self.settings)
        margins = engine_margins(record)
        record = record.with_margins(margins)
        origin = f"{past.version.name}@{past.version.version}"
        resolved = ResolvedOptions(
            checkpoint=f"{origin} against its own recorded answers",
            recipes=(past.recipe.name,),
            policy=past.policy.name,
            profile=self.here.profile.name,
            name=past.version.name,
            changed=tuple(map(str, changed)),
        )
        run = self.open_run(resolved)
        known = record.known()
        with run:
            for note in words_of_record(record):
                run.progress.note(note)
            for name, margin in margins.items():
                if margin != engine_margin(past.policy, name, record.judged.family):
                    run.progress.note(
                        f"{name}: the {known[name].clusters:,} recorded answers are too few for "
                        f"half of the margin, so another engine may lose {margin.words}"
                    )
            planner = RegisteredPlanner(past, self.here, self.settings, run.log.run_id, gates)
            discard_if_gone(planner.adopted(), run.store, self.settings)
            plan = planner.against_record(record, sources)
            check_power(record.policy, (past.recipe,), known, plan.trial.level)
            AttemptLedger(run.store).check_allowed(plan.trial)
            run.log.update(registered_name=past.version.name)
            self._judge(run, plan, None, is_about_engine=True)
        return run.log.report()

    def _ask_about_source(
        self,
        changed: Sequence[TupleDifference],
        gates: Sequence[str],
        engine: RecheckAnswer | None,
    ) -> RunReport:
        """Judge the variant against its source, both served here."""
        past = self.past
        reference = self._source()
        choices = choose_source(self.request, past, self.here.profile, self.here.node, reference)
        choices = replace(choices, checkpoints=self.known)
        resolved = choices.resolved().model_copy(
            update={
                "attempted": past.bundle.attempted,
                "changed": tuple(map(str, changed)),
            }
        )
        run = self.open_run(resolved)
        with run:
            planner = RegisteredPlanner(past, self.here, self.settings, run.log.run_id, gates)
            plan = self._plan_against_source(choices, planner, run)
            self._judge(run, plan, engine, is_about_engine=False)
        return run.log.report()

    def _judge(
        self, run: Run, plan: Plan, engine: RecheckAnswer | None, *, is_about_engine: bool
    ) -> None:
        """Carry out a question's plan; record the answers so far."""
        finish_plan(self.open_servers(run), PlanProgress(plan, run.store))
        (variant,) = run.log.variants()
        answer = answer_of(run.log.report())
        if answer is not None:
            answers = (answer, None) if is_about_engine else (engine, answer)
            run.log.update(recheck=RecheckReport.of(*answers))
        run.exit_code = exit_code_of([variant.verdict])

    def _plan_against_source(self, choices: Choice, planner: RegisteredPlanner, run: Run) -> Plan:
        """Check the machine, locate the source, and return the plan."""
        settings = self.settings
        past = self.past
        source = choices.reference.text
        try:
            sources = self.survey(choices, run)
        except CheckpointError as error:
            raise self._no_source(error, source) from error
        try:
            locator = Locator(
                choices.profile,
                settings,
                run.output_of,
                run.progress,
                choices.checkpoints,
                choices.asked.trust_remote_code,
            )
            checkpoint = locator.source(choices)
            judged = past.judged.sanity.parameters.checkpoint
            if checkpoint.digest != judged:
                raise CheckpointError(
                    f"its digest is {checkpoint.digest[:12]}, and the verdict was against "
                    f"{judged[:12]}",
                    where=str(checkpoint.path),
                )
        except (CheckpointError, UsageError) as error:
            raise self._no_source(error, source) from error
        run.log.update(checkpoint=describe_source(checkpoint), registered_name=choices.name)
        discard_if_gone(planner.adopted(), run.store, settings)
        return planner.against_source(choices, checkpoint, sources)

    def _source(self) -> CheckpointReference:
        """Return where the source is; CheckpointError if it is not said in a form that is read."""
        source = self.request.source or self.past.source
        try:
            return parse_reference(source)
        except UsageError as error:
            raise self._no_source(error, source) from error

    def _no_source(self, error: CheckpointError | UsageError, source: str) -> CheckpointError:
        name = self.past.version.name
        again = own_command("recheck", f"{name}@VERSION", "--source", "CHECKPOINT")
        return CheckpointError(
            f"the source checkpoint, which is the baseline, is unavailable: {error.message}",
            where=error.where or source,
            hint=f"say where the same checkpoint is now, a folder or a Hub id: {again}",
        )


def choose_source(
    request: RecheckRequest,
    past: RegisteredVersion,
    profile: ServingProfile,
    node: NodeInfo,
    reference: CheckpointReference,
) -> Choice:
    """Return the evidence as options of `prepare model`."""
    return Choice(
        asked=ModelRequest(
            checkpoint=reference.text,
            recipes=(past.recipe.name,),
            profile=profile.name,
            policy=past.policy.name,
            registry=request.registry,
            trust_remote_code=past.judged.trust_remote_code,
            promote=False,
        ),
        reference=reference,
        recipes=(past.recipe,),
        profile=profile,
        policy=past.policy,
        name=past.version.name,
        node=node,
        eval_data=request.eval_data.expanduser().resolve() if request.eval_data else None,
    )


def choose_own_profile(
    request: RecheckRequest, past: RegisteredVersion, node: NodeInfo, store: Path
) -> ServingProfile:
    """Return the judged or requested profile; UsageError if unsuitable."""
    profile = past.profile
    if request.profile:
        profile = choose_profile(request.profile, node)
        if profile.accelerator == "cuda" and profile.gpus_a_copy is None:
            profile = profile.spread_as(past.profile)
    profile = served_profile(profile, past.recipe)
    # Before a GPU environment is built for a node without one.
    machine = machine_of(node, store, with_gpu=profile.accelerator == "cuda")
    if (missing := find_missing_gpus(profile, machine)) is not None:
        raise missing
    if profile.accelerator == "cpu":
        check_processor(profile, node.cpu_features)
    refuse_unfit(profile, request.profile or profile.name)
    return profile
