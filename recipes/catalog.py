"""Lookup of recipes, profiles, policies and GPUs, by name or file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

import recipes
from prepare.errors import UsageError, did_you_mean, raise_as
from prepare.untrusted_yaml import read_yaml_file
from prepare.user_path import user_path
from recipes.config_file import parse, read, shorten, validate
from recipes.config_model import ConfigModel, Name
from recipes.policy import Policy
from recipes.quantization import names_file
from recipes.schema import Recipe, ServingProfile
from recipes.speed import SpeedPolicy
from recipes.workload import AnyWorkload, FileWorkload, NamedWorkload


class GpuType(ConfigModel):
    """One type of GPU."""

    name: Name
    summary: str
    driver_name: str = Field(description="name that the driver reports; profiles are chosen by it")
    memory_gib: float = Field(
        gt=0,
        le=100_000,
        description="memory that a process can use, in GiB: less than the advertised size, because "
        "the driver reserves some; PyTorch prints it as 'total capacity'",
    )
    compute_capability: float = Field(gt=0, le=100, description="such as 8.9; FP8 needs 8.9")

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)


RECIPES = Path(recipes.__file__).parent
DESCRIBED = TypeVar("DESCRIBED", bound=ConfigModel)

BASELINE = "baseline"
MAX_EXTENDED = 10  # files that extend one another in a row
SHOWN = "recipe, profile, policy or suite"


def load_recipe(name: str) -> Recipe:
    """Return the recipe of that name or YAML file, merged over what it `extends`.

    UsageError, as in all loaders, if it is unknown or malformed.
    """
    return _extended(_find(name, RECIPES, "recipe"), RECIPES, "recipe", Recipe)


def load_policy(name: str) -> Policy:
    """Return a policy by name or file."""
    path = _find(name, RECIPES / "policies", "policy")
    policy = parse(path, "policy", Policy)
    suites = {name: suite.find_in(path.parent) for name, suite in policy.suites.items()}
    policy = policy.model_copy(update={"suites": suites})
    if policy.speed is None:
        return policy
    speed = policy.speed.model_copy(update={"workloads": _find_files(policy.speed.workloads, path)})
    return policy.model_copy(update={"speed": speed})


def load_profile(name: str) -> ServingProfile:
    """Return a profile by name or file."""
    path = _find(name, RECIPES / "profiles", "profile")
    profile = _extended(path, RECIPES / "profiles", "profile", ServingProfile)
    return profile.model_copy(update={"workloads": _find_files(profile.workloads, path)})


def load_shown(name: str) -> ConfigModel:
    """Return a recipe, profile or policy by name or file."""
    known = [*profile_names(), *policy_names()]
    path = _find(name, RECIPES, SHOWN, also=known) if name not in known else None
    kind: type[ConfigModel] = Policy if name in policy_names() else ServingProfile
    if path is not None:
        kind = _kind_of(path) if _is_path(name) else Recipe
    if kind is Policy:
        return load_policy(name)
    if kind is ServingProfile:
        return load_profile(name)
    return load_recipe(name)


def _kind_of(path: Path, depth: int = 0) -> type[ConfigModel]:
    """Return what a file describes, by its keys or by the file that it extends."""
    with raise_as(
        UsageError, "the file cannot be read", path, "fix the file", errors=(OSError, ValueError)
    ):
        data: Any = read_yaml_file(path)
    keys = set(map(str, data)) if isinstance(data, dict) else set[str]()
    kinds: list[type[ConfigModel]] = [Policy, ServingProfile, Recipe]
    for kind in kinds:
        others = {key for other in kinds if other is not kind for key in other.model_fields}
        if keys & (kind.model_fields.keys() - others):
            return kind
    parent = data.get("extends") if isinstance(data, dict) else None
    if isinstance(parent, str) and parent in profile_names():
        return ServingProfile
    if isinstance(parent, str) and parent in recipe_names():
        return Recipe
    if isinstance(parent, str) and _is_path(parent) and depth < MAX_EXTENDED:
        return _kind_of(path.parent / user_path(parent, f"{path}, key extends"), depth + 1)
    if isinstance(parent, str):
        known = ", ".join([*profile_names(), *recipe_names()])
        raise UsageError(
            f"the file extends '{shorten(parent)}', which leads to no recipe and no profile",
            where=f"{path}, key extends",
            hint=f"name one of {known}; or another file, which does not extend this one",
        )
    raise UsageError(
        "the file is no recipe, no profile and no policy",
        where=str(path),
        hint="a recipe has the key 'quantization', a profile 'engine_arguments' or 'extends', a "
        "policy 'suites'",
    )


def load_workload(
    name: str, speed: SpeedPolicy | None = None, profile: ServingProfile | None = None
) -> tuple[AnyWorkload, str]:
    """Return the workload, and its location for messages.

    Policy, profile, package and YAML files are searched in this order.
    """
    policys, profiles = (holder.workloads if holder else {} for holder in (speed, profile))
    if name in policys:
        return policys[name], f"policy key speed.workloads.{name}"
    if profile is not None and name in profiles:
        return profiles[name], f"profile {profile.name}, key workloads.{name}"
    path = _find(name, RECIPES / "workloads", "workload", [*policys, *profiles])
    workload = parse(path, "workload", NamedWorkload).workload
    return _find_files({name: workload}, path)[name], f"{path}, key workload"


def _find_files(workloads: Mapping[str, AnyWorkload], path: Path) -> dict[str, AnyWorkload]:
    """Return the workloads with files relative to the directory of `path`.

    Records must not name local directories, so an absolute path becomes its last part.
    """
    placed = dict(workloads)
    for name, workload in workloads.items():
        if isinstance(workload, FileWorkload):
            named = user_path(workload.file, f"{path}, key file")
            if named.is_absolute():
                workload = workload.model_copy(update={"file": named.name})
            placed[name] = workload.find_in(named.parent if named.is_absolute() else path.parent)
    return placed


def load_described(name: str, folder: str, noun: str, kind: type[DESCRIBED]) -> DESCRIBED:
    """Return a package's or a user's file as `kind`."""
    return parse(_find(name, RECIPES / folder, noun), noun, kind)


def load_gpu(name: str) -> GpuType:
    """Return a GPU by name or file."""
    return load_described(name, "gpus", "gpu", GpuType)


def gpu_names() -> list[str]:
    """Return GPUs by ascending memory."""
    return sorted(_names(RECIPES / "gpus"), key=lambda name: load_gpu(name).memory_gib)


def recipe_names() -> list[str]:
    """Return recipes without the baseline."""
    return [name for name in _names(RECIPES) if name != BASELINE]


def profile_names() -> list[str]:
    """Return built-in profiles."""
    return _names(RECIPES / "profiles")


def policy_names() -> list[str]:
    """Return built-in policies."""
    return _names(RECIPES / "policies")


def profile_for_gpu(gpu_name: str) -> ServingProfile | None:
    """Return the profile for a driver's GPU name."""
    for profile in map(load_profile, profile_names()):
        # Whole words: an H200 is not an H20, and a GH200 is not an H200.
        words = (rf"\b{re.escape(word)}\b" for word in profile.gpu_name_contains)
        if any(re.search(word, gpu_name) for word in words):
            return profile
    return None


