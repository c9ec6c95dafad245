"""From what a user asked for to a plan: finds the checkpoint, recipes, profile and identities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.deployable import ACCEPTANCE_KEY
from artifacts.evidence.trials import Count, Trial, Trials
from artifacts.evidence.tuned_check import check_tuned
from artifacts.serving_arguments import ServingArguments
from artifacts.stages.demo_checkpoint import DEMO_CHECKPOINT, DemoParameters
from eval_gates.statistics.multiplicity import level_of
from pipeline.checkpoint.demo_model import DEMO_LOCK
from pipeline.checkpoint.folder import (
    Checkpoint,
    Reference,
    check_folder,
    inspect_folder,
    parse_reference,
)
from pipeline.checkpoint.hub import download
from pipeline.checkpoint.refusals import (
    architecture_error,
    own_code_error,
    quantized_error,
)
from pipeline.core.cpu_features import cpu_features, limiting_variables
from pipeline.core.credentials import take_out
from pipeline.core.digest import digest_bytes
from pipeline.core.errors import CheckpointError, UsageError
from pipeline.core.events import Progress, Silent
from pipeline.core.hardware import gpu_name, hardware
from pipeline.core.origin import FILE as ORIGIN_FILE
from pipeline.core.stage import WorkerRuntime
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.inspection.chat_template import folder_has_chat_template
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.dry_run import is_worth_it
from pipeline.plan.gate_power import check_decidable
from pipeline.plan.of_checkpoint import Begin, Planner
from pipeline.plan.of_speed import find_claims
from pipeline.plan.plan import Plan
from pipeline.plan.quantizers import environments_for
from pipeline.plan.speed_power import check_claims_decidable, claim_powers
from pipeline.plan.suitability import check_processor
from pipeline.plan.suite_forms import with_forms
from recipes import catalog
from recipes.engines import find_engine
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile

REPOSITORY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
DEFAULT_RECIPES = ("fp8-dynamic", "awq-w4a16")


@dataclass(frozen=True)
class Request:
    """The options of `prepare model`, as given; None where a default depends on the rest."""

    checkpoint: str
    recipes: tuple[str, ...] | None  # none: the default ones; None: nothing is quantized
    profile: str
    policy: str | None
    name: str | None
    registry: str | None
    eval_data: Path | None
    trust_remote_code: bool
    promote: bool = True
    dry_run: bool | None = None
    attribute: bool = False


@dataclass(frozen=True)
class Asked:
    """Names and files as the user wrote them; of what was left out, what was taken.

    They repeat the run, which the names that they came to do not: a ladder is not its rungs, and
    no file is found by the name that stands in it.
    """

    recipes: tuple[str, ...]
    profile: str
    policy: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the run's record."""
        return {"recipes": list(self.recipes), "profile": self.profile, "policy": self.policy}


@dataclass(frozen=True)
class Choices:
    """What the request comes to, found without touching the checkpoint."""

    reference: Reference
    recipes: tuple[Recipe, ...]
    baseline: Recipe
    profile: ServingProfile
    policy: Policy
    asked: Asked
    name: str
    registry: str | None  # None: the store's own, wherever the store is moved to
    eval_data: Path | None
    trust_remote_code: bool
    rungs: tuple[str, ...] = ()
    promote: bool = True
    dry_run: bool | None = None
    attribute: bool = False
    tuned_check: str = ""  # how what the profile says of its tuning was found; "" where nothing

    @property
    def fallbacks(self) -> dict[str, str]:
        """What this machine's CPU has the profile change, and why, by name."""
        return {name: each.because for name, each in self.profile.in_effect.items()}

    @property
    def speculation(self) -> str:
        """How variants are decoded speculatively, in words; '' where they are not."""
        speculative = self.profile.speculative
        return speculative.words(self.profile.engine) if speculative else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the run's record."""
        return {
            "checkpoint": self.reference.text,
            "recipes": [recipe.name for recipe in self.recipes],
            "ladder": list(self.rungs),
            "profile": self.profile.name,
            "fallbacks": self.fallbacks,
            "kv_cache_note": self.profile.kv_cache_note,
            **(
                {
                    "tuned": f"{self.profile.tuned.words}; {self.tuned_check}",
                    "tuned_claim": self.profile.tuned.model_dump(),
                }
                if self.profile.tuned
                else {}
            ),
            **({"speculation": self.speculation} if self.speculation else {}),
            "policy": self.policy.name,
            "asked": self.asked.to_dict(),
            "name": self.name,
            "registry": self.registry,
            "eval_data": str(self.eval_data) if self.eval_data else None,
            "trust_remote_code": self.trust_remote_code,
            "promote": self.promote,
            "dry_run": self.dry_run,
            **({"attribute": True} if self.attribute else {}),
        }


