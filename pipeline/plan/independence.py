"""Refuses gates that would count several questions about one text as evidence of their own.

Answers to questions about one passage rise and fall together. A claim about all such questions then
errs in 7 to 15 % of runs where 5 is promised; by the means of passages (`cluster`) it does not.
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
    """Before anything is read: of the tasks that are known to have several questions a passage.

    Raises:
        UsageError: a suite that is not advisory asks one of them, and puts nothing together.
    """
    for name, suite in policy.suites.items():
        field = kind_of(suite).known_cluster(suite)
        if field is not None:
            _check(name, suite, field, progress)


def check_laid_out(
    policy: Policy, laid_out: Mapping[str, QuestionsResult], progress: Progress
) -> None:
    """Once the questions are laid out: of those that have long texts in common.

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
    """Note local questions that seem to belong together where the suite declares no cluster."""
    for name, suite in policy.suites.items():
        if suite.cluster_by is not None or suite.about == "benchmark":
            continue
        field = repeated_field(list(local_rows(suite, sources.suite(name, suite))))
        if field is not None:
            progress.note(
                f"{name}: several questions have the same '{field}'. If their answers rise and "
                f"fall together, add 'cluster_by: {field}' (policy key suites.{name}.cluster_by)"
            )


def _check(name: str, suite: AnySuite, field: str, progress: Progress) -> None:
    if suite.cluster_by is not None or suite.about == "benchmark":
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
        hint=f"add 'cluster_by: {field}', and each {field} is one value; or 'about: benchmark', a "
        "claim about these very questions alone",
    )
