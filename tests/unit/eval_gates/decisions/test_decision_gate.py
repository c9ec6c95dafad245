"""Gates on single kinds of decisions: what passes and fails, and how often at the margin."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from eval_gates.decisions.gate import DecisionResult, gate_name, judge_decisions
from eval_gates.decisions.parts import TOOL, tool_label
from eval_gates.decisions.suite import Decisions
from eval_gates.decisions.task import KindGate, gates_of
from eval_gates.decisions.turn_decision import keeps
from eval_gates.quality_gate import gate_rule_of, judge_quality
from eval_gates.quality_result import SAME_DECISION, QualityResult
from eval_gates.rows import Answer
from eval_gates.statistics.bound import p_value
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.lost_groups import find_lost_groups

REPLAYS = 4_000
SUITE = Decisions.policy.model_validate(
    {
        "kind": "decisions",
        "margins": {"fp8": 0.1},
        "ladder": [16],
        "kinds": {
            "calls": {"margins": {"fp8": 0.1}, "tier": "critical"},
            "declines": {"margins": {"fp8": 0.1, "int4": 0.2}},
        },
        "at_most_tools": {"tools": 16, "margins": {"fp8": 0.1}},
    }
)


def kept_own(kind: str, is_kept: int) -> dict[str, Any]:
    """Own keys of a turn; one with a call names its tool."""
    if kind != "calls":
        return {keeps(kind): is_kept}
    return {keeps(kind): is_kept, keeps("tool"): is_kept, TOOL: tool_label("find")}


def rows(
    sessions: int, kept: float, kind: str = "calls", turns: int = 2, group: str = "as logged"
) -> list[Answer]:
    """Turns of sessions, of which the first share keeps that kind of decision in all turns."""
    return [
        Answer(
            f"{session}/{turn}/{group}",
            "p",
            float(session < kept * sessions),
            cluster=f"s{session}",
            group=group,
            own={**kept_own(kind, int(session < kept * sessions)), "margin": 1.0 + turn},
        )
        for session in range(sessions)
        for turn in range(turns)
    ]


def judged(before: list[Answer], after: list[Answer], alpha: float = 0.05) -> list[DecisionResult]:
    return judge_decisions("agents", SUITE, "fp8", alpha, before, after)


def test_each_gate_is_of_its_own_turns() -> None:
    found = judged(rows(200, 1.0), rows(200, 1.0))
    assert [(gate.name, gate.verdict, gate.n) for gate in found] == [
        ("agents calls", "pass", 200),
        ("agents declines", "undecided", 0),
        ("agents at 16 tools", "undecided", 0),
    ]
    assert [gate.blocks for gate in found] == [False, False, False]
    at_tools = rows(200, 1.0, group="16 tools")
    verdicts = ["undecided", "undecided", "pass"]
    assert [gate.verdict for gate in judged(at_tools, at_tools)] == verdicts
    with pytest.raises(ValueError, match="as logged"):
        whole_suite(at_tools, at_tools)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (1.0, 0.97, "pass"),
        (1.0, 0.90, "undecided"),
        (1.0, 0.75, "fail"),
        (0.97, 0.96, "pass"),  # the baseline's own noise is inside the comparison
        (0.9, 1.0, "pass"),
        (0.0, 0.0, "undecided"),  # the gate is insensitive
        (0.09, 0.0, "undecided"),
    ],
)
def test_verdicts_are_one_sided(before: float, after: float, verdict: str) -> None:
    gate = judged(rows(300, before), rows(300, after))[0]
    assert gate.verdict == verdict
    assert gate.blocks is (verdict != "pass")


def whole_suite(before: list[Answer], after: list[Answer]) -> QualityResult:
    return judge_quality(
        "agents",
        SUITE,
        gate_rule_of(SUITE, "fp8", 0.05),
        metric="",
        baseline=before,
        candidate=after,
        again=(),
        guessing=0.0,
    )


def drawn(answers: list[Answer]) -> list[Answer]:
    """Whole sessions, in another order than that of what they keep."""
    return sorted(answers, key=lambda row: int(row.cluster[1:]) * 67 % 150)


def test_a_ladder_hides_no_loss_as_logged() -> None:
    """45 of 150 turns are lost as logged, and none of their 600 repetitions with more tools."""
    ladder = [row for n in (4, 16, 64, 128) for row in rows(150, 1.0, turns=1, group=f"{n} tools")]
    before = drawn(rows(150, 1.0, turns=1) + ladder)
    after = drawn(rows(150, 0.7, turns=1) + ladder)
    calls, _, at_16_tools = judged(before, after)
    assert (calls.verdict, calls.turns, calls.kept_turns) == ("fail", 150, 105)
    assert (at_16_tools.verdict, at_16_tools.turns) == ("pass", 150)
    suite = whole_suite(before, after)
    assert (suite.verdict, suite.candidate) == ("fail", pytest.approx(0.7, abs=0.02))
    assert {group.group: group.n for group in suite.groups}["16 tools"] == 150


@pytest.mark.parametrize(("long", "verdict"), [(30, "undecided"), (2, "pass")])
def test_a_loss_that_grows_along_sessions_does_not_pass(long: int, verdict: str) -> None:
    """A mean of sessions would let 3 % of them lose all of their turns."""
    turns = [long if session % 33 == 0 else 2 for session in range(660)]
    before, after = (
        [
            Answer(
                f"{session}/{turn}",
                "p",
                float(count == 2 or not is_variant or turn < 1),
                cluster=f"s{session}",
                group="as logged",
                own=kept_own("calls", int(session % 33 != 0 or not is_variant or turn < 1)),
            )
            for session, count in enumerate(turns)
            for turn in range(count)
        ]
        for is_variant in (False, True)
    )
    gate = judged(before, after)[0]
    assert gate.lower is not None
    assert gate.lower > -0.1
    assert gate.verdict == whole_suite(before, after).verdict == verdict


@pytest.mark.parametrize(
    ("declining", "kept", "verdict"), [(12, 0.0, "undecided"), (12, 1.0, "pass"), (4, 0.0, "pass")]
)
def test_a_rare_ability_is_not_lost_in_a_mean(declining: int, kept: float, verdict: str) -> None:
    """12 of 600 sessions decline; a variant that never does loses 2 points of all turns."""
    answered = rows(588, 1.0, kind="talks", turns=1)

    def declined(share: float) -> list[Answer]:
        return [
            replace(row, id=f"d{row.id}", cluster=f"d{row.cluster}")
            for row in rows(declining, share, kind="declines", turns=1)
        ]

    before = [*answered, *declined(1.0)]
    after = [*answered, *declined(kept)]
    suite = whole_suite(before, after)
    assert suite.verdict == verdict
    assert ("declines loses" in suite.reason) == (verdict == "undecided")
    assert ("lost: declines" in suite.shortfall) == (verdict == "undecided")
    parts = {part.group: (part.n, part.candidate) for part in suite.groups}
    assert parts == {"answers": (588, 1.0), "declines": (declining, kept)}


def called(
    name: str, sessions: int, kept: float, argument: float = 1.0, *, calls_another: bool = False
) -> list[Answer]:
    """Sessions of one turn that calls a tool; a share keeps it, of these a share its arguments."""
    turns = []
    for session in range(sessions):
        is_kept = session < kept * sessions
        own = {
            keeps("calls"): int(is_kept or calls_another),
            keeps("tool"): int(is_kept),
            TOOL: tool_label(name),
        }
        score = float(session < kept * argument * sessions)
        label = f"{name}-{session}"
        turns.append(Answer(label, "p", score, cluster=label, group="as logged", own=own))
    return turns


@pytest.mark.parametrize("calls_another", [False, True])
@pytest.mark.parametrize(
    ("sessions", "kept", "verdict"),
    [(16, 0.0, "undecided"), (16, 1.0, "pass"), (4, 0.0, "pass")],
)
def test_a_rare_tool_is_not_lost_in_a_mean(
    sessions: int, kept: float, verdict: str, calls_another: bool
) -> None:
    """16 of 616 sessions call a tool that the variant never calls: 2.6 points of all."""
    others = [answer for n in range(4) for answer in called(f"find_{n}", 150, 1.0)]
    suite = whole_suite(
        [*others, *called("refund", sessions, 1.0)],
        [*others, *called("refund", sessions, kept, calls_another=calls_another)],
    )
    label = tool_label("refund")
    assert suite.verdict == verdict
    assert (f"{label} loses" in suite.reason) == (verdict == "undecided")
    assert (f"points ({sessions} clusters)" in suite.reason) == (verdict == "undecided")
    assert (f"lost: {label}" in suite.shortfall) == (verdict == "undecided")
    shares = suite.model_copy(update={"metric": SAME_DECISION}).shares
    assert f"{label} 100.0 % to {100 * kept:.1f} % ({sessions} turns)" in shares
    assert "refund" not in suite.model_dump_json()


def test_other_arguments_are_no_loss_of_a_tool() -> None:
    """40 of 640 sessions search, and the variant words 20 searches otherwise: 3 points of all."""
    others = [answer for n in range(4) for answer in called(f"find_{n}", 150, 1.0)]
    before = [*others, *called("search", 40, 1.0)]
    after = [*others, *called("search", 40, 1.0, argument=0.5)]
    assert whole_suite(before, after).verdict == "pass"


def test_tools_that_few_sessions_call_are_one_part_together() -> None:
    """None of 20 tools in three sessions each could be shown to be lost; all of them are."""
    common = [answer for n in range(2) for answer in called(f"find_{n}", 400, 1.0)]
    rare = [called(f"rare_{n}", 3, 1.0) for n in range(20)]
    lost = [called(f"rare_{n}", 3, 0.0) for n in range(20)]
    before = [*common, *chain.from_iterable(rare)]
    suite = whole_suite(before, [*common, *chain.from_iterable(lost)])
    assert suite.verdict == "undecided"
    assert suite.lost == ["20 others"]


BOTH = ("baseline", "candidate")


@pytest.mark.parametrize("sides", [BOTH[:1], BOTH[1:], BOTH])
@pytest.mark.parametrize(
    "change",
    [{TOOL: None}, {keeps("tool"): None}, {keeps("tool"): 0.7}, {keeps("tool"): "1"}],
)
def test_a_side_that_does_not_say_which_tool_it_keeps_is_refused(
    sides: tuple[str, ...], change: dict[str, Any]
) -> None:
    rows = {side: called("find", 40, 1.0) for side in BOTH}
    for side in sides:
        rows[side][7] = replace(rows[side][7], own={**rows[side][7].own, **change})
    with pytest.raises(ValueError, match="find-7"):
        whole_suite(rows["baseline"], rows["candidate"])


@pytest.mark.parametrize("side", BOTH)
def test_sides_with_different_tools_are_refused(side: str) -> None:
    rows = {side: called("find", 40, 1.0) for side in BOTH}
    other = called("other", 40, 1.0)
    rows[side][7] = replace(rows[side][7], own=other[7].own)
    with pytest.raises(ValueError, match="find-7"):
        whole_suite(rows["baseline"], rows["candidate"])


def test_a_loss_of_the_margin_in_all_tools_is_rarely_named() -> None:
    """5 of 100 replays are expected to name one at most, and 14 have a chance below 1e-3."""
    draw = np.random.default_rng(7)
    named = 0
    for _ in range(100):
        before = [answer for n in range(6) for answer in called(f"find_{n}", 60, 1.0)]
        after = []
        for answer, is_lost in zip(before, draw.random(len(before)) < 0.1, strict=True):
            kept = int(not is_lost)
            own = {**answer.own, keeps("calls"): kept, keeps("tool"): kept}
            after.append(replace(answer, score=float(kept), own=own))
        partitions = Decisions().partitions(before, after)
        named += bool(find_lost_groups(Comparison.points(0.1), 0.05, partitions))
    assert named <= 13


def test_few_sessions_are_named() -> None:
    gate = judged(rows(20, 1.0), rows(20, 1.0))[0]
    assert gate.verdict == "undecided"
    assert "29 sessions with such a turn can pass, and there are 20" in gate.reason


def test_turns_of_a_session_count_as_one() -> None:
    one, many = (judged(rows(60, 1.0, turns=n), rows(60, 0.95, turns=n))[0] for n in (1, 20))
    assert one.lower == many.lower
    assert (one.turns, many.turns) == (60, 1_200)


def test_margins_warn_and_decide_nothing() -> None:
    gate = judged(rows(200, 1.0), rows(200, 1.0))[0]
    assert gate.candidate_margins is not None
    assert gate.candidate_margins.median == 1.5
    assert gate.candidate_margins.lowest_tenth == 1.0


def test_families_without_a_margin_have_no_gate() -> None:
    found = judge_decisions("agents", SUITE, "int4", 0.05, rows(9, 1.0), rows(9, 1.0))
    assert [gate.name for gate in found] == ["agents declines"]


def test_sides_with_different_references_are_refused() -> None:
    before = rows(50, 1.0)
    with pytest.raises(ValueError, match="different references"):
        judged(before, [*before[:-1], Answer(before[-1].id, "p", 1.0, cluster="s49")])
    with pytest.raises(ValueError, match="same turns"):
        judged(before, before[:-1])


@pytest.mark.parametrize("value", [True, 2, 0.5, "1", None, [1]])
def test_a_value_that_no_suite_writes_is_refused(value: object) -> None:
    before = rows(2, 1.0)
    spoilt = [before[0], *(replace(row, own={keeps("calls"): value}) for row in before[1:])]
    with pytest.raises(ValueError, match="has the calls"):
        judged(before, spoilt)


def test_a_gates_name() -> None:
    gate = KindGate(margins={"fp8": 0.1}, tools=16)
    assert gate_name("d", "calls", gate) == "d calls at 16 tools"
    assert gate_name("d", "", gate) == "d at 16 tools"


def session_values(rng: np.random.Generator, sessions: int, lost: float) -> list[float]:
    """Variant less baseline by session: a tenth decides otherwise together, the rest by turns.

    Both sides differ from the reference in 3 % of turns, by chance.
    """
    turns = rng.integers(1, 9, sessions)
    is_struck = rng.random(sessions) < 0.1
    share = np.where(is_struck, lost / 0.1, 0.0)
    loses = rng.random(sessions) < share  # all its turns
    before = rng.binomial(turns, 0.97) / turns
    after = np.where(loses, 0.0, rng.binomial(turns, 0.97) / turns)
    return list(after - before)


LEVELS = [(50, 0.05), (200, 0.05), (200, 0.0225)]
FALSE_FAILURES = 1e-6
"""Chance that the two replays below fail by chance alone, all cases together."""


@pytest.mark.parametrize(("sessions", "alpha"), LEVELS)
def test_at_the_margin_at_most_the_level_passes(sessions: int, alpha: float) -> None:
    """A gate that keeps its level passes more often with a chance of a third of 5e-7."""
    rng = np.random.default_rng()
    margin = 0.1 * 0.97
    passed = sum(
        p_value(session_values(rng, sessions, 0.1), -margin, lowest=-1.0) <= alpha
        for _ in range(REPLAYS)
    )
    most = binom.isf(FALSE_FAILURES / 2 / len(LEVELS), REPLAYS, alpha)
    assert passed <= most
    assert most < 1.6 * alpha * REPLAYS  # what the replays can see


def test_turns_taken_as_independent_would_err() -> None:
    """The same replays by turn, why a session is one value.

    27 % or more pass (0.28 of 20,000), so fewer than this limit has a chance below 5e-7.
    """
    rng = np.random.default_rng()
    replays = 1_000
    passed = 0
    for _ in range(replays):
        values = session_values(rng, 50, 0.1)
        passed += p_value(np.repeat(values, 8), -0.1 * 0.97, lowest=-1.0) <= 0.05
    least = binom.ppf(FALSE_FAILURES / 2, replays, 0.27)
    assert passed >= least
    assert least > binom.isf(FALSE_FAILURES, replays, 0.05)  # no gate of the level reaches it


@pytest.mark.parametrize(("empty", "verdict"), [(1.0, "undecided"), (0.2, "pass")])
def test_turns_that_an_empty_answer_keeps_show_nothing_at_many_tools(
    empty: float, verdict: str
) -> None:
    ladder = [replace(row, empty=empty) for row in rows(200, 1.0, group="16 tools")]
    (gate,) = [found for found in judged(ladder, ladder) if found.name == "agents at 16 tools"]
    assert gate.verdict == verdict


def test_recorded_answers_tell_the_sessions_of_each_gate() -> None:
    """As many as the gate counts: half call as logged, a quarter decline, all have 16 tools."""
    recorded = [
        *rows(20, 0.5),
        *(replace(row, cluster=f"d{row.cluster}") for row in rows(10, 1.0, "declines")),
        *(replace(row, cluster=f"t{row.cluster}", own={}) for row in rows(10, 1.0)),
        *rows(20, 0.5, group="16 tools"),
    ]
    logged = Decisions().recorded_answers(SUITE, recorded)
    results = judged(recorded, recorded)
    numbers = {gate_name("", kind, gate): kind for kind, gate in gates_of(SUITE)}
    told = {name: round(40 * share) for name, share in logged.shares.items()}
    assert told == dict(zip(numbers, (result.n for result in results), strict=True))
    assert logged.tools == {tool_label("find"): 20}
    assert logged.empty == []


def test_one_step_of_a_ladder_is_reported() -> None:
    recorded = [*rows(10, 1.0), *rows(10, 0.5, group="16 tools")]
    reports = Decisions().groups(recorded, recorded)
    assert [row.group for row in reports if row.kind == "rung"] == ["as logged", "16 tools"]
    alone = Decisions().groups(recorded[:20], recorded[:20])
    assert [row.group for row in alone if row.kind == "rung"] == []
