"""How many variants a verdict counts, compared with the stages that it rests on.

Each variant that is tried is one more chance of a lucky pass, so a verdict is worth as much as the
count is right. The count is in the key of every judge stage, and in the rule of every round of
questions, whose level is the policy's over that number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from artifacts.evidence.verdict import SPEED
from artifacts.stages.evaluate import EVALUATE
from artifacts.stages.judge import JudgeParameters
from artifacts.stages.speed import SPEED as LOADED
from eval_gates.statistics.multiplicity import level_of
from pipeline.core.stage_record import StageRecord

CANDIDATE = "candidate."


def find_miscounts(
    judge: JudgeParameters, recipe: str, tried: Sequence[str], rounds: dict[str, StageRecord]
) -> Iterator[str]:
    """In what a judge stage and its rounds contradict who is said to have been tried, in words.

    The verdict is said to be on `recipe` and to count `tried`; `rounds` are the last ones by role.

    Raises:
        EvidenceError: a record is none that prepare wrote.
    """
    names, counted = sorted(set(tried)), judge.tried
    if len(names) != len(tried):
        yield "a variant is named twice among those tried"
    if judge.recipe not in (None, recipe):
        yield f"its stage 'judge' is on another variant, {judge.recipe!r}"
    if counted is not None and counted != names:
        yield (
            f"its verdict counts {len(counted)} variants tried ({', '.join(counted)}), "
            f"and {len(names)} are named ({', '.join(names)})"
        )
    if (trial := judge.trial) is not None:
        if trial.number != len(trial.earlier) + 1:
            yield f"it claims to be trial {trial.number}, after {len(trial.earlier)} others"
        if sorted(trial.variants) != names:
            yield f"its trial is of {', '.join(sorted(trial.variants))}"
    levels = 0
    for role, record in rounds.items():
        if role.startswith(SPEED):
            yield from _mislevelled(judge, role, record, len(names))
            continue
        name = role.removeprefix(CANDIDATE)
        suite = judge.policy.suites[name]
        if suite.test != "sequential" or not names:
            continue
        rule = EVALUATE.parameters_of(record).rule
        asked_at = rule.alpha if rule else None
        level = level_of(judge.policy.alpha, len(names), judge.number)
        levels += 1
        if asked_at is None or not math.isclose(asked_at, level, rel_tol=1e-9):
            yield (
                f"{role}: asked at the level {asked_at}, and with {len(names)} variants "
                f"tried the policy's is {level:g}"
            )
        if rule is None or rule.margin != suite.margins.get(judge.family):
            yield f"{role}: asked by another margin than the policy's"
        if (rule and rule.planned_bet) != (judge.planned_bets or {}).get(name):
            yield f"{role}: asked by another bet than it is judged by"
    if counted is None and levels == 0:
        yield (
            "an older prepare judged it, and how many variants were tried with it is not known: "
            "run the model again, what is still in the store is reused"
        )


def _mislevelled(
    judge: JudgeParameters, role: str, record: StageRecord, tried: int
) -> Iterator[str]:
    """That loads were measured until another level than the number of variants calls for."""
    level = level_of(judge.policy.alpha, tried, judge.number)
    kept = LOADED.parameters_of(record).rule.get("alpha", math.nan)
    if not math.isclose(kept, level, rel_tol=1e-9):
        yield (
            f"{role}: measured at the level {kept}, and with {tried} variants tried the policy's "
            f"is {level:g}"
        )
