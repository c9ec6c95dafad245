"""Resolves a user's options; no checkpoint is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from artifacts.registry import check_name
from artifacts.requests import ModelRequest
from artifacts.run_record import ResolvedOptions
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.suites.suite_kind import refuse_untried, without_uncontained
from pipeline.environments.definition import LOAD_GENERATOR, SUITE_ASKER, WEIGHT_READER, define
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import AdoptedVariant, read_served, read_variant, served_profile
from pipeline.plan.screening_plan import screening_policy
from pipeline.plan.serving_profile import choose_profile, draft_reference, refuse_unfit
from pipeline.plan.speed_plan import find_speed_gates
from prepare.errors import UsageError
from prepare.hardware import NodeInfo, this_node
from prepare.plugins import ENGINES, QUANTIZERS, find_plugin
from recipes import catalog
from recipes.accelerator import Accelerator
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.folder import check_folder
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import CheckpointReference, parse_reference
from recipes.checkpoints.source_info import public_name
from recipes.engines import find_engine
from recipes.engines.engine import KV_DTYPE, kv_suffix
from recipes.policy import Policy
from recipes.quantization import check_worker
from recipes.quantizers.adopted import AdoptedQuantization
from recipes.rungs import GivenBack, Rung, rung_of
from recipes.schema import Recipe, ServingProfile

_FORMAT = re.compile(r"[a-z0-9]\w{0,39}")
PAIRS_NOTE = "each variant's own, which ends its name (--kv)"
DEFAULT_RECIPES = ("fp8-dynamic", "awq-w4a16")


@dataclass(frozen=True)
class Choice:
    """The resolved options, without the checkpoint."""

    asked: ModelRequest  # with the chosen defaults
    reference: CheckpointReference
    recipes: tuple[Recipe, ...]
    profile: ServingProfile
    policy: Policy
    name: str
    node: NodeInfo  # that serves, or one of its kind
    eval_data: Path | None = None
    remeasured: tuple[str, ...] = ()  # gates that are measured again though they are finished
    adopted: tuple[AdoptedVariant, ...] = ()  # those of `recipes` that are not quantized here
    kv_formats: Mapping[str, str] = field(default_factory=dict)  # of `--kv`, by recipe's name
    left_out: tuple[str, ...] = ()  # suites that are not run, with the reason
    # By recipe's name: shares of bytes to give back, until the weights are here, and what they are.
    rungs: Mapping[str, Rung] = field(default_factory=dict)
    given_back: Mapping[str, GivenBack] = field(default_factory=dict, compare=False)
    checkpoints: Checkpoints = field(default_factory=Checkpoints, compare=False)  # read so far

    @property
    def baseline(self) -> Recipe:
        return catalog.load_recipe(catalog.BASELINE)

    def profile_of(self, recipe: Recipe) -> ServingProfile:
        """Return the profile that the variant is served by."""
        return served_profile(self.profile, recipe, self.kv_formats.get(recipe.name))

    def weights_name(self, name: str) -> str:
        """Return the variant's name without its KV cache: pairs of one name share their weights."""
        kv_format = self.kv_formats.get(name)
        return name.removesuffix(kv_suffix(kv_format)) if kv_format else name

    @property
    def level(self) -> float:
        """Error rate of one variant's gate, at a first attempt."""
        variants = len(self.recipes)
        in_sequence = self.asked.until_pass
        return gate_level(
            self.policy.alpha, self.policy.attempts, variants, in_sequence=in_sequence
        )

    @property
    def headers(self) -> dict[str, Checkpoint]:
        """Headers of variants that others quantized, by name."""
        return {variant.recipe.name: variant.header for variant in self.adopted if variant.header}

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments that carry out the run, each once."""
        return environments_of(self.recipes, self.profile, self.policy)

    def resolved(self) -> ResolvedOptions:
        """Return what the run's record says of it."""
        profile = self.profile
        speculative = profile.speculative
        return ResolvedOptions(
            checkpoint=self.reference.text,
            recipes=tuple(recipe.name for recipe in self.recipes),
            profile=profile.name,
            policy=self.policy.name,
            name=self.name,
            gpus_a_copy=profile.gpus_a_copy,
            cpu_overrides={name: override.reason for name, override in profile.in_effect.items()},
            kv_cache_note=PAIRS_NOTE if self.kv_formats else profile.kv_cache_note,
            speculation=speculative.words(profile.engine) if speculative else "",
        )


def environments_of(
    recipes: Sequence[Recipe], profile: ServingProfile, policy: Policy
) -> tuple[str, ...]:
    """Return the environments that make, serve and judge these variants, each once."""
    needed = [WEIGHT_READER, *(recipe.quantization.environment for recipe in recipes)]
    needed.append(find_engine(profile.engine).environment)
    if policy.gates_on(profile.accelerator):
        needed.append(LOAD_GENERATOR)
    return tuple(dict.fromkeys([*needed, SUITE_ASKER]))


