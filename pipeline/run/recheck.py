"""Judges a registered version again on what would serve it here and now: `prepare recheck`.

A verdict is about a tuple. Where no member of it has changed, the verdict stands and nothing is
measured. Else baseline and registered weights are served and measured as `prepare model` would, by
the policy that judged, and nothing is quantized.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.deployable import Change, Deployable
from artifacts.kept_runs import read_run
from artifacts.registry.registry import Version, open_registry
from artifacts.run_record import RunReport, VariantReport, report_unjudged
from artifacts.selection import correct, exit_code_of
from artifacts.serving_arguments import ServingArguments
from eval_gates.statistics.multiplicity import share_of
from eval_gates.verdict import number_in
from pipeline.checkpoint.folder import Checkpoint, inspect_folder
from pipeline.checkpoint.reference import Reference, parse_reference
from pipeline.checkpoint.source_facts import report_checkpoint
from pipeline.core.cpu_features import cpu_features
from pipeline.core.digest import FileDigests
from pipeline.core.errors import CheckpointError, ExitCode, PrepareError, StoreError, UsageError
from pipeline.core.events import Progress
from pipeline.core.hardware import gpu_name, hardware
from pipeline.core.stage_key import stage_spec
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.environment import Accelerator, ensure, identity
from pipeline.environments.settings import Settings
from pipeline.forecast.before_run import preflight_of
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.of_checkpoint import Planner
from pipeline.plan.plan import Plan
from pipeline.plan.prepare import Asked, Choices, choose_profile, find_data, locate, registry_uri
from pipeline.plan.suitability import check_processor
from pipeline.release.deployment import check_files, find_version, folder_of
from pipeline.release.past_verdict import PastVerdict, read_past, refuse_code
from pipeline.release.recheck_record import RecheckRecord, rechecks_of, record_of, stands
from pipeline.run.model import check_early
from pipeline.run.run_log import RunLog
from pipeline.run.runner import Runner
from pipeline.run.session import Session
from pipeline.serving.engine_version import engine_version
from recipes import catalog
from recipes.engines import find_engine
from recipes.schema import ServingProfile

WEIGHTS_COMMAND = "prepare recheck {reference} --weights FOLDER"


@dataclass(frozen=True)
class RecheckRequest:
    """The options of `prepare recheck`, as given."""

    reference: str
    registry: str | None = None
    weights: Path | None = None
    source: str | None = None
    profile: str | None = None
    eval_data: Path | None = None
    force: bool = False
    trust_remote_code: bool = False

    def as_options(self) -> dict[str, str | bool | None]:
        """What the record keeps as it was written."""
        return {
            "profile": self.profile,
            "source": self.source,
            "weights": str(self.weights) if self.weights else None,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass(frozen=True)
class Outcome:
    """What a recheck came to."""

    version: Version  # that was rechecked
    past: PastVerdict  # its verdict
    changed: tuple[Change, ...]  # members of the tuple that differ here
    # Of the run that measured; None where nothing had to be measured.
    report: RunReport | None = None
    # An earlier recheck of this very tuple, which did not stand.
    refuted: RecheckRecord | None = None

    @property
    def now(self) -> VariantReport | None:
        """The new verdict; None where nothing was measured, or the run failed before it."""
        return self.report.variants[0] if self.report and self.report.variants else None

    @property
    def stands(self) -> bool | None:
        """Whether the version's verdict holds here; None where that is not known."""
        if self.report is None:
            return self.refuted is None
        return stands(self.past.bundle.variant.verdict, self.now.verdict) if self.now else None

    @property
    def run(self) -> str | None:
        """Id of the run that has the evidence of the new verdict."""
        if self.report is not None:
            return self.report.run
        return self.refuted.run if self.refuted else None

    @property
    def exit_code(self) -> int:
        """How the command ends."""
        if self.report is None:
            return exit_code_of([self.refuted.verdict]) if self.refuted else ExitCode.PROMOTED
        code = self.report.exit_code
        return ExitCode.UNEXPECTED if code is None else code

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "schema_version": 1,
            "name": self.version.name,
            "version": self.version.version,
            "recipe": self.past.bundle.recipe,
            "changed": [change.to_dict() for change in self.changed],
            "measured": self.report is not None,
            "stands": self.stands,
            "exit_code": self.exit_code,
            "then": self.past.bundle.variant.model_dump(mode="json"),
            "now": self.now.model_dump(mode="json") if self.now else None,
            "run": self.run,
            "error": self.report.error if self.report else None,
        }


