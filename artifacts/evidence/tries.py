"""How many variants a verdict counts, compared with the stages that it rests on.

Each variant that is tried is one more chance of a lucky pass, so a verdict is worth as much as the
count is right. The count is in the key of every judge stage, and in the rule of every round of
questions, whose level is the policy's over that number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from eval_gates.planned_bets import bets_in
from eval_gates.statistics.multiplicity import level_of
from eval_gates.verdict import SPEED, number_in
from pipeline.core.stage_record import StageRecord

CANDIDATE = "candidate."


def find_miscounts(
    judge: StageRecord, recipe: str, tried: Sequence[str], rounds: dict[str, StageRecord]
) -> Iterator[str]:
    """In what a judge stage and its rounds contradict who is said to have been tried, in words.

    The verdict is said to be on `recipe` and to count `tried`; `rounds` are the last ones by role.

    Raises:
        KeyError, TypeError: a record is none that prepare wrote.
    """
    names, counted = sorted(set(tried)), judge.parameters.get("tried")
    if len(names) != len(tried):
        yield "a variant is named twice among those tried"
    if judge.parameters.get("recipe", recipe) != recipe:
        yield f"its stage 'judge' is on another variant, {judge.parameters['recipe']!r}"
    if counted is not None and counted != names:
        yield (
            f"its verdict counts {len(counted)} variants tried ({', '.join(map(str, counted))}), "
            f"and {len(names)} are named ({', '.join(names)})"
        )
    trial = judge.parameters.get("trial")
    if trial is not None:
        if trial["number"] != len(trial["earlier"]) + 1:
            yield f"it claims to be trial {trial['number']}, after {len(trial['earlier'])} others"
        if sorted(trial["variants"]) != names:
            yield f"its trial is of {', '.join(sorted(trial['variants']))}"
    levels = 0
    for role, record in rounds.items():
        if role.startswith(SPEED):
            yield from _mislevelled(judge, role, record, len(names))
            continue
        rule = _rule_of(judge, role.removeprefix(CANDIDATE), len(names))
        if rule is None:
            continue
        kept = record.parameters.get("rule") or {}
        levels += 1
        if not math.isclose(kept.get("alpha", math.nan), rule["alpha"], rel_tol=1e-9):
            yield (
                f"{role}: asked at the level {kept.get('alpha')}, and with {len(names)} variants "
                f"tried the policy's is {rule['alpha']:g}"
            )
        if kept.get("margin") != rule["margin"]:
            yield f"{role}: asked by another margin than the policy's"
        if kept.get("planned_bet") != rule["planned_bet"]:
            yield f"{role}: asked by another bet than it is judged by"
    if counted is None and levels == 0:
        yield (
            "an older prepare judged it, and how many variants were tried with it is not known: "
            "run the model again, what is still in the store is reused"
        )


def _mislevelled(judge: StageRecord, role: str, record: StageRecord, tried: int) -> Iterator[str]:
    """That loads were measured until another level than the number of variants calls for."""
    level = level_of(judge.parameters["policy"]["alpha"], tried, number_in(judge.parameters))
    kept = record.parameters["rule"].get("alpha", math.nan)
    if not math.isclose(kept, level, rel_tol=1e-9):
        yield (
            f"{role}: measured at the level {kept}, and with {tried} variants tried the policy's "
            f"is {level:g}"
        )


def _rule_of(judge: StageRecord, suite: str, tried: int) -> dict[str, Any] | None:
    """What must have ended the asking of a suite; None where all its questions are asked."""
    policy = judge.parameters["policy"]
    kept = policy["suites"][suite]
    if kept.get("test", "sequential") != "sequential" or not tried:
        return None
    return {
        "alpha": level_of(policy["alpha"], tried, number_in(judge.parameters)),
        "margin": kept["margins"][judge.parameters["family"]],
        "planned_bet": bets_in(judge.parameters).get(suite),
    }
