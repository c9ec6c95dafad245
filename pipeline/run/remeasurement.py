"""Measures registered weights and their baseline as `prepare model` would, without quantizing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.deploy.recorded_verdict import RecordedVerdict
from artifacts.registry import Version
from artifacts.run_loader import read_run
from pipeline.checkpoint.folder import Checkpoint, inspect_folder
from pipeline.checkpoint.reference import parse_reference
from pipeline.checkpoint.source_info import report_checkpoint
from pipeline.core.errors import CheckpointError, StoreError, UsageError
from pipeline.core.events import Progress
from pipeline.core.file_digests import FileDigests
from pipeline.core.hardware import NodeInfo
from pipeline.core.run_folders import RunFolders
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.settings import Settings
from pipeline.plan.build_plan import find_data, make_planner
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import Plan
from pipeline.plan.preflight import preflight_of
from pipeline.plan.resolved_options import RequestedOptions, ResolvedOptions
from pipeline.plan.speed_plan import find_claims
from pipeline.run.model import check_early
from pipeline.run.session import RunSession
from pipeline.stages.adopt import ADOPT, AdoptParameters, AdoptRuntime
from pipeline.stages.attempts import Remeasured
from pipeline.stages.questions import QUESTIONS
from recipes import catalog
from recipes.schema import ServingProfile


@dataclass(frozen=True)
class Remeasurement:
    """A new measurement of registered weights."""

    version: Version  # as registered
    registry: str | None  # its URI as asked for; None: the store's own
    past: RecordedVerdict  # verdict and evidence
    folder: Path  # of the version's files, which have been checked
    source: str  # name of the checkpoint that is the baseline
    profile: ServingProfile  # that both are served by
    node: NodeInfo  # that serves, or one of its kind
    eval_data: Path | None  # the user's folder of evaluation data, if any
    remeasured: Remeasured  # what is measured again though it is over
    draft: Checkpoint | None = None  # that drafts for the weights, where the profile names one

    def choices(self) -> ResolvedOptions:
        """Return the options, in the form of `prepare model`'s.

        Raises:
            UsageError: a speed gate of the policy cannot be measured on this kind of machine.
            CheckpointError: the source's name does not exist here.
        """
        policy = self.past.policy
        find_claims(policy, self.profile)
        with self._explain_source():
            reference = parse_reference(self.source)
        return ResolvedOptions(
            reference=reference,
            recipes=(self.past.recipe,),
            baseline=catalog.load_recipe(catalog.BASELINE),
            profile=self.profile,
            policy=policy,
            asked=RequestedOptions((self.past.recipe.name,), self.profile.name, policy.name),
            name=self.version.name,
            registry=self.registry,
            eval_data=self.eval_data.expanduser().resolve() if self.eval_data else None,
            trust_remote_code=self.past.judged.trust_remote_code,
            node=self.node,
            promote=False,
        )

    def command(self, choices: ResolvedOptions, changed: list[str]) -> dict[str, Any]:
        return {
            **choices.to_dict(),
            "recheck": f"{self.version.name}@{self.version.version}",
            "changed": changed,
            "attempted": [recipe.name for recipe in self.past.tried],
        }

    def run(self, choices: ResolvedOptions, session: RunSession) -> None:
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

        plan = self._plan(choices, checkpoint, settings, sources, session.log.run_id)
        self._tell_of_questions(plan, progress)
        discard_if_gone(plan, stages.store, settings.digests)
        session.carry_out(plan)

    def _source(self, choices: ResolvedOptions, session: RunSession) -> Checkpoint:
        settings, stages, progress = session.settings, session.stages, session.progress
        with self._explain_source():
            checkpoint = locate(choices, settings, stages.output_of, progress)
        if checkpoint.digest != self.past.checkpoint_digest:
            raise CheckpointError(
                f"this is not the checkpoint that the verdict was against: its digest is "
                f"{checkpoint.digest[:12]}, then it was {self.past.checkpoint_digest[:12]}",
                where=str(checkpoint.path),
                hint=self._hint,
            )
        return checkpoint

    @contextmanager
    def _explain_source(self) -> Iterator[None]:
        try:
            yield
        except (CheckpointError, UsageError) as error:
            raise CheckpointError(
                f"the source checkpoint, which is the baseline, is unavailable: {error.message}",
                where=error.where or self.source,
                hint=self._hint,
            ) from error

    @property
    def _hint(self) -> str:
        return (
            f"say where the same checkpoint is now, a folder or a Hub id: "
            f"prepare recheck {self.version.name}@{self.version.version} --source CHECKPOINT"
        )

    def _plan(
        self,
        choices: ResolvedOptions,
        checkpoint: Checkpoint,
        settings: Settings,
        sources: SourceResolver,
        run_id: str,
    ) -> Plan:
        planner = make_planner(choices, checkpoint, settings, sources, self.draft)
        remeasured = replace(self.remeasured, runs=self.remeasured.runs | {run_id})
        return replace(
            planner,
            policy=choices.policy,  # to the letter
            made={self.past.recipe.name: self._adopt_stage(checkpoint, settings)},
            tried=self.past.tried,
            run=run_id,
            remeasured=remeasured,
        ).plan()

    def _adopt_stage(self, checkpoint: Checkpoint, settings: Settings) -> StageSpec:
        """Return the stage that links the registered weights; its key has their digests."""
        registered = inspect_folder(
            self.folder,
            ref=str(self.folder),
            kind="folder",
            revision=None,
            digests=settings.digests,
        )
        made = self.past.judged.quantize
        return ADOPT.spec(
            self.past.bundle.recipe,
            AdoptParameters(
                checkpoint=checkpoint.digest,
                files={file.name: file.sha256 for file in registered.files},
                quantization=made.parameters.quantization,
                calibration_data=made.parameters.calibration_data,
                environment=made.parameters.environment,
                made=made.result,
            ),
            {},
            AdoptRuntime(folder=str(self.folder)),
            settings.store,
        )

    def _tell_of_questions(self, plan: Plan, progress: Progress) -> None:
        for suite, then in self.past.sources.items():
            now = QUESTIONS.parameters_of(plan.shared[f"questions.{suite}"]).source
            if now != then:
                progress.note(
                    f"{suite}: its questions come from another source than then: "
                    f"{now.model_dump()}, not {then.model_dump()}"
                )


def discard_if_gone(plan: Plan, store: Store, digests: FileDigests) -> None:
    """Remove adopted weights whose files are missing or changed, so that they are adopted again.

    They may be links to a folder that a user has removed since.
    """
    for variant in plan.variants:
        spec = variant.stages["quantize"]
        output = store.stage_folder(spec.stage, spec.key) / "output"
        if store.find(spec.stage, spec.key) is None:
            continue
        try:
            same = all(
                digests.digest(output / name) == digest
                for name, digest in ADOPT.parameters_of(spec).files.items()
            )
        except CheckpointError:
            same = False
        if not same:
            store.discard(spec.stage, spec.key)


def cut_short(store: Store, registry: str | None, version: Version) -> frozenset[str]:
    """Return ids of a version's unfinished forced rechecks, which are continued."""
    asked, found = f"{version.name}@{version.version}", set()
    for folder in reversed(RunFolders(store).all()):
        try:
            run = read_run(folder)
        except StoreError:  # of another version of prepare, or damaged: not one to continue
            continue
        options = run.options
        if options.recheck == asked and options.registry == registry:
            if run.status in ("finished", "running"):
                break
            if options.force:
                found.add(run.run)
    return frozenset(found)
