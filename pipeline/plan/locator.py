"""Locates a run's checkpoints and refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.environments.definition import WEIGHT_READER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice
from pipeline.plan.serving_profile import draft_reference
from pipeline.stages.demo_checkpoint import DEMO_CHECKPOINT, DEMO_LOCK, DemoParameters
from pipeline.stages.dequantize import DEQUANTIZE, DequantizeParameters, DequantizeRuntime
from prepare.digest import digest_bytes
from prepare.errors import CheckpointError
from prepare.events import Progress
from prepare.stage import StageSpec, WorkerRuntime
from recipes.checkpoints import unsupported
from recipes.checkpoints.checkpoint import Checkpoint, hash_checkpoint, read_folder
from recipes.checkpoints.hub import download
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import CheckpointReference
from recipes.schema import ServingProfile
from recipes.weights.auxiliary_files import check_adopted_files

Make = Callable[[StageSpec], Path]
"""Runs a stage and returns the checkpoint's folder."""


@dataclass(frozen=True)
class Located:
    """Inspected source, adopted variants and draft."""

    source: Checkpoint
    adopted: Mapping[str, Checkpoint] = field(default_factory=dict)
    draft: Checkpoint | None = None


@dataclass(frozen=True)
class Locator:
    """Finds, fetches or makes a run's checkpoints, and inspects them.

    Methods raise CheckpointError for one that is missing, damaged, unsupported, or has code that is
    not trusted.
    """

    profile: ServingProfile
    settings: Settings
    make: Make
    progress: Progress
    known: Checkpoints  # whose headers are read already
    trusts_code: bool = False

    def all(self, choices: Choice) -> Located:
        """Locate every checkpoint."""
        source = self.source(choices)
        return Located(source, self.variants(choices, source), self.draft())

    def source(self, choices: Choice, *, to_quantize: bool = True) -> Checkpoint:
        """Locate the source; CheckpointError if recipes need 16-bit weights that it cannot give."""
        checkpoint = self._hash(self._trusted(self._find(choices.reference)))
        where = checkpoint.where
        if fault := unsupported.architecture_error(
            checkpoint.architecture, checkpoint.config, where
        ):
            raise fault
        form = checkpoint.format
        if form is None or not to_quantize:
            return checkpoint
        if fault := unsupported.dequantization_error(where, form):
            if any(recipe.quantization.quantizes for recipe in choices.recipes):
                raise fault
            return checkpoint
        assert form.converter is not None
        accelerator = self.profile.accelerator
        spec = DEQUANTIZE.spec(
            "dequantized",
            DequantizeParameters(
                checkpoint=checkpoint.digest,
                converter=form.converter,
                environment=identity(WEIGHT_READER, accelerator, self.settings),
            ),
            {},
            DequantizeRuntime(checkpoint=checkpoint.place, environment=WEIGHT_READER),
            self.settings.store,
        )
        made = self._hash(read_folder(self.make(spec), checkpoint.ref))
        return replace(checkpoint, dequantized=made)

    def draft(self) -> Checkpoint | None:
        """Locate the draft checkpoint, if any."""
        reference = draft_reference(self.profile)
        if reference is None:
            return None
        return self._hash(self._trusted(self._find(reference)), is_head=True)

    def variants(self, choices: Choice, source: Checkpoint) -> dict[str, Checkpoint]:
        """Locate adopted variants; a served one's is the source.

        CheckpointError: one is the source, or has another model or tokenizer.
        """
        checkpoints = {}
        for variant in choices.adopted:
            checkpoints[variant.recipe.name] = source
            if variant.reference is None:
                continue
            checkpoint = self._find(variant.reference)
            check_adopted_files(source, checkpoint)  # before weights are hashed
            made = self._hash(self._trusted(checkpoint))
            if made.digest == source.digest:
                raise CheckpointError(
                    "the variant is the source itself",
                    where=str(made.path),
                    hint="name the checkpoint that was made of it",
                )
            checkpoints[variant.recipe.name] = made
        return checkpoints

    def _find(self, reference: CheckpointReference) -> Checkpoint:
        """Fetch or make the checkpoint."""
        if reference.kind == "demo":
            made = self.make(demo_stage(reference, self.profile, self.settings))
            return self.known.read(reference, made)
        if reference.kind == "hub":
            name = reference.name
            folder, commit = download(name, reference.revision, progress=self.progress)
            return self.known.downloaded(reference, folder, commit)
        return self.known.read(reference)

    def _trusted(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return it; CheckpointError if it needs code that is not trusted."""
        if (file := checkpoint.code_file) and not self.trusts_code:
            raise unsupported.own_code_error(str(checkpoint.path / file))
        return checkpoint

    def _hash(self, checkpoint: Checkpoint, *, is_head: bool = False) -> Checkpoint:
        return hash_checkpoint(checkpoint, self.settings.digests, self.progress, is_head=is_head)


def demo_stage(
    reference: CheckpointReference, profile: ServingProfile, settings: Settings
) -> StageSpec:
    """Return the stage that makes the demo checkpoint."""
    return DEMO_CHECKPOINT.spec(
        "demo",
        DemoParameters(
            model=reference.name,
            package=digest_bytes(DEMO_LOCK.read_bytes()),
            environment=identity(WEIGHT_READER, profile.accelerator, settings),
        ),
        {},
        WorkerRuntime(environment=WEIGHT_READER),
        settings.store,
    )
