"""A run's serving profile: selected, fitted and checked."""

from __future__ import annotations

import platform
from collections.abc import Collection
from pathlib import Path

from prepare.errors import CheckpointError, UsageError
from prepare.hardware import NodeInfo, this_node
from recipes import catalog
from recipes.checkpoints.folder import check_folder
from recipes.checkpoints.reference import CheckpointReference, parse_reference
from recipes.engines import find_engine
from recipes.schema import ServingProfile
from recipes.speculative import ACCEPTANCE_KEY


def choose_profile(name: str, node: NodeInfo | None = None) -> ServingProfile:
    """Return the profile of that name, fitted to the node's CPU.

    'auto' selects by GPU name, or is 'cpu'. No node: this machine. UsageError: an unknown profile,
    or an unsuitable CPU.
    """
    node = node or this_node()
    return fit_profile(load_named_profile(name, node), node)


def fit_profile(profile: ServingProfile, node: NodeInfo) -> ServingProfile:
    """Return the profile with overrides for the node's CPU.

    UsageError: the node cannot serve by it.
    """
    if profile.accelerator != "cpu":
        return profile
    fitted = profile.fit_to(node.cpu_features)
    check_processor(fitted, node.cpu_features)
    environment = {**fitted.environment, **node.cpu_limits}
    return fitted.model_copy(update={"environment": environment})


def check_processor(profile: ServingProfile, features: Collection[str]) -> None:
    """Raise UsageError if this CPU cannot serve by the profile."""
    engine = find_engine(profile.engine)
    # Features of other kinds of CPU are unknown, and so are interpreters that the user names.
    has = features if platform.machine() == "x86_64" else {*features, "avx2"}
    where = f"--profile {profile.name}"
    if lack := engine.lacks(has):
        hint = "run on a newer machine, or on one with a GPU"
        raise UsageError(lack, where=where, hint=hint)
    for dtype in (profile.kv_cache_dtype, profile.baseline_kv_cache_dtype):
        if lack := engine.lacks(has, dtype):
            raise UsageError(
                lack,
                where=f"{where}, key kv_cache_dtype",
                hint="give the profile a CPU override, as `cpu` has one, or kv_cache_dtype: auto "
                "(docs/how-to/recipes-and-profiles.md)",
            )


def load_named_profile(name: str, node: NodeInfo | None = None) -> ServingProfile:
    """Return the profile's file; 'auto' depends on the node."""
    if name != "auto":
        return catalog.load_profile(name)
    gpu = (node or this_node()).gpu_name
    profile = catalog.profile_for_gpu(gpu) if gpu else catalog.load_profile("cpu")
    if profile is None:
        raise UsageError(
            f"no serving profile is known for the GPU '{gpu}'",
            where="--profile auto",
            hint=f"choose one of {', '.join(catalog.profile_names())}, or give the path of a "
            "YAML file of your own (docs/how-to/recipes-and-profiles.md)",
        )
    return profile


def refuse_unfit(profile: ServingProfile, asked: str) -> None:
    """Raise UsageError for decoding that changes answers."""
    speculative = profile.speculative
    if speculative is not None and (why := speculative.unfit(profile.engine)):
        raise UsageError(
            f"nothing that is served with '{speculative.rejection_sample_method}' is promoted: "
            f"{why}",
            where=f"--profile {asked}, key {ACCEPTANCE_KEY}",
            hint="take 'standard'; `prepare model --no-promote` measures it and promotes nothing",
        )


def draft_reference(profile: ServingProfile) -> CheckpointReference | None:
    """Return the draft checkpoint; UsageError for an invalid name."""
    named = profile.speculative.model if profile.speculative else None
    if named is None:
        return None
    try:
        reference = parse_reference(named)
        if reference.kind == "folder":
            check_folder(Path(reference.name).expanduser().absolute())
    except (CheckpointError, UsageError) as error:
        where = f"profile {profile.name}, key speculative.model"
        raise UsageError(error.message, where=where, hint=error.hint) from error
    return reference