def run_recheck(request: RecheckRequest, settings: Settings, progress: Progress) -> Outcome:
    """Compare, and measure where something changed.

    Returns:
        the outcome; an error of the measuring itself is in its report.

    Raises:
        PrepareError: the version, its files or its evidence are unavailable or unsound, or
            this machine cannot measure it.
    """
    registry = open_registry(registry_uri(request.registry, settings))
    version = find_version(registry, request.reference)
    folder = folder_of(version, request.weights, WEIGHTS_COMMAND)
    check_files(version, folder, settings.digests)
    past = read_past(version, folder)
    if not request.trust_remote_code:
        refuse_code(version, past)
    profile = choose_profile(request.profile) if request.profile else past.profile
    refuse_without_gpu(profile, request)
    if profile.accelerator == "cpu":
        check_processor(profile, cpu_features())
    here = deployable_here(past, profile, settings, progress)
    changed = changes(version, past, here)
    if not changed and not request.force:
        of_this = [each for each in rechecks_of(version) if each.tuple_digest == here.digest]
        refuted = next((each for each in of_this if not each.stands), None)
        return Outcome(version, past, changed, refuted=refuted)
    for change in changed:
        progress.note(f"changed: {change}")
    store = Store(settings.store)
    again = attempt_of(store, request.registry, version) if request.force else ""
    recheck = Recheck(
        version=version,
        registry=request.registry,
        past=past,
        folder=folder,
        source=request.source or past.source,
        profile=profile,
        eval_data=request.eval_data,
        again=again,
    )
    choices = recheck.choices()
    command = {**recheck.command(choices, list(map(str, changed))), "asked": request.as_options()}
    accelerator = Accelerator(profile.accelerator)
    session = Session("recheck", command, accelerator, settings, progress)

    def measure() -> ExitCode:
        recheck.run(choices, session)
        (report,) = session.log.variants()
        record = record_of(past, here, changed, report, session.log.run_id)
        if record is not None:
            registry.set_tags(version.name, version.version, record.tags())
        return exit_code_of([report.verdict])

    return Outcome(version, past, changed, session.run(measure))


def refuse_without_gpu(profile: ServingProfile, request: RecheckRequest) -> None:
    """Raise UsageError before a serving environment for GPUs is built on a machine without one."""
    if profile.accelerator == "cuda" and gpu_name() is None:
        raise UsageError(
            "it was judged on a GPU, and this machine has none"
            if request.profile is None
            else f"the profile '{profile.name}' is for a GPU, and this machine has none",
            where="--profile",
            cure="run it on the machine that is to serve, or name that of this machine: "
            "--profile cpu",
        )


def deployable_here(
    past: PastVerdict, profile: ServingProfile, settings: Settings, progress: Progress
) -> Deployable:
    """The deployable tuple as it would be here; builds the serving environment."""
    accelerator = Accelerator(profile.accelerator)
    serve = ensure(find_engine(profile.engine).environment, accelerator, settings, progress)
    return past.deployable.model_copy(
        update={
            "engine_version": engine_version(profile.engine, serve.python),
            "serve_environment": serve.identity,
            "evaluate_environment": identity("evaluate", accelerator, settings),
            "serving": ServingArguments.of(profile, is_baseline=False),
            "hardware": hardware(profile.accelerator),
        }
    )


def changes(version: Version, past: PastVerdict, here: Deployable) -> tuple[Change, ...]:
    """In what this differs from the tags or from the evidence, which normally say the same."""
    found = [*Deployable.of_tags(version).differences(here), *past.deployable.differences(here)]
    return tuple({change.member: change for change in reversed(found)}.values())[::-1]


