"""The plan of what was chosen, and whether it can decide anything before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from artifacts.trials import Count, Trial, Trials
from eval_gates.statistics.multiplicity import level_of
from pipeline.checkpoint.folder import (
    Checkpoint,
)
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress, Silent
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.inspection.chat_template import folder_has_chat_template
from pipeline.plan.choices import Choices
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.dry_run import is_worth_it
from pipeline.plan.gate_power import check_decidable
from pipeline.plan.of_checkpoint import Begin, Planner
from pipeline.plan.plan import Plan
from pipeline.plan.quantizers import environments_for
from pipeline.plan.speed_power import check_claims_decidable, claim_powers
from pipeline.plan.suite_forms import with_forms
from recipes.engines import find_engine
from recipes.policy import Policy
from recipes.schema import Recipe


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
        node=choices.node,
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
