"""Resolves `prepare plan --gpu`, and the GPUs of a run's servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from artifacts.requests import ModelRequest
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice, choose
from pipeline.plan.locator import demo_stage
from pipeline.plan.rungs import with_rungs
from pipeline.plan.serving_profile import draft_reference
from pipeline.preflight.machine import gpu_type, machine_of
from pipeline.preflight.memory import (
    SMALL_FILES_BYTES,
    Fit,
    Gpus,
    Model,
    choose_gpus,
    divisors,
    variants_of,
)
from pipeline.preflight.suitability import find_making_faults
from prepare.errors import CheckpointError, PrepareError, UsageError
from prepare.events import NullProgress
from prepare.own_command import own_command
from recipes import catalog
from recipes.checkpoints import unsupported
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.config_alone import read_config_alone
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import CheckpointReference
from recipes.checkpoints.variant_size import VariantWeights
from recipes.checkpoints.weight_files import are_other_weights
from recipes.engine_arguments import DIVIDES_GPUS
from recipes.engines import find_engine
from recipes.schema import Recipe, ServingProfile

OTHER_DIVISIONS = tuple(name for name in DIVIDES_GPUS if name != "tensor-parallel-size")


@dataclass(frozen=True)
class CapacityPlan:
    """The report of `prepare plan --gpu`."""

    gpus: Gpus
    weights: Mapping[str, VariantWeights]  # by variant, the baseline first
    fits: tuple[Fit, ...]  # each variant on each number of GPUs
    gpus_a_copy: int  # of one replica of each model of a run
    refused: tuple[PrepareError, ...]  # what `prepare model` would refuse
    notes: tuple[str, ...]

    def chosen(self) -> list[Fit]:
        """Return the fits on a replica's GPUs."""
        return [fit for fit in self.fits if fit.gpus == self.gpus_a_copy]

    def disk_bytes(self) -> int:
        """Return the checkpoint's and variants' disk bytes."""
        made = [weights.bytes + SMALL_FILES_BYTES for weights in [*self.weights.values()][1:]]
        return self.gpus.model.source.weights_bytes + sum(made)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        model = self.gpus.model
        return {
            "schema_version": 2,
            "checkpoint": model.source.ref,
            "architecture": model.shape.architecture,
            "parameters": model.parameters(),
            "gpu": self.gpus.gpu.model_dump(),
            "gpus": self.gpus.number,
            "gpus_a_copy": self.gpus_a_copy,
            "context": self.gpus.context,
            "serving": self.gpus.engine.source,
            "weights_bytes": {name: weights.bytes for name, weights in self.weights.items()},
            "fits": [asdict(fit) for fit in self.fits],
            "disk_bytes": self.disk_bytes(),
            "refused": [fault.to_dict() for fault in self.refused],
            "notes": list(self.notes),
        }


def answer(
    request: ModelRequest, settings: Settings, gpu_name: str, gpus: int, context: int | None
) -> CapacityPlan:
    """Fit the checkpoint and its variants on GPUs; config.json suffices.

    Profile "auto" is that of the requested GPU. UsageError: an unknown name or unsuitable number.
    CheckpointError: missing or damaged.
    """
    gpu = catalog.load_gpu(gpu_name)
    if request.profile == "auto":
        profile = catalog.profile_for_gpu(gpu.driver_name)
    else:
        profile = catalog.load_profile(request.profile)
    _check_number(request.gpus_a_copy, gpus)
    # Recipes and checkpoint do not depend on the profile. This machine may lack the requested GPU,
    # so its own is not inspected.
    choices = choose(replace(request, profile="cpu", gpus_a_copy=None), settings)
    source = _read_config_or_more(choices, settings)
    if profile is not None:
        choices = replace(choices, profile=profile)
    choices = with_rungs(choices, source, NullProgress())
    if choices.rungs:
        names = ", ".join(choices.rungs)
        raise UsageError(
            f"what {names} gives back is known only by 16-bit weights, which are not here",
            where="--recipe",
            hint="download the checkpoint, or name the recipe's file that a run wrote",
        )
    model = Model.of(source)
    adopted = choices.headers
    # Weights that cannot be converted to 16 bits can only be served as they are.
    is_open = source.format is None or source.format.converter is not None
    recipes = [recipe for recipe in choices.recipes if is_open or recipe.name in adopted]
    known = choices.checkpoints
    draft = read_draft(profile, settings, known) if profile else None
    draft_bytes = draft.weights_bytes if draft else 0
    site = Gpus.of(model, gpu, gpus, profile, context, draft_bytes, choices.kv_formats)
    weights = variants_of(source, [choices.baseline, *recipes], adopted)
    fixed = request.gpus_a_copy or (profile and profile.gpus_a_copy)
    fits = site.fits(weights, [fixed] if fixed else divisors(gpus))
    refused: list[PrepareError | None] = [
        unsupported.architecture_error(source.architecture, source.config, source.where)
    ]
    if (file := source.code_file) and not request.trust_remote_code:
        refused.append(unsupported.own_code_error(str(Path(source.where).with_name(file))))
    for recipe in recipes:
        if recipe.quantization.quantizes and recipe.name not in adopted:
            refused += find_making_faults(recipe, model.recipe_source, weights[recipe.name])
    engine = find_engine(profile.engine if profile else choices.profile.engine)
    for kv_format in dict.fromkeys(choices.kv_formats.values()):
        if lack := engine.lacks_cache(kv_format, source.config, gpu.compute_capability):
            hint = "leave the format out"
            refused.append(UsageError(lack, where=f"--kv {kv_format}", hint=hint))
    for recipe in recipes:
        if lack := recipe.lacks_kernels_on(gpu.compute_capability):
            words = f"{recipe.name} {lack}, {gpu.name} has {gpu.compute_capability}"
            refused.append(UsageError(words, where="--gpu", hint="leave the recipe out"))
    if all(fit.answer == "does not fit" for fit in fits if fit.variant == catalog.BASELINE):
        fit = fits[0]
        words = f"the baseline cannot be served on {fit.gpus} x {gpu.name}: {fit.reason}"
        where = "--gpus-a-copy" if fixed else "--gpu, --gpus"
        refused.append(UsageError(words, where=where, hint=fit.hint))
    return CapacityPlan(
        site,
        weights,
        fits,
        fixed or choose_gpus(fits),
        tuple(fault for fault in refused if fault is not None),
        (*_notes(site), *gpu_remarks(recipes, gpu.compute_capability)),
    )


