"""Builds the plan of resolved options and checks that its gates can decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.checkpoint.folder import (
    Checkpoint,
)
from pipeline.core.events import NullProgress, Progress
from pipeline.environments.definition import environments_for
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.inspection.chat_template import folder_generation
from pipeline.plan.adopted_variants import with_facts
from pipeline.plan.context_length import max_length_of, with_lengths
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.model_plan import ModelPlanner
from pipeline.plan.plan import Plan
from pipeline.plan.power import check_power
from pipeline.plan.resolved_options import ResolvedOptions
from pipeline.stages.attempts import AttemptLedger, Remeasured
from recipes.engines import find_engine


def find_data(choices: ResolvedOptions, settings: Settings, progress: Progress) -> SourceResolver:
    """Return the question sources, after checking that they suffice; needs no checkpoint.

    Raises:
        EvaluationDataError: a suite's questions are unavailable.
        UsageError: a suite could not decide its margin, however good a variant is.
    """
    for note in choices.left_out:
        progress.note(note)
    evaluate = identity("evaluate", Accelerator(choices.profile.accelerator), settings)
    sources = SourceResolver(choices.eval_data, evaluate, settings.digests, progress)
    counts = sources.counts(choices.policy)
    check_power(choices.policy, choices.recipes, counts, progress)
    return sources


def make_plan(
    choices: ResolvedOptions,
    checkpoint: Checkpoint,
    settings: Settings,
    sources: SourceResolver,
    run: str = "",
    draft: Checkpoint | None = None,
    adopted: Mapping[str, Checkpoint] | None = None,
) -> Plan:
    """Return the plan of these options.

    Args:
        run: id of the new run; '' to look ahead only.
        draft: the inspected draft checkpoint, if any.
        adopted: the checkpoints of adopted variants, by name.

    Raises:
        PrepareError: calibration data is unavailable, or the policy allows no further attempt.
    """
    remeasured = Remeasured(frozenset(choices.remeasured), frozenset({run}))
    if adopted:
        known = {each.recipe.name: each.recipe for each in with_facts(choices.adopted, adopted)}
        recipes = tuple(known.get(recipe.name, recipe) for recipe in choices.recipes)
        choices = replace(choices, recipes=recipes)
    planner = make_planner(choices, checkpoint, settings, sources, draft)
    planner = replace(planner, run=run, remeasured=remeasured, adopted=adopted or {})
    if run:
        AttemptLedger(settings.open_store()).check_allowed(planner.trial)
    return planner.plan()


def make_planner(
    choices: ResolvedOptions,
    checkpoint: Checkpoint,
    settings: Settings,
    sources: SourceResolver,
    draft: Checkpoint | None = None,
) -> ModelPlanner:
    """Return the planner of these options."""
    accelerator = Accelerator(choices.profile.accelerator)
    policy = resolve_generation(choices.policy, folder_generation(checkpoint.path))
    max_length = max_length_of(choices.profile, checkpoint)
    fitted = with_lengths(policy, max_length, sources.note)
    counts = sources.counts(fitted)
    if fitted != policy:
        check_power(fitted, choices.recipes, counts, NullProgress())
    environments = {
        *environments_for(recipe.quantization.environment for recipe in choices.recipes),
        find_engine(choices.profile.engine).environment,
    }
    return ModelPlanner(
        checkpoint=checkpoint,
        profile=choices.profile,
        policy=fitted,
        recipes=choices.recipes,
        baseline=choices.baseline,
        identities={str(name): identity(name, accelerator, settings) for name in environments},
        node=choices.node,
        sources=sources,
        store=settings.store,
        trust_remote_code=choices.trust_remote_code,
        draft=draft,
    )
