"""A registered version on this machine, as the variant of a plan.

Its baseline is the version's own recorded answers, or its source checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from artifacts.deploy.registered import RegisteredVersion
from artifacts.deployable import Deployable
from pipeline.environments.definition import SUITE_ASKER, WEIGHT_READER
from pipeline.environments.settings import Settings
from pipeline.plan.build import Builder
from pipeline.plan.choice import Choice
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.generation_settings import max_length_of
from pipeline.plan.locator import Located
from pipeline.plan.model_plan import ModelPlanner
from pipeline.plan.plan import Arm, Plan
from pipeline.plan.recorded_arm import RecordedArm
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages import CHECKED_WEIGHTS, WEIGHTS
from pipeline.stages.adopt import ADOPT, AdoptParameters, AdoptRuntime
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsRuntime
from pipeline.stages.evaluate import EVALUATE
from prepare.errors import CheckpointError, UsageError
from prepare.hardware import NodeInfo
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.catalog import BASELINE, load_recipe
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder
from recipes.checkpoints.weight_files import ARCHIVE
from recipes.engines import find_engine
from recipes.schema import ServingProfile


@dataclass(frozen=True)
class Here:
    """This machine, and how a registered version is served on it.

    `identities` are of the environments, by name.
    """

    node: NodeInfo
    profile: ServingProfile
    identities: Mapping[str, str]
    engine_version: str
    draft: Checkpoint | None = None

    @property
    def served(self) -> ServingProfile:
        """The profile, as it is applied."""
        return self.profile.as_applied(self.draft.digest if self.draft else None)

    @property
    def model_of(self) -> dict[str, object]:
        """What identifies a served variant here, besides its weights."""
        draft = self.draft.digest if self.draft else None
        return {
            "serving": ServingArguments.of(self.profile, is_baseline=False, draft=draft),
            "engine": self.identities[find_engine(self.profile.engine).environment],
            "hardware": self.node.hardware(self.profile.accelerator),
        }

    def tuple_of(self, past: RegisteredVersion) -> Deployable:
        """Return the version's deployable tuple on this machine."""
        model = self.model_of
        return past.deployable.model_copy(
            update={
                "engine_version": self.engine_version,
                "serve_environment": model["engine"],
                "evaluate_environment": self.identities[SUITE_ASKER],
                "serving": model["serving"],
                "hardware": model["hardware"],
            }
        )


@dataclass(frozen=True)
class RegisteredPlanner:
    """Builder of the plans that a recheck finishes.

    `remeasured` gates are measured again.
    """

    past: RegisteredVersion
    here: Here
    settings: Settings
    run: str
    remeasured: Collection[str] = ()

    def against_record(self, record: RecordedArm, sources: SourceResolver) -> Plan:
        """Return the plan of the variant here against its own recorded answers.

        UsageError: it takes less here than is on record.
        """
        past = self.past
        known = inspect_folder(past.folder, self.settings.digests)
        here = max_length_of(self.here.profile, known)
        if here < record.facts.max_length:
            raise UsageError(
                f"the profile serves {here:,} tokens of prompt and answer, and the record has up "
                f"to {record.facts.max_length:,}",
                where=f"profile {self.here.profile.name}, key engine_arguments.max-model-len",
                hint="name a profile with the recorded length",
            )
        baseline = Arm(
            recipe=load_recipe(BASELINE),
            identity=record.facts.served,
            folder=past.folder,
            max_length=record.facts.max_length,
            recorded=record,
        )
        adopted = self.adopted()
        draft = self.here.draft
        variant = Arm(
            recipe=past.recipe,
            identity=ServedModel.model_validate(
                {
                    "checkpoint": past.judged.sanity.parameters.checkpoint,
                    "trust_remote_code": past.judged.trust_remote_code,
                    **self.here.model_of,
                }
            ),
            folder=Store(self.settings.store).stage_folder(adopted.stage, adopted.key) / "output",
            max_length=record.facts.max_length,
            stages={WEIGHTS: adopted, CHECKED_WEIGHTS: self._checked(adopted)},
            draft=draft.path if draft is not None and self.here.profile.speculative else None,
            ready_timeout_seconds=self.here.profile.ready_timeout_seconds,
        )
        return Builder(
            policy=record.policy,
            baseline=baseline,
            variants=[variant],
            reference=record.reference,
            sources=sources,
            identities=self.here.identities,
            store=self.settings.store,
            machine=self.here.node.machine,
            profile=self.here.served,
            run=self.run,
            remeasured=[gate for gate in self.remeasured if gate in record.policy.suites],
            least_number=self._least_number,
        ).build()

    def against_source(self, choices: Choice, source: Checkpoint, sources: SourceResolver) -> Plan:
        """Return the plan of the variant against its source, both served here."""
        past = self.past
        # The policy is that of the verdict, to the letter.
        choices = replace(choices, policy=past.policy, remeasured=tuple(self.remeasured))
        return ModelPlanner(
            choices,
            Located(source, draft=self.here.draft),
            self.here.identities,
            sources,
            self.settings.store,
            made={past.recipe.name: self.adopted()},
            tried=past.bundle.attempted,
            run=self.run,
            least_number=self._least_number,
        ).plan()

    @property
    def _least_number(self) -> int:
        """Least number of a new measurement: the store may have the answers on record."""
        asked = self.past.judged.evaluations.values()
        return 1 + max(EVALUATE.parameters_of(record.record).measurement_number for record in asked)

    def adopted(self) -> StageSpec:
        """Return the stage that takes the registered weights over."""
        past = self.past
        made = past.judged.weights
        files = inspect_folder(past.folder, self.settings.digests).files
        return ADOPT.spec(
            past.bundle.recipe,
            AdoptParameters(
                checkpoint=past.judged.sanity.parameters.checkpoint,
                files={file.name: file.sha256 for file in files},
                quantization=made.parameters.quantization,
                calibration_data=made.parameters.calibration_data,
                environment=made.parameters.environment,
                made=made.result,
            ),
            {},
            AdoptRuntime(folder=str(past.folder)),
            self.settings.store,
        )

    def _checked(self, adopted: StageSpec) -> StageSpec:
        """Return the check of the weights, which is on record: its source may be gone."""
        recorded = self.past.judged.checked_weights
        runtime = CheckWeightsRuntime(
            environment=WEIGHT_READER,
            archive=str(self.past.folder / ARCHIVE),
            recorded=recorded.record.key,
        )
        inputs = {WEIGHTS: adopted}
        store = self.settings.store
        return CHECK_WEIGHTS.spec(adopted.variant, recorded.parameters, inputs, runtime, store)


def discard_if_gone(adopt: StageSpec, store: Store, settings: Settings) -> None:
    """Remove missing or changed adopted weights, which may be links."""
    if store.find(adopt.stage, adopt.key) is None:
        return
    output = store.stage_folder(adopt.stage, adopt.key) / "output"
    try:
        files = ADOPT.parameters_of(adopt).files.items()
        if all(settings.digests.digest(output / name) == digest for name, digest in files):
            return
    except CheckpointError:
        pass
    store.discard(adopt.stage, adopt.key)