@dataclass(frozen=True)
class Recheck:
    """What is to be measured again, as `prepare model` would, with nothing quantized."""

    version: Version  # as registered
    registry: str | None  # its URI as asked for; None: the store's own
    past: PastVerdict  # verdict and evidence
    folder: Path  # of the version's files, which have been checked
    source: str  # name of the checkpoint that is the baseline
    profile: ServingProfile  # that both are served by
    eval_data: Path | None  # the user's folder of evaluation data, if any
    again: str  # of a measurement that must not use answers kept of this tuple; else ''

    def choices(self) -> Choices:
        """As those of `prepare model`.

        Raises:
            UsageError: the policy has no throughput floor for this kind of machine.
            CheckpointError: the source's name names nothing here.
        """
        policy = self.past.policy
        if self.profile.accelerator not in policy.throughput.minimum_ratio:
            raise UsageError(
                f"the policy '{policy.name}' that judged has no throughput floor for "
                f"{self.profile.accelerator}",
                where="policy key throughput.minimum_ratio",
                cure="it cannot judge this kind of machine: add the floor to the policy, and make "
                "a new verdict with `prepare model`",
            )
        return Choices(
            reference=self._reference(),
            recipes=(self.past.recipe,),
            baseline=catalog.load_recipe(catalog.BASELINE),
            profile=self.profile,
            policy=policy,
            asked=Asked((self.past.recipe.name,), self.profile.name, policy.name),
            name=self.version.name,
            registry=self.registry,
            eval_data=self.eval_data.expanduser().resolve() if self.eval_data else None,
            trust_remote_code=self.past.judged.trust_remote_code,
            promote=False,
            dry_run=False,
        )

    def command(self, choices: Choices, changed: list[str]) -> dict[str, Any]:
        """Plain data for the run's record."""
        return {
            **choices.to_dict(),
            "recheck": f"{self.version.name}@{self.version.version}",
            "changed": changed,
            "tried": [recipe.name for recipe in self.past.tried],
            "again": self.again,
        }

    def run(self, choices: Choices, session: Session) -> None:
        """Measure baseline and weights, and judge; the log has the verdict.

        Raises:
            PrepareError: the source is unavailable, or the baseline cannot be measured.
        """
        settings, stages, progress = session.settings, session.stages, session.progress
        sources = find_data(choices, settings, progress)
        checkpoint = self._source(choices, session)
        session.log.note_checkpoint(report_checkpoint(checkpoint), choices.name)
        if preflight := preflight_of(choices, settings):
            made = frozenset({self.past.recipe.name})
            check_early(replace(preflight, made=made), choices, progress)
        plan = self._plan(choices, checkpoint, settings, sources)
        self._tell_of_questions(plan, progress)
        discard_if_gone(plan, stages.store, settings.digests)
        Runner(plan, stages, session.local_servers(self.profile)).run()
        self._correct(session.log)

    def _source(self, choices: Choices, session: Session) -> Checkpoint:
        """The checkpoint that the verdict was against."""
        try:
            checkpoint = locate(
                choices, session.settings, session.stages.output_of, session.progress
            )
        except CheckpointError as error:
            raise self._unavailable_error(error) from error
        if checkpoint.digest != self.past.checkpoint_digest:
            raise CheckpointError(
                f"this is not the checkpoint that the verdict was against: its digest is "
                f"{checkpoint.digest[:12]}, then it was {self.past.checkpoint_digest[:12]}",
                where=str(checkpoint.path),
                cure=self._cure,
            )
        return checkpoint

    def _reference(self) -> Reference:
        try:
            return parse_reference(self.source)
        except UsageError as error:
            raise self._unavailable_error(error) from error

    def _unavailable_error(self, error: PrepareError) -> CheckpointError:
        return CheckpointError(
            f"the source checkpoint, which is the baseline, is unavailable: {error.what}",
            where=error.where or self.source,
            cure=self._cure,
        )

    @property
    def _cure(self) -> str:
        return (
            f"say where the same checkpoint is now, a folder or a Hub id: "
            f"prepare recheck {self.version.name}@{self.version.version} --source CHECKPOINT"
        )

    def _plan(
        self,
        choices: Choices,
        checkpoint: Checkpoint,
        settings: Settings,
        sources: SourceResolver,
    ) -> Plan:
        accelerator = Accelerator(self.profile.accelerator)
        serving = find_engine(self.profile.engine).environment
        (recipe,) = choices.recipes
        return Planner(
            checkpoint=checkpoint,
            profile=self.profile,
            policy=choices.policy,
            recipes=choices.recipes,
            baseline=choices.baseline,
            identities={n: identity(n, accelerator, settings) for n in (serving, "evaluate")},
            hardware=hardware(self.profile.accelerator),
            sources=sources,
            store=settings.store,
            trust_remote_code=choices.trust_remote_code,
            made={recipe.name: self._adopt_stage(checkpoint, settings)},
            tried=self.past.tried,
            again=self.again,
            begin=self.past.trial_of_then,
        ).plan()

    def _adopt_stage(self, checkpoint: Checkpoint, settings: Settings) -> StageSpec:
        """The stage that takes the registered weights in; its key is made of their digests."""
        registered = inspect_folder(
            self.folder,
            ref=str(self.folder),
            kind="folder",
            revision=None,
            digests=settings.digests,
        )
        made = self.past.judged.quantize
        return stage_spec(
            "adopt",
            self.past.bundle.recipe,
            {
                "checkpoint": checkpoint.digest,
                "files": {file.name: file.sha256 for file in registered.files},
                "quantization": made.parameters["quantization"],
                "calibration_data": made.parameters.get("calibration_data", {}),
                "environment": made.parameters["environment"],
                "made": made.result,
            },
            {},
            {"folder": str(self.folder)},
            settings.store,
        )

    def _tell_of_questions(self, plan: Plan, progress: Progress) -> None:
        """Say where the questions come from another source than they did."""
        for suite, then in self.past.sources.items():
            now = plan.shared[f"questions.{suite}"].parameters["source"]
            if now != then:
                progress.note(
                    f"{suite}: its questions come from another source than then: {now}, not {then}"
                )

    def _correct(self, log: RunLog) -> None:
        """Holm's correction for all variants that were tried when the verdict was made."""
        report = log.variant_named(self.past.bundle.recipe)
        others = [
            report_unjudged(recipe.name, "skipped", "not rechecked", None)
            for recipe in self.past.tried[1:]
        ]
        alpha = self.past.policy.alpha * share_of(number_in(self.past.judged.judge.parameters))
        for changed in correct([report, *others], alpha):
            log.note_variant(changed)


def discard_if_gone(plan: Plan, store: Store, digests: FileDigests) -> None:
    """Forget adopted weights whose files are gone or changed, so that they are adopted again.

    They may be links to a folder that somebody has removed since.
    """
    for variant in plan.variants:
        spec = variant.stages["quantize"]
        output = store.stage_folder(spec.stage, spec.key) / "output"
        if store.find(spec.stage, spec.key) is None:
            continue
        try:
            same = all(
                digests.of(output / name) == digest
                for name, digest in spec.parameters["files"].items()
            )
        except CheckpointError:
            same = False
        if not same:
            store.discard(spec.stage, spec.key)


def attempt_of(store: Store, registry: str | None, version: Version) -> str:
    """What distinguishes a forced measurement; of one that was not finished, the same."""
    asked = f"{version.name}@{version.version}"
    for folder in reversed(store.run_folders()):
        try:
            run = read_run(folder)
        except StoreError:  # of another version of prepare, or damaged: not one to continue
            continue
        command = run.command
        if command.get("recheck") == asked and command.get("registry") == registry:
            is_open = run.status not in ("finished", "running") and command.get("again")
            return str(command["again"]) if is_open else _new_attempt()
    return _new_attempt()


def _new_attempt() -> str:
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
