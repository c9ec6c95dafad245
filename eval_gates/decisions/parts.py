"""Parts of the turns that a mean hides: abilities, and tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from eval_gates.decisions.task import AS_LOGGED, KindGate
from eval_gates.decisions.turn_decision import keeps
from eval_gates.quality_result import GroupReport, report_parts
from eval_gates.rows import Answer
from eval_gates.statistics.parts import Part, Partition, split

TOOL = "tool"  # own key of an answer: the label of the tool that the reference calls
LABEL_DIGITS = 12
CALLS = keeps("calls")


def tool_label(name: str) -> str:
    """Return how answers and reports name a tool: names stay in the store."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"tool {digest[:LABEL_DIGITS]}"


def is_about(row: Answer, kind: str, gate: KindGate) -> bool:
    """Return whether a gate is about the turn, by what the reference decided."""
    return row.group == gate.group and (not kind or keeps(kind) in row.own)


def abilities_and_tools(
    baseline: Sequence[Answer], candidate: Sequence[Answer]
) -> tuple[Partition, Partition]:
    """Return the turns by what the reference does, and those with a call by their tool.

    ValueError: the sides were compared with different references.
    """
    calls = [
        (_by_tool(before), _by_tool(after))
        for before, after in zip(baseline, candidate, strict=True)
        if CALLS in before.own or CALLS in after.own
    ]
    for before, after in calls:
        if before.own[TOOL] != after.own[TOOL]:
            raise ValueError(f"question {before.id}: the sides have different references")
    with_call = [before for before, _ in calls]
    called = [after for _, after in calls]
    return split(baseline, candidate, _ability), split(with_call, called, _tool)


def report_turns(baseline: Sequence[Answer], candidate: Sequence[Answer]) -> list[GroupReport]:
    """Return each ability and each tool as logged, and the numbers of tools on a ladder."""
    rungs = {part.name: part for part in split(baseline, candidate, lambda row: row.group)}
    logged = rungs.get(AS_LOGGED, Part(AS_LOGGED))
    abilities, tools = abilities_and_tools(logged.before, logged.after)
    reports = [*report_parts(abilities, "part"), *report_parts(tools, "tool")]
    if len(rungs) > 1:
        reports += report_parts(rungs.values(), "rung", sorted(rungs, key=_rung_order))
    return reports


def _ability(answer: Answer) -> str:
    """Return what the reference does at the turn: it calls, declines or answers."""
    if CALLS in answer.own:
        return "calls"
    return "declines" if keeps("declines") in answer.own else "answers"


def _tool(answer: Answer) -> str:
    return str(answer.own[TOOL])


def _by_tool(answer: Answer) -> Answer:
    """Return the answer, scored by whether the reference's tool is called.

    Arguments do not count: what a search is worded like is no loss of the tool. ValueError if it
    does not say so.
    """
    is_kept = answer.own.get(keeps("tool"))
    if not isinstance(answer.own.get(TOOL), str) or type(is_kept) is not int:
        raise ValueError(f"question {answer.id} does not say which tool it keeps")
    return replace(answer, score=float(is_kept))


def _rung_order(name: str) -> tuple[bool, int, str]:
    """Return the place of a number of tools: as logged comes first."""
    return name != AS_LOGGED, len(name), name