def choose(request: Request, settings: Settings) -> Choices:
    """Resolve names and defaults.

    Raises:
        UsageError: something named does not exist, or a recipe has no margin in the policy.
        CheckpointError: the checkpoint is to be a folder, and there is none.
    """
    reference = parse_reference(request.checkpoint)
    if reference.kind == "folder":  # before anything else is found wrong, such as the policy
        check_folder(Path(reference.name).expanduser().absolute())
    policy_name = request.policy or ("demo" if reference.kind == "demo" else "default")
    policy = catalog.load_policy(policy_name)
    wanted = () if request.recipes is None else request.recipes or DEFAULT_RECIPES
    recipe_names = tuple(dict.fromkeys(wanted))
    recipes, rungs = choose_recipes(recipe_names)
    profile = choose_profile(request.profile)
    check_names_differ(recipes)
    for recipe in recipes:
        check_margins(recipe, policy)
    if request.promote:
        refuse_unfit(profile, request.profile)
    draft_reference(profile)
    find_claims(policy, profile)
    name = request.name or reference.short_name
    check_registered_name(name, request.registry)
    return Choices(
        reference=reference,
        recipes=recipes,
        baseline=catalog.load_recipe(catalog.BASELINE),
        profile=profile,
        policy=policy,
        asked=Asked(
            recipes=recipe_names,
            profile=profile.name if request.profile == "auto" else request.profile,
            policy=policy_name,
        ),
        name=name,
        registry=request.registry,
        eval_data=request.eval_data.expanduser().resolve() if request.eval_data else None,
        trust_remote_code=request.trust_remote_code,
        rungs=rungs,
        promote=request.promote,
        dry_run=request.dry_run,
        attribute=request.attribute,
        tuned_check=check_told_gain(profile, request.profile, settings),
    )


def check_told_gain(profile: ServingProfile, asked: str, settings: Settings) -> str:
    """How what the profile says of its tuning was found, in words; '' where it says nothing.

    Raises:
        UsageError: the run that it names says something else.
    """
    told = profile.tuned
    if told is None:
        return ""
    is_here = hardware(profile.accelerator) == told.hardware
    serving = ServingArguments.of(profile, is_baseline=False) if is_here else None
    check = check_tuned(told, serving, Store(settings.store))
    if check.state == "differs":
        raise UsageError(
            f"what the profile says of its tuning is not so: {check.why}",
            where=f"--profile {asked}, key tuned",
            cure="leave the key 'tuned' out, or take the profile as `prepare tune` wrote it",
        )
    return check.words


def refuse_unfit(profile: ServingProfile, asked: str) -> None:
    """Refuse to promote what is decoded by a rule that answers do not come from the model by.

    Raises:
        UsageError: the profile has such a rule.
    """
    speculative = profile.speculative
    if speculative is not None and (why := speculative.unfit(profile.engine)):
        raise UsageError(
            f"nothing that is served with '{speculative.rejection_sample_method}' is promoted: "
            f"{why}",
            where=f"--profile {asked}, key {ACCEPTANCE_KEY}",
            cure="take 'standard'; `prepare model --no-promote` measures it and promotes nothing",
        )


