"""Parts of the turns that a mean hides: abilities, and tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from eval_gates.decisions.task import AS_LOGGED
from eval_gates.decisions.turn_decision import keeps
from eval_gates.quality_result import GroupReport, report_parts
from eval_gates.rows import Answer
from eval_gates.statistics.parts import Partition, split

TOOL = "tool"  # own key of an answer: the label of the tool that the reference calls
LABEL_DIGITS = 8


def tool_label(name: str) -> str:
    """Return how answers and reports name a tool: names stay in the store."""
    return f"tool {hashlib.sha256(name.encode()).hexdigest()[:LABEL_DIGITS]}"


def abilities_and_tools(
    baseline: Sequence[Answer], candidate: Sequence[Answer]
) -> tuple[Partition, Partition]:
    """Return the turns by what the reference does, and those with a call by their tool."""
    return (
        split(baseline, candidate, _ability),
        split(_whether_called(baseline), _whether_called(candidate), _tool),
    )


def report_turns(baseline: Sequence[Answer], candidate: Sequence[Answer]) -> list[GroupReport]:
    """Return each ability and each tool as logged, and the numbers of tools on a ladder."""
    rungs = split(baseline, candidate, lambda row: row.group)
    reports = list[GroupReport]()
    for logged in rungs:
        if logged.name == AS_LOGGED:
            abilities, tools = abilities_and_tools(logged.before, logged.after)
            reports += report_parts(abilities, "part")
            reports += report_parts(tools, "tool")
    if len(rungs) > 1:
        names = sorted((part.name for part in rungs), key=_rung_order)
        reports += report_parts(rungs, "rung", names)
    return reports


def _ability(answer: Answer) -> str:
    """Return what the reference does at the turn: it calls, declines or answers."""
    if keeps("calls") in answer.own:
        return "calls"
    return "declines" if keeps("declines") in answer.own else "answers"


def _tool(answer: Answer) -> str:
    return str(answer.own[TOOL])


def _whether_called(answers: Sequence[Answer]) -> list[Answer]:
    """Return the turns in which the reference calls, scored by whether its tool is called.

    Arguments do not count: what a search is worded like is no loss of the tool.
    """
    return [
        replace(answer, score=float(answer.own[keeps("tool")]))
        for answer in answers
        if TOOL in answer.own
    ]


def _rung_order(name: str) -> tuple[bool, int, str]:
    """Return the place of a number of tools: as logged comes first."""
    return name != AS_LOGGED, len(name), name
