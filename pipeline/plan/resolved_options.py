"""Resolves a user's options; no checkpoint is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_gates.suites.suite_kind import refuse_untried, without_uncontained
from pipeline.environments.definition import EnvironmentName, environments_for
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import AdoptedVariant, read_served, read_variant
from pipeline.plan.screening import screening_policy
from pipeline.plan.serving_profile import choose_profile, draft_reference, refuse_unfit
from pipeline.plan.speed_plan import find_claims
from prepare.credentials import strip_credentials
from prepare.errors import UsageError
from prepare.hardware import NodeInfo, this_node
from recipes import catalog
from recipes.checkpoints.folder import CheckpointReference, check_folder, parse_reference
from recipes.checkpoints.header_source import HeaderSource
from recipes.checkpoints.source_info import find_source
from recipes.engines import find_engine
from recipes.policy import Policy
from recipes.quantizers.adopted import AdoptedQuantization
from recipes.schema import AcceleratorName, Recipe, ServingProfile

SWITCHES = ("ablate", "screen", "until_pass")
DEFAULT_RECIPES = ("fp8-dynamic", "awq-w4a16")


@dataclass(frozen=True)
class ModelRequest:
    """Options of `prepare model`; None where defaults depend on others."""

    checkpoint: str
    recipes: tuple[str, ...] | None  # none: the default ones; None: nothing is quantized
    profile: str
    policy: str | None
    name: str | None = None
    registry: str | None = None
    eval_data: Path | None = None
    trust_remote_code: bool = False
    promote: bool = True
    ablate: bool = False  # with `screen`: weights and KV cache alone, too
    screen: bool = False  # measure without gates
    until_pass: bool = False  # gate from the smallest variant up to the first pass
    remeasured: tuple[str, ...] = ()
    sign: bool = False
    gpus_a_copy: int | None = None  # None: the profile's number, or the plan's best
    variants: tuple[str, ...] = ()  # folders or Hub ids that others quantized
    served_variants: tuple[str, ...] = ()  # NAME='engine arguments'

    def to_dict(self) -> dict[str, Any]:
        """Return options as given, which repeat the run."""
        others = {"variants": self.variants, "served_variants": self.served_variants}
        return {
            **{"recipes": list(self.recipes or ()), "profile": self.profile, "policy": self.policy},
            **({"gpus_a_copy": self.gpus_a_copy} if self.gpus_a_copy else {}),
            **{name: list(values) for name, values in others.items() if values},
        }


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
    left_out: tuple[str, ...] = ()  # suites that are not run, with the reason

    @property
    def baseline(self) -> Recipe:
        return catalog.load_recipe(catalog.BASELINE)

    @property
    def headers(self) -> dict[str, HeaderSource]:
        """Headers of variants that others quantized, by name."""
        return {each.recipe.name: each.header for each in self.adopted if each.header}

    @property
    def environments(self) -> tuple[EnvironmentName, ...]:
        """The environments that carry out the run."""
        engine = find_engine(self.profile.engine).environment
        return environments_for([*(r.quantization.environment for r in self.recipes), engine])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the run's record."""
        profile = self.profile
        speculative = profile.speculative
        return {
            "checkpoint": self.reference.text,
            "recipes": [recipe.name for recipe in self.recipes],
            "profile": profile.name,
            **({"gpus_a_copy": n} if (n := profile.gpus_a_copy) else {}),
            "cpu_overrides": {name: each.reason for name, each in profile.in_effect.items()},
            "kv_cache_note": profile.kv_cache_note,
            **({"speculation": speculative.words(profile.engine)} if speculative else {}),
            "policy": self.policy.name,
            "requested": self.asked.to_dict(),
            "name": self.name,
            "registry": self.asked.registry,
            "eval_data": str(self.eval_data) if self.eval_data else None,
            "trust_remote_code": self.asked.trust_remote_code,
            "promote": self.asked.promote,
            **{key: True for key in SWITCHES if getattr(self.asked, key)},
        }