def choose_recipes(names: tuple[str, ...]) -> tuple[tuple[Recipe, ...], tuple[str, ...]]:
    """The recipes of these names, a ladder's among them, and the names of the ladder's.

    Raises:
        UsageError: there is no such recipe, or more than one ladder.
    """
    recipes: list[Recipe] = []
    rungs: tuple[str, ...] = ()
    for name in dict.fromkeys(names):
        found = catalog.load_recipe_or_ladder(name)
        if isinstance(found, Recipe):
            recipes.append(found)
            continue
        if rungs:
            raise UsageError(
                "a run can have only one ladder",
                where=f"--recipe {name}",
                cure="leave one out, or write a ladder of your own with the rungs of both",
            )
        ladder = [catalog.load_recipe(rung) for rung in found.rungs]
        rungs = tuple(recipe.name for recipe in ladder)
        recipes.extend(ladder)
    return tuple(recipes), rungs


def registry_uri(given: str | None, settings: Settings) -> str:
    """The registry asked for, else an embedded one beside the store's stages."""
    if not given and (settings.store / ORIGIN_FILE).is_file():
        raise UsageError(
            "a store in an object store has no registry of its own",
            where="--registry",
            cure="name one that all nodes reach: an MLflow server, hf://NAMESPACE or oci://",
        )
    # What an older record holds may have credentials still.
    return take_out(given) if given else f"sqlite:///{settings.store / 'registry.db'}"


def check_names_differ(recipes: tuple[Recipe, ...]) -> None:
    """Raise UsageError where two recipes, such as one and a changed copy, have one name."""
    names = [recipe.name for recipe in recipes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two of the recipes are called '{name}'",
                where="--recipe",
                cure="give the changed copy a name of its own (its key 'name')",
            )


def check_registered_name(name: str, registry: str | None = None) -> None:
    """Raise UsageError for what the registry refuses as a name, before any work is done."""
    if not name.strip() or any(letter in name for letter in "/:") or name.endswith(".history"):
        raise UsageError(
            f"'{name}' cannot be a name in the registry",
            where="--name",
            cure="give a name without '/' and ':' that does not end in '.history'",
        )
    if registry is not None and registry.startswith(("hf://", "oci://")):
        check_repository_name(name, registry)


def check_repository_name(name: str, registry: str) -> None:
    """Raise UsageError for what the Hub or OCI refuses as a repository's name."""
    if not REPOSITORY_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise UsageError(
            f"'{name}' cannot be a name in {registry}",
            where="--name",
            cure="give one of letters, digits, '.', '_' and '-', 96 at most, that begins and ends "
            "with a letter or digit and has no '--' or '..'",
        )


def check_margins(recipe: Recipe, policy: Policy) -> None:
    """Raise UsageError unless the policy says what this recipe may lose on every suite."""
    if recipe.family == "baseline":
        raise UsageError(
            f"'{recipe.name}' changes nothing, so there is nothing to promote",
            where=f"--recipe {recipe.name}",
            cure=f"known: {', '.join(catalog.recipe_names())}",
        )
    for name, suite in policy.suites.items():
        if recipe.family not in suite.margins:
            raise UsageError(
                f"the policy '{policy.name}' has no margin for {recipe.family} recipes",
                where=f"policy key suites.{name}.margins",
                cure=f"add '{recipe.family}: 0.02' (points) or "
                f"'{recipe.family}: {{recovery: 0.98}}' there",
            )


def choose_profile(name: str) -> ServingProfile:
    """The profile of that name, fitted to this machine's CPU where it serves on that.

    'auto' goes by the GPU's name, and is 'cpu' without a GPU.

    Raises:
        UsageError: there is no such profile, or this CPU cannot serve as it says.
    """
    profile = load_named_profile(name)
    return fit_here(profile) if profile.accelerator == "cpu" else profile


def fit_here(profile: ServingProfile) -> ServingProfile:
    """A CPU's profile as this machine can serve it.

    Raises:
        UsageError: it cannot.
    """
    features = cpu_features()
    fitted = profile.fit_to(features)
    check_processor(fitted, features)
    environment = {**fitted.environment, **limiting_variables()}
    return fitted.model_copy(update={"environment": environment})


