"""The attempt that a verdict names, compared with the stages that it rests on.

Each variant, attempt and measurement is one more chance of a lucky pass. So a verdict is worth as
much as these numbers are right: they are in the keys of its stages, and give every level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from artifacts.attempts import StartSpread
from artifacts.evidence.verdict import SPEED
from artifacts.stages.evaluate import EVALUATE
from artifacts.stages.judge import JudgeParameters
from artifacts.stages.speed import SPEED as LOADED
from pipeline.core.stage_record import StageRecord

CANDIDATE = "candidate."


def find_miscounts(
    judge: JudgeParameters, recipe: str, tried: Sequence[str], rounds: Mapping[str, StageRecord]
) -> Iterator[str]:
    """What contradicts the attempt in a judge stage and its rounds, in words.

    Args:
        judge: what the stage was asked.
        recipe: that the verdict is on.
        tried: recipes that were tried together.
        rounds: the last ones of the candidate, and its loads, by role.

    Raises:
        EvidenceError: a record has another shape.
    """
    attempt, policy = judge.attempt, judge.policy
    if judge.recipe not in (None, recipe):
        yield f"its stage 'judge' is on another variant, {judge.recipe!r}"
    if sorted(attempt.variants) != sorted(tried):
        yield (
            f"its attempt is of {', '.join(sorted(attempt.variants))}, "
            f"and {', '.join(sorted(tried))} are named"
        )
    if (attempt.alpha, attempt.spending) != (policy.alpha, policy.attempts):
        yield "its attempt has another error rate than the policy"
    begun_with, measuring = attempt.start_spread, judge.measuring
    if begun_with is not None and measuring is not None:
        used = StartSpread(stddev=measuring.restart_stddev, starts=measuring.restart_count)
        if used != begun_with:
            yield (
                f"its ratios allow for a spread of starts of {used.stddev:g}, and its attempt "
                f"began with {begun_with.stddev:g}"
            )
    for role, record in rounds.items():
        if role.startswith(SPEED):
            loaded = LOADED.parameters_of(record)
            found, level = loaded.rule.get("alpha"), attempt.level(loaded.measurement)
        else:
            asked = EVALUATE.parameters_of(record)
            name = role.removeprefix(CANDIDATE)
            suite = policy.suites[name]
            if suite.test != "sequential":
                continue
            rule = asked.rule
            found, level = rule.alpha if rule else None, attempt.level(asked.measurement)
            if rule is None or rule.margin != suite.margins.get(judge.family):
                yield f"{role}: asked by another margin than the policy's"
            if (rule and rule.planned_bet) != judge.planned_bets.get(name):
                yield f"{role}: asked by another bet than it is judged by"
        if found is None or not math.isclose(found, level, rel_tol=1e-9):
            yield f"{role}: measured at the level {found}, and that of its attempt is {level:g}"