def choose(request: ModelRequest, settings: Settings, node: NodeInfo | None = None) -> Choice:
    """Resolve names and defaults for a serving node, or this machine.

    UsageError: an unknown name, or a recipe without a margin. CheckpointError: no such folder.
    SandboxError: all suites need a sandbox, which is missing.
    """
    reference = parse_reference(request.checkpoint)
    if reference.kind == "folder":  # before anything else, such as the policy, is refused
        check_folder(Path(reference.name).expanduser().absolute())
    policy_name = request.policy or ("demo" if reference.kind == "demo" else "default")
    policy = catalog.load_policy(policy_name)
    if request.screen:
        policy = screening_policy(policy)
    policy, left_out = without_uncontained(policy)
    node = node or this_node()
    profile = choose_profile(request.profile, node)
    if request.gpus_a_copy is not None and profile.accelerator != "cuda":
        raise UsageError(
            f"the profile '{profile.name}' serves without GPUs",
            where=f"--gpus-a-copy {request.gpus_a_copy}",
            hint="leave it out, or name a profile for GPUs with --profile",
        )
    source = find_source(reference.text, "", None).ref
    adopted = (
        *map(read_variant, dict.fromkeys(request.variants)),
        *(read_served(each, source, profile) for each in dict.fromkeys(request.served_variants)),
    )
    default = () if adopted else DEFAULT_RECIPES
    wanted = () if request.recipes is None else request.recipes or default
    recipe_names = tuple(dict.fromkeys(wanted))
    recipes = (*map(load_made_recipe, recipe_names), *(each.recipe for each in adopted))
    names = [recipe.name for recipe in recipes]
    for recipe in recipes:
        if names.count(recipe.name) > 1:
            raise UsageError(
                f"two of the variants are called '{recipe.name}'",
                where="--recipe, --variant or --served-variant",
                hint="give a changed copy a separate name (its key 'name'), a variant by "
                "--variant NAME=FOLDER",
            )
        check_margins(recipe, policy)
    if profile.speculative is not None:
        place = f"profile {profile.name}, key speculative"
        refuse_untried(policy, "speculative decoding", place)
    if request.promote:
        refuse_unfit(profile, request.profile)
    draft_reference(profile)
    find_claims(policy, profile)
    remeasured = find_gates(request.remeasured, policy, profile.accelerator)
    name = request.name or reference.short_name
    if not name.strip() or any(letter in name for letter in "/:"):
        raise UsageError(
            f"'{name}' cannot be a name in the registry",
            where="--name",
            hint="give a name without '/' and ':'",
        )
    return Choice(
        asked=replace(
            request,
            recipes=recipe_names,
            profile=profile.name if request.profile == "auto" else request.profile,
            policy=policy_name,
        ),
        reference=reference,
        recipes=recipes,
        profile=profile,
        policy=policy,
        name=name,
        node=node,
        eval_data=request.eval_data.expanduser().resolve() if request.eval_data else None,
        remeasured=remeasured,
        adopted=adopted,
        left_out=tuple(left_out),
    )


def find_gates(
    names: tuple[str, ...], policy: Policy, accelerator: AcceleratorName | None
) -> tuple[str, ...]:
    """Resolve the gates of `--remeasure`, such as `mmlu` or `speed.ratio.chat`.

    `accelerator` is None for endpoints. UsageError: an unknown gate.
    """
    gates = [*policy.suites, *(claim.name for claim in policy.claims_on(accelerator))]
    found = tuple(name.removeprefix("speed.") for name in names)
    for name, gate in zip(names, found, strict=True):
        if gate not in gates:
            raise UsageError(
                f"the policy '{policy.name}' has no gate '{name}'",
                where="--remeasure",
                hint=f"it has {', '.join(gates)}",
            )
    return found


def load_made_recipe(name: str) -> Recipe:
    """Return a recipe that makes weights, or raise UsageError."""
    recipe = catalog.load_recipe(name)
    if isinstance(recipe.quantization, AdoptedQuantization):
        raise UsageError(
            "a recipe cannot adopt weights",
            where=f"--recipe {name}, key quantization.kind",
            hint="name the checkpoint: --variant FOLDER",
        )
    return recipe


def registry_uri(given: str | None, settings: Settings) -> str:
    """Return the given registry, or the store's own."""
    if given:
        return strip_credentials(given)
    return f"sqlite:///{settings.store / 'registry.db'}"


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