def choose(
    request: ModelRequest,
    settings: Settings,
    node: NodeInfo | None = None,
    *,
    default_recipes: tuple[str, ...] = DEFAULT_RECIPES,
) -> Choice:
    """Resolve names and defaults for a serving node, or this machine.

    `default_recipes` apply where the request names no variant.

    UsageError: an unknown name, or a recipe without a margin. CheckpointError: no such folder.
    SandboxError: all suites need a sandbox, which is missing.
    """
    reference = parse_reference(request.subject)
    if reference.kind == "folder":  # before anything else, such as the policy, is refused
        check_folder(Path(reference.name).expanduser().absolute())
    policy_name = request.policy or ("demo" if reference.kind == "demo" else "default")
    policy = catalog.load_policy(policy_name)
    if request.is_screening:
        policy = screening_policy(policy)
    policy, left_out = without_uncontained(policy)
    node = node or this_node()
    profile = choose_profile(request.profile, node)
    _check_gpus(request, profile)
    checkpoints = Checkpoints()
    given = _read_adopted(request, reference, profile, checkpoints)
    default = () if given else default_recipes
    recipe_names = tuple(dict.fromkeys(request.recipes or default))
    formats = read_kv_formats(request.kv)
    asked_rungs = [Rung.parse(name) for name in recipe_names]
    made_pairs = [with_kv_formats(load_made_recipe(rung), formats) for rung in asked_rungs]
    adopted_pairs = [with_kv_formats(variant.recipe, formats) for variant in given]
    adopted = tuple(
        replace(variant, recipe=recipe)
        for variant, pairs in zip(given, adopted_pairs, strict=True)
        for recipe in pairs.values()
    )
    every_pair = [*made_pairs, *adopted_pairs]
    recipes = tuple(recipe for pairs in every_pair for recipe in pairs.values())
    _check_variants(recipes, policy)
    _check_serving(request, profile, policy)
    refuse_undefined(recipes, profile)
    remeasured = find_gates(request.remeasure, policy, profile.accelerator)
    name = request.name or reference.short_name
    check_name(name)
    eval_data = request.eval_data.expanduser().resolve() if request.eval_data else None
    return Choice(
        asked=replace(
            request,
            recipes=recipe_names,
            profile=profile.name if request.profile == "auto" else request.profile,
            policy=policy_name,
            name=name,
            eval_data=eval_data,
        ),
        reference=reference,
        recipes=recipes,
        profile=profile,
        policy=policy,
        name=name,
        node=node,
        eval_data=eval_data,
        remeasured=remeasured,
        adopted=adopted,
        kv_formats={
            recipe.name: kv_format
            for pairs in every_pair
            for kv_format, recipe in pairs.items()
            if kv_format
        },
        left_out=tuple(left_out),
        rungs={
            recipe.name: rung
            for rung, pairs in zip(asked_rungs, made_pairs, strict=True)
            for recipe in pairs.values()
            if rung.percent is not None
        },
        checkpoints=checkpoints,
    )


def _check_gpus(request: ModelRequest, profile: ServingProfile) -> None:
    """Raise UsageError for GPUs of a profile without any."""
    if request.gpus_a_copy is not None and profile.accelerator != "cuda":
        raise UsageError(
            f"the profile '{profile.name}' serves without GPUs",
            where=f"--gpus-a-copy {request.gpus_a_copy}",
            hint="leave it out, or name a profile for GPUs with --profile",
        )


def _read_adopted(
    request: ModelRequest,
    reference: CheckpointReference,
    profile: ServingProfile,
    checkpoints: Checkpoints,
) -> list[AdoptedVariant]:
    """Read the variants that are not quantized here, each once."""
    source = public_name(reference.text)
    variants = [read_variant(text, checkpoints) for text in dict.fromkeys(request.variants)]
    served = [
        read_served(asked, source, profile) for asked in dict.fromkeys(request.served_variants)
    ]
    return variants + served


def _check_variants(recipes: Sequence[Recipe], policy: Policy) -> None:
    """Raise UsageError for two variants of one name, or a gate without a variant's margin."""
    names = [recipe.name for recipe in recipes]
    for recipe in recipes:
        if names.count(recipe.name) > 1:
            raise UsageError(
                f"two of the variants are called '{recipe.name}'",
                where="--recipe, --variant or --served-variant",
                hint="give a changed copy a separate name (its key 'name'), a variant by "
                "--variant NAME=FOLDER or --served-variant NAME='...'",
            )
        check_margins(recipe, policy)


