"""Locates a run's checkpoints and refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import Choice
from pipeline.plan.serving_profile import draft_reference
from pipeline.stages.demo_checkpoint import DEMO_CHECKPOINT, DEMO_LOCK, DemoParameters
from pipeline.stages.dequantize import DEQUANTIZE, DequantizeParameters, DequantizeRuntime
from prepare.digest import digest_bytes
from prepare.errors import CheckpointError
from prepare.events import Progress
from prepare.stage import StageSpec, WorkerRuntime
from recipes.checkpoints import unsupported
from recipes.checkpoints.folder import Checkpoint, CheckpointReference, inspect_folder, read_config
from recipes.checkpoints.header_source import read_folder
from recipes.checkpoints.hub import download
from recipes.schema import ServingProfile
from recipes.weights.files import check_adopted_files

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
    trusts_code: bool = False

    def all(self, choices: Choice) -> Located:
        """Locate every checkpoint."""
        source = self.source(choices)
        return Located(source, self.variants(choices, source), self.draft())

    def source(self, choices: Choice, *, to_quantize: bool = True) -> Checkpoint:
        """Locate the source; CheckpointError if recipes need 16-bit weights that it cannot give."""
        checkpoint = self._fetch(choices.reference)
        where = str(checkpoint.path / "config.json")
        config = read_config(checkpoint.path)
        if fault := unsupported.architecture_error(checkpoint.architecture, config, where):
            raise fault
        form = read_folder(checkpoint.path).format
        if form is None or not to_quantize:
            return checkpoint
        if fault := unsupported.dequantization_error(where, form):
            if any(recipe.quantization.quantizes for recipe in choices.recipes):
                raise fault
            return checkpoint
        assert form.converter is not None
        accelerator = Accelerator(self.profile.accelerator)
        spec = DEQUANTIZE.spec(
            "dequantized",
            DequantizeParameters(
                checkpoint=checkpoint.digest,
                converter=form.converter,
                environment=identity("quantize", accelerator, self.settings),
            ),
            {},
            DequantizeRuntime(checkpoint=checkpoint, environment="quantize"),
            self.settings.store,
        )
        made = self._inspect(self.make(spec), ref=checkpoint.ref, kind="folder", revision=None)
        return checkpoint.model_copy(update={"dequantized": made})

    def draft(self) -> Checkpoint | None:
        """Locate the draft checkpoint, if any."""
        reference = draft_reference(self.profile)
        return self._fetch(reference, is_head=True) if reference else None

    def variants(self, choices: Choice, source: Checkpoint) -> dict[str, Checkpoint]:
        """Locate adopted variants; a served one's is the source.

        CheckpointError: one is the source, or has another model or tokenizer.
        """
        found = {}
        for variant in choices.adopted:
            found[variant.recipe.name] = source
            if variant.reference is None:
                continue
            made = self._fetch(variant.reference)
            if made.digest == source.digest:
                raise CheckpointError(
                    "the variant is the source itself",
                    where=str(made.path),
                    hint="name the checkpoint that was made of it",
                )
            check_adopted_files(source.path, made.path)
            found[variant.recipe.name] = made
        return found

    def _fetch(self, reference: CheckpointReference, *, is_head: bool = False) -> Checkpoint:
        revision = None
        if reference.kind == "demo":
            folder = self.make(demo_stage(reference, self.profile, self.settings))
        elif reference.kind == "hub":
            name = reference.name
            folder, revision = download(name, reference.revision, progress=self.progress)
        else:
            folder = Path(reference.name).expanduser()
        found = self._inspect(
            folder, ref=reference.text, kind=reference.kind, revision=revision, is_head=is_head
        )
        if found.needs_remote_code and not self.trusts_code:
            raise unsupported.own_code_error(str(found.path / "config.json"))
        return found

    def _inspect(self, folder: Path, **facts: Any) -> Checkpoint:
        digests = self.settings.digests
        progress = self.progress
        return inspect_folder(folder, digests=digests, progress=progress, **facts)


def demo_stage(
    reference: CheckpointReference, profile: ServingProfile, settings: Settings
) -> StageSpec:
    """Return the stage that makes the demo checkpoint."""
    return DEMO_CHECKPOINT.spec(
        "demo",
        DemoParameters(
            model=reference.name,
            package=digest_bytes(DEMO_LOCK.read_bytes()),
            environment=identity("quantize", Accelerator(profile.accelerator), settings),
        ),
        {},
        WorkerRuntime(environment="quantize"),
        settings.store,
    )
