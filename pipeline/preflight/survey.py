"""What options, files and this machine show before any work.

`model`, `plan` and `recheck` share it, and refuse the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.registry import Registry
from pipeline.environments.definition import SUITE_ASKER, WEIGHT_READER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice
from pipeline.plan.data_sources import SourceResolver, check_known_clusters
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.rungs import with_rungs
from pipeline.preflight.build_faults import find_build_faults, find_library_fault
from pipeline.preflight.gpu_fit import read_draft, read_source
from pipeline.preflight.machine import (
    existing_folder,
    find_driver_fault,
    find_missing_gpus,
    machine_of,
)
from pipeline.preflight.power import check_power
from pipeline.preflight.preflight import Preflight
from pipeline.preflight.suitability import find_drafting_fault
from pipeline.preflight.tokenizer_faults import reading_faults
from prepare.errors import (
    CheckpointError,
    HubError,
    PreflightError,
    PrepareError,
    RegistryError,
    UsageError,
)
from prepare.events import Progress
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.hub import bytes_to_download
from recipes.checkpoints.reference import CheckpointReference
from recipes.engines import find_engine
from recipes.policy import Policy


@dataclass(frozen=True)
class Survey:
    """Data sources, checks, faults, and notes.

    Without a local checkpoint, `preflight` is None. `choices` are those that were given, with the
    modules that rungs give back if the weights are here.
    """

    choices: Choice

    sources: SourceResolver
    preflight: Preflight | None
    faults: tuple[PrepareError, ...]
    notes: tuple[str, ...]


def survey(
    choices: Choice,
    settings: Settings,
    progress: Progress,
    made: frozenset[str] = frozenset(),
    *,
    registers: bool = False,
) -> Survey:
    """Read config.json, headers, small files and this machine.

    `made` recipes have weights. `registers`: check the registry. UsageError: no such folder of
    evaluation data.
    """
    profile = choices.profile
    policy = choices.policy
    kind = profile.accelerator
    engine = find_engine(profile.engine)
    evaluate = identity(SUITE_ASKER, kind, settings)
    sources = SourceResolver(choices.eval_data, evaluate, settings.digests, progress)
    machine = machine_of(choices.node, settings.store, with_gpu=profile.accelerator == "cuda")
    if {WEIGHT_READER, engine.environment} <= settings.environments.keys():
        machine = replace(machine, driver="")  # the site's own interpreters may need another
    if (fault := settings.open_store().find_fault()) is not None:
        return Survey(
            choices, sources, None, (fault,), choices.left_out
        )  # a run ends before all else
    faults: list[PrepareError | None] = [find_library_fault(engine, kind, settings)]
    preflight = None
    try:
        source = read_source(choices, settings)
    except CheckpointError as error:
        if choices.reference.kind == "demo" or isinstance(error, HubError):
            faults += find_missing_gpus(profile, machine), find_driver_fault(profile, machine)
            faults.append(_find_hub_fault(choices.reference))
        else:
            faults.append(error)
    else:
        policy = resolve_generation(policy, source.generation)
        try:
            choices = with_rungs(choices, source, progress)
        except UsageError as error:
            faults.append(error)
        draft = read_draft(profile, settings, choices.checkpoints)
        drafted = draft.weights_bytes if draft else 0
        preflight = Preflight(source, choices, machine, settings.store, made, drafted)
        faults += preflight.faults()
        faults.append(find_drafting_fault(draft, profile) if draft else None)
        if not any(faults):
            faults += reading_faults(source, choices.environments, kind, settings)
        faults += _disk_faults(preflight, choices)
    variants = 0
    is_first = preflight is not None and not _has_variants(preflight, choices)
    if preflight is not None and is_first and _is_same_disk(settings.store, settings.home):
        variants = preflight.bytes_to_make()
    faults += find_build_faults(choices.environments, kind, settings, at_once=variants)
    faults += _question_faults(choices, policy, sources, settings, progress)
    if registers:
        faults += _registry_faults(choices, settings)
    notes = (*choices.left_out, *(preflight.notes() if preflight else ()))
    return Survey(choices, sources, preflight, tuple(f for f in faults if f is not None), notes)


def check_early(
    choices: Choice,
    settings: Settings,
    progress: Progress,
    made: frozenset[str] = frozenset(),
    *,
    registers: bool = False,
) -> Survey:
    """Refuse in one error what would fail later; note the rest."""
    surveyed = survey(choices, settings, progress, made, registers=registers)
    for note in surveyed.notes:
        progress.note(note)
    refuse(surveyed.faults)
    return surveyed


def _find_hub_fault(reference: CheckpointReference) -> HubError | None:
    """Return why the checkpoint cannot be fetched."""
    if reference.kind == "hub":
        try:
            bytes_to_download(reference.name, reference.revision)
        except HubError as fault:
            return fault
    return None


def _question_faults(
    choices: Choice,
    policy: Policy,
    sources: SourceResolver,
    settings: Settings,
    progress: Progress,
) -> Iterator[PrepareError]:
    """Yield faults of questions, or an undecidable gate."""
    missing = list(sources.faults(policy))
    yield from missing
    if not missing and not choices.asked.is_screening:  # without gates nothing is to be decided
        try:
            check_known_clusters(policy, sources, progress)
            known = sources.known_of(policy)
            check_power(choices.policy, choices.recipes, known, choices.level)
        except UsageError as fault:
            yield fault


def check_fitted(
    fitted: Policy, choices: Choice, checkpoint: Checkpoint, sources: SourceResolver
) -> None:
    """Check the power of a policy without the questions that are too long for the model.

    UsageError: as `check_power`.
    """
    resolved = resolve_generation(choices.policy, checkpoint.generation)
    if fitted != resolved and not choices.asked.is_screening:
        check_power(fitted, choices.recipes, sources.known_of(fitted), choices.level)


def _disk_faults(preflight: Preflight, choices: Choice) -> list[PrepareError]:
    """Check the disk if the store has no variants."""
    reference = choices.reference
    if _has_variants(preflight, choices):
        return []
    download = 0
    if reference.kind == "hub" and _is_same_disk(preflight.store, _hub_cache()):
        download = bytes_to_download(reference.name, reference.revision)
    return preflight.disk_fault((), download)


def _has_variants(preflight: Preflight, choices: Choice) -> bool:
    """Return whether the store has variants, of which some may be this run's."""
    folder = preflight.store / "stages" / "quantize"
    all_made = preflight.made.issuperset(recipe.name for recipe in choices.recipes)
    return not all_made and folder.is_dir() and any(folder.iterdir())