def gpu_of_driver(gpu_name: str) -> GpuType | None:
    """Return the GPU of a driver's name."""
    return next((gpu for gpu in map(load_gpu, gpu_names()) if gpu.driver_name == gpu_name), None)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _find(name: str, folder: Path, noun: str, also: Sequence[str] = ()) -> Path:
    """Return the file; the error also lists `also`."""
    is_path = _is_path(name)
    option = "prepare show" if noun == SHOWN else f"--{noun}"
    path = user_path(name if is_path else folder / f"{name}.yaml", f"{option} {name[:80]}")
    if not path.is_file():
        known = list(dict.fromkeys([*_names(folder), *also]))
        if noun == "recipe":
            known.remove(BASELINE)
        hint = did_you_mean(shorten(name), known)
        where = f"{option} {shorten(name)}"
        raise UsageError(
            f"there is no {noun} '{shorten(name)}'" + (" that is a file" if path.exists() else ""),
            where=shorten(str(path)) if is_path else where,
            hint=f"{hint}known: {', '.join(known)}; or give the path of a YAML file",
        )
    return path


def _extended(path: Path, folder: Path, noun: str, kind: type[DESCRIBED]) -> DESCRIBED:
    return validate(_merge_file(path, (), folder, noun, kind), path, noun, kind)


def _merge_file(
    path: Path, before: tuple[Path, ...], folder: Path, noun: str, kind: type[ConfigModel]
) -> dict[str, Any]:
    """Return content merged over its base; `before` are the extending files."""
    chain = (*before, path.resolve())
    where = f"{path}, key extends"
    data = _find_calibration_file(read(path, noun, kind), path)
    if data.get("extends") is None:
        return data
    parent = data.pop("extends")
    if not isinstance(parent, str) or "name" not in data:
        raise UsageError(
            f"the {noun} extends another, and needs the other's name and a name",
            where=where if "name" in data else f"{path}, key name",
            hint=f"write 'extends: NAME', known: {', '.join(_names(folder))}, or the path of a "
            "YAML file; and 'name': tables, files and tags distinguish variants by it",
        )
    try:
        # A relative path starts from the extending file's directory.
        is_relative = _is_path(parent) and not user_path(parent, where).is_absolute()
        parent_file = _find(str(path.parent / parent) if is_relative else parent, folder, noun)
    except UsageError as error:
        raise UsageError(error.message, where=where, hint=error.hint) from error
    if parent_file.resolve() in chain or len(chain) == MAX_EXTENDED:
        circle = " -> ".join(file.name for file in (*chain, parent_file))
        raise UsageError(
            f"the {noun} extends itself, or {MAX_EXTENDED} in a row: {circle}",
            where=where,
            hint="remove the key 'extends' from one of them",
        )
    base = _merge_file(parent_file, chain, folder, noun, kind)
    # Errors of the extended file are reported with its own name.
    validate(base, parent_file, noun, kind)
    return merge(base, data)


def _find_calibration_file(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a recipe with its calibration file relative to its directory."""
    quantization = data.get("quantization")
    calibration = quantization.get("calibration") if isinstance(quantization, dict) else None
    name = calibration.get("dataset") if isinstance(calibration, dict) else None
    if not isinstance(name, str) or not names_file(name):
        return data
    named = user_path(name, f"{path}, key quantization.calibration.dataset")
    changes = {"calibration": {"dataset": str((path.parent / named).absolute())}}
    return data if named.is_absolute() else merge(data, {"quantization": changes})


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge the changes over the base, mappings key by key, unless their `kind` differs."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            is_of_one_kind = value.get("kind", old.get("kind")) == old.get("kind")
            value = merge(old, value) if is_of_one_kind else value
        merged[key] = value
    return merged