def load_named_profile(name: str) -> ServingProfile:
    """The profile as its file has it."""
    if name != "auto":
        return catalog.load_profile(name)
    gpu = gpu_name()
    if gpu is None:
        return catalog.load_profile("cpu")
    profile = catalog.profile_for_gpu(gpu)
    if profile is None:
        raise UsageError(
            f"no serving profile is known for the GPU '{gpu}'",
            where="--profile auto",
            cure=f"choose one of {', '.join(catalog.profile_names())}, or give the path of a "
            "YAML file of your own (docs/recipes.md)",
        )
    return profile


def demo_stage(choices: Choices, settings: Settings) -> StageSpec:
    """The stage that makes the demo checkpoint."""
    return demo_stage_of(choices.reference, choices.profile, settings)


def demo_stage_of(reference: Reference, profile: ServingProfile, settings: Settings) -> StageSpec:
    """The stage that makes the demo of that reference, in the profile's kind of environment."""
    accelerator = Accelerator(profile.accelerator)
    return DEMO_CHECKPOINT.spec(
        "demo",
        DemoParameters(
            model=reference.name,
            package=digest_bytes(DEMO_LOCK.read_bytes()),
            environment=identity("quantize", accelerator, settings),
        ),
        {},
        WorkerRuntime(environment="quantize"),
        settings.store,
    )


def locate(
    choices: Choices,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    to_quantize: bool = True,
) -> Checkpoint:
    """Find, fetch or make the checkpoint, and inspect it.

    Args:
        make_demo: runs the demo's stage and returns the checkpoint's folder.
        to_quantize: variants are to be made of it, so it must not be one.

    Raises:
        CheckpointError: it is missing, damaged, not supported or already quantized.
    """
    checkpoint = _fetch(choices.reference, choices.profile, settings, make_demo, progress)
    check_supported(checkpoint, choices, to_quantize=to_quantize)
    return checkpoint


def locate_draft(
    profile: ServingProfile,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    trust_remote_code: bool,
) -> Checkpoint | None:
    """The checkpoint that drafts, as `locate`; None where the profile names none."""
    reference = draft_reference(profile)
    if reference is None:
        return None
    draft = _fetch(reference, profile, settings, make_demo, progress, is_head=True)
    if draft.needs_remote_code and not trust_remote_code:
        raise own_code_error(str(draft.path / "config.json"))
    return draft


def draft_reference(profile: ServingProfile) -> Reference | None:
    """What the profile names as the draft; None where it names none.

    Raises:
        UsageError: it names nothing that a checkpoint can be; the key is named.
    """
    named = profile.speculative.draft if profile.speculative else None
    if named is None:
        return None
    try:
        reference = parse_reference(named)
    except UsageError as error:
        raise UsageError(error.what, where=_draft_key(profile), cure=error.cure) from error
    if reference.kind == "folder":
        try:
            check_folder(Path(reference.name).expanduser().absolute())
        except CheckpointError as error:
            raise UsageError(error.what, where=_draft_key(profile), cure=error.cure) from error
    return reference


def _draft_key(profile: ServingProfile) -> str:
    return f"profile {profile.name}, key speculative.draft"


def _fetch(
    reference: Reference,
    profile: ServingProfile,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    is_head: bool = False,
) -> Checkpoint:
    """Find, fetch or make it, and inspect it."""
    revision = None
    if reference.kind == "demo":
        folder = make_demo(demo_stage_of(reference, profile, settings))
    elif reference.kind == "hub":
        folder, revision = download(reference.name, reference.revision, progress=progress)
    else:
        folder = Path(reference.name).expanduser()
    return inspect_folder(
        folder,
        ref=reference.text,
        kind=reference.kind,
        revision=revision,
        digests=settings.digests,
        progress=progress,
        is_head=is_head,
    )