def _check_serving(request: ModelRequest, profile: ServingProfile, policy: Policy) -> None:
    """Raise UsageError if the policy cannot judge, or no run may promote, what is served so."""
    if profile.speculative is not None:
        place = f"profile {profile.name}, key speculative"
        refuse_untried(policy, "speculative decoding", place)
    if request.promote:
        refuse_unfit(profile, request.profile)
    draft_reference(profile)
    find_speed_gates(policy, profile)


def read_kv_formats(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the formats of `--kv`, by the engine's names; UsageError if one is no word."""
    words = [word.strip().replace("-", "_") for text in asked for word in text.split(",")]
    unfit = [word for word in words if not _FORMAT.fullmatch(word)]
    if unfit:
        raise UsageError(
            f"'{unfit[0]:.80}' is no format of a KV cache",
            where="--kv",
            hint="give the engine's names, such as --kv fp8,auto",
        )
    return tuple(dict.fromkeys(words))


def with_kv_formats(recipe: Recipe, formats: Sequence[str]) -> dict[str, Recipe]:
    """Return the recipe's pairs of weights and KV cache by format; itself, by '', without any.

    UsageError: the variant's own arguments name a format.
    """
    if not formats:
        return {"": recipe}
    if KV_DTYPE in getattr(recipe.quantization, "served_with", {}):
        raise UsageError(
            f"the arguments of '{recipe.name}' and --kv both name a format of its KV cache",
            where="--kv",
            hint=f"leave --{KV_DTYPE} out of the variant's arguments",
        )
    return {
        kv_format: recipe.model_copy(update={"name": f"{recipe.name}{kv_suffix(kv_format)}"})
        for kv_format in formats
    }


def refuse_undefined(recipes: Sequence[Recipe], profile: ServingProfile) -> None:
    """Raise UsageError if an environment that kinds or engine name has no valid lock."""
    kinds = {recipe.quantization.kind: recipe.quantization.environment for recipe in recipes}
    named = [(QUANTIZERS, kind, environment) for kind, environment in kinds.items()]
    named.append((ENGINES, profile.engine, find_engine(profile.engine).environment))
    for group, capability, environment in named:
        try:
            define(environment, profile.accelerator)
        except UsageError as error:
            error.where = error.where or find_plugin(group, capability).words
            raise


def find_gates(
    names: tuple[str, ...], policy: Policy, accelerator: Accelerator | None
) -> tuple[str, ...]:
    """Resolve the gates of `--remeasure`, such as `mmlu` or `speed.ratio.chat`.

    `accelerator` is None for endpoints. UsageError: an unknown gate.
    """
    gates = [*policy.suites, *(speed_gate.name for speed_gate in policy.gates_on(accelerator))]
    gate_names = tuple(name.removeprefix("speed.") for name in names)
    for name, gate in zip(names, gate_names, strict=True):
        if gate not in gates:
            raise UsageError(
                f"the policy '{policy.name}' has no gate '{name}'",
                where="--remeasure",
                hint=f"it has {', '.join(gates)}",
            )
    return gate_names


def load_made_recipe(rung: Rung) -> Recipe:
    """Return a recipe that makes weights, or raise UsageError; a rung's without its modules."""
    name = rung.base
    recipe = catalog.load_recipe(name)
    if isinstance(recipe.quantization, AdoptedQuantization):
        raise UsageError(
            "a recipe cannot adopt weights",
            where=f"--recipe {name}, key quantization.kind",
            hint="name the checkpoint: --variant FOLDER",
        )
    if recipe.quantization.quantizes:
        check_worker(recipe.quantization)
    return rung_of(recipe, rung)


def check_margins(recipe: Recipe, policy: Policy) -> None:
    """Raise UsageError for a gate without this recipe's margin."""
    if recipe.family == "baseline":
        raise UsageError(
            f"'{recipe.name}' changes nothing, so there is nothing to promote",
            where=f"--recipe {recipe.name}",
            hint=f"known: {', '.join(catalog.recipe_names())}",
        )
    for name, suite in policy.suites.items():
        if recipe.family not in suite.margins:
            raise UsageError(
                f"the policy '{policy.name}' has no margin for {recipe.family} recipes",
                where=f"policy key suites.{name}.margins",
                hint=f"add '{recipe.family}: 0.02' (points) or "
                f"'{recipe.family}: {{recovery: 0.98}}' there",
            )
    if policy.cost is not None and policy.cost.ratio_of(recipe.family) is None:
        raise UsageError(
            f"the policy '{policy.name}' has no ratio of costs for {recipe.family} recipes",
            where="policy key cost.max_ratio",
            hint=f"add '{recipe.family}: 1.1' there",
        )
