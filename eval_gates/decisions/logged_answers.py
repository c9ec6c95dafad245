"""What the answers of a log decide, or recorded ones, for the chances of gates before any work.

No arm is compared with those of a log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from eval_gates.decisions.parts import CALLS, TOOL, is_about, tool_label
from eval_gates.decisions.task import AS_LOGGED, KindGate, gate_name
from eval_gates.decisions.turn_decision import TurnDecision, keeps, kept_kinds, read_decision
from eval_gates.decisions.written_turn import without_thoughts
from eval_gates.rows import Answer, Question, Reply, ToolCall
from eval_gates.suites.chat_logs import Turn, tool_name
from eval_gates.suites.suite_kind import LoggedAnswers


def read_logged_answers(
    turns: Sequence[Turn], questions: Sequence[Question], gates: Sequence[tuple[str, KindGate]]
) -> LoggedAnswers | None:
    """Return what the log decides at its answered turns; None without an answer."""
    decisions = {f"{turn.session}/{turn.number}": _logged_decision(turn) for turn in turns}
    answered = list[tuple[Question, TurnDecision]]()
    for question in questions:
        decision = decisions[question.id.removesuffix(f"/{question.group}")]
        if decision is not None:
            answered.append((question, decision))
    if not answered:
        return None
    shares = dict[str, float]()
    for kind, gate in gates:
        if kind:
            sessions = {question.cluster for question, _ in answered}
            about = _sessions_about(answered, kind, gate)
        else:  # all decisions at a number of tools
            sessions = {question.cluster for question in questions}
            about = {question.cluster for question in questions if question.group == gate.group}
        shares[gate_name("", kind, gate)] = len(about) / len(sessions)
    return LoggedAnswers(
        shares=shares, empty=_empty_by_session(answered), tools=_sessions_by_tool(answered)
    )


def read_recorded_answers(
    rows: Sequence[Answer], gates: Sequence[tuple[str, KindGate]]
) -> LoggedAnswers:
    """Return what the reference decided, as the rows say that were compared with it.

    What empty answers score is judged with the recorded scores, so it is not told.
    """
    sessions = {row.cluster for row in rows}
    shares = dict[str, float]()
    for kind, gate in gates:
        about = {row.cluster for row in rows if is_about(row, kind, gate)}
        shares[gate_name("", kind, gate)] = len(about) / len(sessions)
    calling = [row for row in rows if row.group == AS_LOGGED and CALLS in row.own]
    tools = Counter(label for label, _ in {(str(row.own[TOOL]), row.cluster) for row in calling})
    return LoggedAnswers(shares=shares, empty=[], tools=tools)


def _logged_decision(turn: Turn) -> TurnDecision | None:
    """Return what the log's own answer to a turn decides, read as an arm's; None without one."""
    if turn.answer is None:
        return None
    calls = [
        ToolCall(call["function"]["name"], call["function"]["arguments"])
        for call in turn.answer.get("tool_calls", ())
    ]
    reply, _ = without_thoughts(Reply(turn.answer["content"]))
    return read_decision(reply.text, calls, set(map(tool_name, turn.tools)))


def _sessions_about(
    answered: Sequence[tuple[Question, TurnDecision]], kind: str, gate: KindGate
) -> set[str]:
    """Return the sessions with a turn that a gate on that kind is about."""
    return {
        question.cluster
        for question, decision in answered
        if question.group == gate.group and keeps(kind) in kept_kinds(decision, decision)
    }


def _sessions_by_tool(answered: Sequence[tuple[Question, TurnDecision]]) -> dict[str, int]:
    """Return by tool in how many sessions it is called as logged."""
    sessions = defaultdict[str, set[str]](set)
    for question, decision in answered:
        if question.group == AS_LOGGED and decision.calls:
            sessions[tool_label(decision.tool)].add(question.cluster)
    return {label: len(called_in) for label, called_in in sessions.items()}


def _empty_by_session(answered: Sequence[tuple[Question, TurnDecision]]) -> list[float]:
    """Return by session the share of its turns as logged that an empty answer decides alike."""
    sessions = defaultdict[str, list[bool]](list)
    for question, decision in answered:
        if question.group == AS_LOGGED:
            sessions[question.cluster].append(decision == TurnDecision())
    return [sum(turns) / len(turns) for turns in sessions.values()]