def _registry_faults(choices: Choice, settings: Settings) -> Iterator[PrepareError]:
    """Yield a fault of the registry."""
    uri = settings.registry_uri(choices.asked.registry)
    try:
        Registry(uri).check(choices.name)
    except RegistryError as error:
        kind = RegistryError if uri.startswith("http") else PreflightError
        without = "or use `prepare model --no-promote`, and `prepare promote` the run later"
        yield kind(error.message, where=error.where, hint=f"{error.hint}; {without}")


def refuse(faults: Iterable[PrepareError]) -> None:
    """Raise the faults as one error, if any."""
    if (refused := refusal(list(faults))) is not None:
        raise refused


def refusal(faults: Sequence[PrepareError]) -> PrepareError | None:
    """Return the faults as one error, or None."""
    if len(faults) < 2:
        return next(iter(faults), None)
    listed = "\n".join(f"  {n}. {line(fault)}" for n, fault in enumerate(faults, start=1))
    return PreflightError(f"{len(faults)} things would make this run fail\n{listed}")


def line(fault: PrepareError) -> str:
    """Return message, place and hint in one line."""
    place = f"; where: {fault.where}" if fault.where else ""
    return f"{fault.message}{place}" + (f"; hint: {fault.hint}" if fault.hint else "")


def _hub_cache() -> Path:
    """Return where checkpoints of the Hub are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _is_same_disk(*places: Path) -> bool:
    return len({existing_folder(place).stat().st_dev for place in places}) == 1