def check_supported(checkpoint: Checkpoint, choices: Choices, *, to_quantize: bool) -> None:
    """Raise CheckpointError for what no recipe here can start from, or serve."""
    config = str(checkpoint.path / "config.json")
    if checkpoint.quantized and to_quantize:
        raise quantized_error(config, [file.name for file in checkpoint.files])
    if fault := architecture_error(checkpoint.architecture, config):
        raise fault
    if checkpoint.needs_remote_code and not choices.trust_remote_code:
        raise own_code_error(config)


def find_data(choices: Choices, settings: Settings, progress: Progress) -> SourceResolver:
    """Where questions come from, seen to be enough for the policy; needs no checkpoint.

    Raises:
        EvaluationDataError: a suite's questions are unavailable.
        UsageError: a suite could not decide its margin, however good a variant is.
    """
    evaluate = identity("evaluate", Accelerator(choices.profile.accelerator), settings)
    sources = SourceResolver(choices.eval_data, evaluate, settings.digests, progress)
    check_decidable(choices.policy, choices.recipes, sources.counts(choices.policy), progress)
    check_claims_decidable(
        choices.policy, claim_powers(choices.policy, len(choices.recipes), choices.profile)
    )
    return sources


def make_plan(
    choices: Choices,
    checkpoint: Checkpoint,
    settings: Settings,
    sources: SourceResolver,
    run: str | None = None,
    draft: Checkpoint | None = None,
) -> Plan:
    """The plan for these choices.

    Args:
        run: id of the run that begins; None to look ahead only, and count no trial.
        draft: what drafts for variants, inspected.

    Raises:
        PrepareError: calibration data is unavailable, or a suite cannot decide its margin at the
            share of the error rate that is left for this trial.
    """
    trials, counts = Trials(settings.store), sources.counts(choices.policy)
    begin = make_beginner(trials, choices.policy, choices.recipes, counts, run)
    return make_planner(choices, checkpoint, settings, sources, begin, draft).plan()


def make_planner(
    choices: Choices,
    checkpoint: Checkpoint,
    settings: Settings,
    sources: SourceResolver,
    begin: Begin | None,
    draft: Checkpoint | None = None,
) -> Planner:
    """What plans these choices; `begin` counts the trial that they are, None: not counted."""
    accelerator = Accelerator(choices.profile.accelerator)
    environments = {
        *environments_for(recipe.quantization for recipe in choices.recipes),
        find_engine(choices.profile.engine).environment,
    }
    return Planner(
        checkpoint=checkpoint,
        profile=choices.profile,
        policy=with_forms(choices.policy, has_template=folder_has_chat_template(checkpoint.path)),
        recipes=choices.recipes,
        baseline=choices.baseline,
        identities={str(name): identity(name, accelerator, settings) for name in environments},
        hardware=hardware(choices.profile.accelerator),
        sources=sources,
        store=settings.store,
        trust_remote_code=choices.trust_remote_code,
        rungs=choices.rungs,
        dry_run=is_worth_it(checkpoint.weights_bytes, choices.dry_run),
        begin=begin,
        draft=draft,
    )


def make_beginner(
    trials: Trials,
    policy: Policy,
    recipes: tuple[Recipe, ...],
    counts: Mapping[str, int | None],
    run: str | None,
) -> Callable[[Count, Mapping[str, str]], Trial]:
    """Counts a trial whose suites can decide their margins at its share of the error rate.

    Args:
        counts: by suite, questions that its source has, where known.
        run: as for :func:`make_plan`.
    """

    def begin(count: Count, variants: Mapping[str, str]) -> Trial:
        trial = trials.foresee(count, variants)
        if run is None:
            return trial
        level = level_of(policy.alpha, len(trial.variants), trial.number)
        try:
            check_decidable(policy, recipes, counts, Silent(), level)
        except UsageError as error:
            raise UsageError(
                f"{error.what} at the {level:.2g} of the error rate that trial {trial.number} "
                "against this baseline has for each variant",
                where=error.where,
                cure=f"{error.cure}; `prepare runs trials` lists what was tried; a policy under "
                "another name begins a count of its own, and its verdicts say so",
            ) from error
        return trials.begin(count, variants, run)

    return begin