def spread_over_gpus(choices: Choice, settings: Settings) -> Choice:
    """Return the options of a profile for GPUs with a replica's number of them in it.

    It is the request's, the profile's, or the fewest that fit all models. Expert parallelism is
    switched on if necessary. UsageError: too few GPUs.
    """
    profile = choices.profile
    asked = choices.asked.gpus_a_copy
    if asked is None and any(key in profile.engine_arguments for key in OTHER_DIVISIONS):
        return choices
    machine = machine_of(choices.node, settings.store, with_gpu=True)
    gpu = gpu_type(machine)
    experts = False
    number = fixed = asked or profile.gpus_a_copy
    if gpu is not None and machine.gpus > 1:
        _check_number(asked, machine.gpus)
        try:
            model = Model.of(read_source(choices, settings))
        except CheckpointError:  # of unknown shape, or a demo that is not made yet
            pass
        else:
            draft = read_draft(profile, settings, choices.checkpoints)
            draft_bytes = draft.weights_bytes if draft else 0
            pairs = choices.kv_formats
            site = Gpus.of(
                *(model, gpu, machine.gpus, profile), draft_bytes=draft_bytes, kv_formats=pairs
            )
            recipes = [choices.baseline, *choices.recipes]
            weights = variants_of(model.source, recipes, choices.headers)
            fits = site.fits(weights, [fixed] if fixed else divisors(machine.gpus))
            number = fixed or choose_gpus(fits)
            experts = any(fit.expert_parallel for fit in fits if fit.gpus == number)
    return replace(choices, profile=profile.spread_over(number or 1, expert_parallel=experts))


def gpu_remarks(recipes: Iterable[Recipe], compute_capability: float | None) -> list[str]:
    """Return how a GPU deviates from recipes."""
    if compute_capability is None:
        return []
    return [words for recipe in recipes if (words := recipe.remark_on(compute_capability))]


def _read_config_or_more(choices: Choice, settings: Settings) -> Checkpoint:
    """Do as :func:`read_source`; a folder may have config.json alone."""
    reference = choices.reference
    if reference.kind == "folder":
        folder = Path(reference.name).expanduser()
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if not any(".safetensors" in name or are_other_weights(name) for name in names):
            return read_config_alone(folder, reference.text)
    return read_source(choices, settings)


def read_source(choices: Choice, settings: Settings) -> Checkpoint:
    """Read config and headers.

    CheckpointError: missing, damaged, or a demo not made yet.
    """
    return _read(choices.reference, choices.profile, settings, choices.checkpoints)


def read_draft(
    profile: ServingProfile, settings: Settings, known: Checkpoints
) -> Checkpoint | None:
    """Return the draft model; None if none is found.

    UsageError: an invalid checkpoint name.
    """
    reference = draft_reference(profile)
    if reference is None:
        return None
    try:
        return _read(reference, profile, settings, known)
    except CheckpointError:  # the download reports it
        return None


def _check_number(asked: int | None, gpus: int) -> None:
    if asked is not None and asked > gpus:
        raise UsageError(
            f"a copy cannot be spread over {asked} GPUs of {gpus}",
            where=f"--gpus-a-copy {asked}",
            hint=f"give at most {gpus}",
        )


def _notes(site: Gpus) -> Iterator[str]:
    source = site.model.source
    if not source.largest_file_bytes:
        yield "there are no weights here: their shapes are estimated from config.json"
    if (form := source.format) is not None:
        after = "recipes start from them in 16 bits" if form.converter else form.reason
        yield f"the baseline has {form.label} weights, as released; {after}"
    if site.draft_bytes:
        yield (
            f"of variants' weights {decimal(site.draft_bytes)} are the draft model's; its own "
            "KV cache is not counted"
        )


def _read(
    reference: CheckpointReference,
    profile: ServingProfile,
    settings: Settings,
    known: Checkpoints,
) -> Checkpoint:
    if reference.kind != "demo":
        return known.read(reference)
    spec = demo_stage(reference, profile, settings)
    store = settings.open_store()
    if store.find(spec.stage, spec.key) is None:
        raise CheckpointError(
            "the demo checkpoint is not made yet",
            where=reference.text,
            hint=f"make it by: {own_command('model', reference.text)}",
        )
    return known.read(reference, store.stage_folder(spec.stage, spec.key) / "output")
