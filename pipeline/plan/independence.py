"""Refuses gates that count several questions on one text as independent evidence.

Answers to questions on one passage are correlated. A gate without clusters then errs in 7 to 15 %
of runs at a nominal 5 %; with means of passages (`cluster_by`) it keeps its level.
"""

from __future__ import annotations

from collections.abc import Mapping

from eval_gates.clusters import repeated_field
from eval_gates.suites.suite_kind import kind_of
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.plan.data_sources import SourceResolver, local_rows
from pipeline.stages.questions import QuestionsResult
from recipes.policy import AnySuite, Policy


def check_known_tasks(policy: Policy, progress: Progress) -> None:
    """Check tasks that are known to have several questions a passage, before anything is read.

    Raises:
        UsageError: a suite that is not advisory uses such a task without clusters.
    """
    for name, suite in policy.suites.items():
        field = kind_of(suite).known_cluster(suite)
        if field is not None:
            _check(name, suite, field, progress)


def check_laid_out(
    policy: Policy, laid_out: Mapping[str, QuestionsResult], progress: Progress
) -> None:
    """Check prepared questions for long common texts.

    Args:
        laid_out: by suite, the result of its stage `questions`.
        progress: receives a note on advisory suites.

    Raises:
        UsageError: as :func:`check_known_tasks`.
    """
    for name, suite in policy.suites.items():
        shared = laid_out[name].shared_text if name in laid_out else None
        if shared is not None:
            _check(name, suite, shared, progress)


def note_repeated_fields(policy: Policy, sources: SourceResolver, progress: Progress) -> None:
    """Note local questions that share a field if the suite declares no cluster."""
    for name, suite in policy.suites.items():
        if suite.cluster_by is not None:
            continue
        field = repeated_field(list(local_rows(suite, sources.suite(name, suite))))
        if field is not None:
            progress.note(
                f"{name}: several questions have the same '{field}'. If their answers rise and "
                f"fall together, add 'cluster_by: {field}' (policy key suites.{name}.cluster_by)"
            )


def _check(name: str, suite: AnySuite, field: str, progress: Progress) -> None:
    if suite.cluster_by is not None:
        return
    what = (
        f"the suite '{name}' has several questions with one '{field}', whose answers rise and fall "
        "together; each would count as separate evidence"
    )
    if suite.tier == "advisory":
        progress.note(f"{what}; it is advisory, so this blocks nothing")
        return
    raise UsageError(
        what,
        where=f"policy key suites.{name}.cluster_by",
        hint=f"add 'cluster_by: {field}', and each {field} is one value",
    )
