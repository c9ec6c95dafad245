"""Preflight of one run: before the checkpoint is fetched, and after planning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from artifacts.registry import Registry
from pipeline.checkpoint.hub import bytes_to_download
from pipeline.core.errors import CheckpointError, PrepareError, RegistryError
from pipeline.environments.definition import EnvironmentName
from pipeline.environments.settings import Settings
from pipeline.plan.generation_settings import generation_faults
from pipeline.plan.gpu_fit import read_draft_bytes, read_source
from pipeline.plan.machine import Machine, existing_folder, machine_of
from pipeline.plan.plan import Find, Plan
from pipeline.plan.resolved_options import ResolvedOptions, registry_uri
from pipeline.plan.speed_plan import find_claims
from pipeline.plan.tool_calls import chat_faults
from pipeline.preflight.preflight import PreflightInput


def preflight_of(choices: ResolvedOptions, settings: Settings) -> PreflightInput | None:
    """Build the checks of a run from config.json and headers.

    Returns:
        None if these cannot be read: a demo is not made yet, or a checkpoint is missing or damaged,
        which `locate` reports.
    """
    try:
        source = read_source(choices, settings)
    except CheckpointError:
        return None
    return PreflightInput(
        source=source,
        recipes=choices.recipes,
        baseline=choices.baseline,
        profile=choices.profile,
        machine=_machine(choices, settings),
        store=settings.store,
        trust_remote_code=choices.trust_remote_code,
        draft_bytes=read_draft_bytes(choices.profile, settings),
        adopted={each.recipe.name: each.header for each in choices.adopted if each.header},
    )


def early_faults(preflight: PreflightInput, choices: ResolvedOptions) -> list[PrepareError]:
    """Return the faults that are known before anything is fetched, hashed or built.

    The disk is checked only if the checkpoint must be downloaded and the store has no variants. In
    other cases the plan is needed to know what is stored.
    """
    faults = preflight.faults()
    claims = find_claims(choices.policy, choices.profile)
    if choices.profile.starts == "once" and any(each.rule.compares for each in claims):
        faults += preflight.pair_faults()
    source = preflight.source
    faults += generation_faults(choices.policy, source.generation, preflight.longest, source.config)
    faults += chat_faults(choices.policy, source.generation, choices.profile, source.config)
    reference = choices.reference
    if reference.kind == "hub" and not _may_have_variants(preflight):
        missing = bytes_to_download(reference.name, reference.revision)
        if missing:
            here = missing if _is_on_the_same_disk(preflight.store) else 0
            faults += preflight.disk_fault((), here)
    return faults


def registry_faults(choices: ResolvedOptions, settings: Settings) -> list[PrepareError]:
    """Return the fault of a registry that would refuse a promotion."""
    if not choices.promote:
        return []
    try:
        Registry(registry_uri(choices.registry, settings)).check(choices.name)
    except RegistryError as error:
        without = "or measure now with --no-promote, and `prepare promote` the run later"
        return [RegistryError(error.message, where=error.where, hint=f"{error.hint}; {without}")]
    return []


def late_faults(preflight: PreflightInput, plan: Plan, find: Find) -> list[PrepareError]:
    """Return the fault of too little disk for the variants that are not in the store."""
    made = {v.recipe.name for v in plan.variants if find(v.stages["quantize"]) is not None}
    return preflight.disk_fault(made)


def _machine(choices: ResolvedOptions, settings: Settings) -> Machine:
    """Return the serving machine; the driver is not checked with the site's own interpreters."""
    with_gpu = choices.profile.accelerator == "cuda"
    found = machine_of(choices.node, settings.store, with_gpu=with_gpu)
    of_the_site = {EnvironmentName.QUANTIZE, EnvironmentName.SERVE} <= settings.environments.keys()
    return replace(found, driver="") if of_the_site else found


def _may_have_variants(preflight: PreflightInput) -> bool:
    if preflight.made.issuperset(recipe.name for recipe in preflight.recipes):
        return False
    folder = preflight.store / "stages" / "quantize"
    return folder.is_dir() and any(folder.iterdir())


def _is_on_the_same_disk(store: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    places: Iterable[Path] = (store, Path(HF_HUB_CACHE))
    return len({existing_folder(place).stat().st_dev for place in places}) == 1
