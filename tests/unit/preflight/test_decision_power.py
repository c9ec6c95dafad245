"""What `plan` says of gates on single kinds of decisions, against the gates themselves."""

from __future__ import annotations

import re
from typing import Any, get_args

import numpy as np
import pytest
from known_by_suite import known_by_suite

from eval_gates.decisions.gate import judge_decisions
from eval_gates.decisions.suite import Decisions
from eval_gates.decisions.task import AS_LOGGED, DecisionKind
from eval_gates.decisions.turn_decision import keeps
from eval_gates.rows import Answer
from eval_gates.statistics.bound import mean_bounds, min_identical_values, p_value
from eval_gates.suites.suite_kind import LoggedAnswers
from pipeline.preflight.chances import GatePower
from pipeline.preflight.decision_power import SHOWN_SESSIONS
from pipeline.preflight.power import check_power, policy_power
from prepare.errors import UsageError
from recipes.catalog import load_recipe
from recipes.policy import Policy

RECIPES = [load_recipe("fp8-dynamic")]
MARGIN = 0.1
LEVEL = 0.05
SESSIONS = 400
FLIPS = 0.06
KINDS = [*get_args(DecisionKind), ""]  # '': all decisions, at a number of tools
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind or "at_most_tools" for kind in KINDS])


def policy_of(kind: str, **gate: Any) -> Policy:
    """A policy whose only further gate is on that kind."""
    gate = {"margins": {"fp8": MARGIN}, "tier": "critical", "sessions": 0.25, **gate}
    own = {"kinds": {kind: gate}} if kind else {"at_most_tools": {**gate, "tools": 16}}
    suite = {
        "kind": "decisions",
        "ladder": [16],
        "margins": {"fp8": 0.2},
        "usual": {"fp8": {"flips": FLIPS, "loss": 0.01}},
        **own,
    }
    return Policy.model_validate({"name": "p", "summary": "s", "suites": {"agents": suite}})


def power_of(policy: Policy, sessions: int | None = SESSIONS) -> GatePower:
    _, gate = policy_power(policy, RECIPES, known_by_suite({"agents": sessions}), LEVEL)
    return gate


@each_kind
def test_each_kind_has_its_own_line(kind: str) -> None:
    gate = power_of(policy_of(kind))
    assert gate.gate == (f"agents {kind}" if kind else "agents at 16 tools")
    assert (gate.tier, gate.units, gate.alpha) == ("critical", SESSIONS // 4, LEVEL)
    assert gate.passes is not None
    assert f"about {SESSIONS // 4} sessions" in gate.words
    counts = " / ".join(f"{number:,}" for number in SHOWN_SESSIONS)
    assert f"{counts} such sessions pass" in gate.words


def test_a_log_that_has_the_kind_is_counted() -> None:
    """In a log of 40 sessions, all with calls, half of them were assumed, and plan refused."""
    policy = policy_of("calls", sessions=None)
    counted = {"agents": 40}
    logs = LoggedAnswers(shares={"calls": 1.0}, empty=[0.0] * 40, tools={})
    check_power(policy, RECIPES, known_by_suite(counted, logs), LEVEL)
    _, gate = policy_power(policy, RECIPES, known_by_suite(counted, logs), LEVEL)
    assert gate.units == 40
    with pytest.raises(UsageError, match="about 20") as caught:
        check_power(policy, RECIPES, known_by_suite({"agents": 40}), LEVEL)
    assert "'sessions'" in caught.value.hint
    few = LoggedAnswers(shares={"calls": 0.1}, empty=[0.0] * 40, tools={})
    with pytest.raises(UsageError, match="about 4 ") as caught:
        check_power(policy, RECIPES, known_by_suite(counted, few), LEVEL)
    assert "'sessions'" not in caught.value.hint  # the log says more than the policy
    # What the policy assumes is for logs without answers.
    assumed = policy_of("calls", sessions=0.8)
    _, gate = policy_power(assumed, RECIPES, known_by_suite(counted, logs), LEVEL)
    assert gate.units == 40
    _, gate = policy_power(assumed, RECIPES, known_by_suite(counted), LEVEL)
    assert gate.units == 32


@pytest.mark.parametrize(("empty", "passes"), [(0.9, False), (0.5, True)])
def test_a_log_in_which_empty_answers_would_do_is_told(empty: float, passes: bool) -> None:
    """A margin of 20 points reaches down to an answer that neither calls nor declines."""
    logs = LoggedAnswers(shares={}, empty=[empty] * 300, tools={})
    known = known_by_suite({"agents": 300}, logs)
    suite, _ = policy_power(policy_of("calls"), RECIPES, known, LEVEL)
    assert suite.passes is not None
    assert (suite.passes > 0.9) is passes
    assert ("insensitive" in suite.words) is not passes


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (
            {"tool a": 90, "tool b": 60},
            "of 2 tools that the log calls, the loss of one is mostly seen for 2;",
        ),
        (
            {"tool a": 90, "tool c": 2, "tool b": 60, "tool d": 3},
            "of 4 tools that the log calls, the loss of one is mostly seen for 2; in "
            "too few sessions: tool d in 3, tool c in 2;",
        ),
        (
            {"tool a": 90, "tool c": 2},
            "the loss of one is mostly seen for 1; in too few sessions: tool c in 2;",
        ),
        ({"tool a": 1, "tool b": 1}, "none of 2 tools that the log calls is in enough sessions"),
    ],
)
def test_tools_that_are_called_too_rarely_are_told(tools: dict[str, int], words: str) -> None:
    logs = LoggedAnswers(shares={}, empty=[0.0] * 300, tools=tools)
    known = known_by_suite({"agents": 300}, logs)
    suite, _ = policy_power(policy_of("calls"), RECIPES, known, LEVEL)
    assert words in suite.words
    alone = LoggedAnswers(shares={}, empty=[0.0] * 300, tools={"tool a": 90})
    known = known_by_suite({"agents": 300}, alone)
    suite, _ = policy_power(policy_of("calls"), RECIPES, known, LEVEL)
    assert "tool" not in suite.words


def test_a_kinds_gate_is_planned_with_the_usual_loss_too() -> None:
    gate = power_of(policy_of("calls"))
    assert gate.usual is not None
    assert gate.passes is not None
    assert gate.usual < gate.passes


@each_kind
def test_a_supporting_gate_tells_what_it_fails(kind: str) -> None:
    supporting = power_of(policy_of(kind, tier="supporting"))
    critical = power_of(policy_of(kind))
    assert supporting.passes is not None
    assert critical.passes is not None
    assert supporting.passes > critical.passes
    advisory = power_of(policy_of(kind, tier="advisory"))
    assert (advisory.passes, advisory.units) == (None, SESSIONS // 4)


@each_kind
def test_without_a_count_nothing_is_claimed(kind: str) -> None:
    gate = power_of(policy_of(kind), None)
    assert (gate.passes, gate.units) == (None, None)
    check_power(policy_of(kind), RECIPES, known_by_suite({"agents": None}), LEVEL)


def unchanged(sessions: int, kind: str) -> list[Answer]:
    own = {keeps(kind): 1} if kind else {}
    group = AS_LOGGED if kind else "16 tools"
    return [
        Answer(str(number), "p", 1.0, cluster=str(number), group=group, own=own)
        for number in range(sessions)
    ]


@each_kind
def test_the_fewest_sessions_are_those_of_the_gate(kind: str) -> None:
    """What plan refuses could not pass, and one session more can."""
    policy = policy_of(kind, sessions=1.0)
    suite = policy.suites["agents"]
    assert isinstance(suite, Decisions.policy)
    least = min_identical_values(MARGIN, LEVEL)
    for sessions, verdict in ((least - 1, "undecided"), (least, "pass")):
        rows = unchanged(sessions, kind)
        (result,) = judge_decisions("agents", suite, "fp8", LEVEL, rows, rows)
        assert result.verdict == verdict
    check_power(policy, RECIPES, known_by_suite({"agents": least}), LEVEL)
    with pytest.raises(UsageError) as caught:
        check_power(policy, RECIPES, known_by_suite({"agents": least - 1}), LEVEL)
    assert caught.value.where == "policy key suites.agents, margins of fp8"
    supporting = policy_of(kind, sessions=1.0, tier="supporting")
    check_power(supporting, RECIPES, known_by_suite({"agents": least - 1}), LEVEL)
    held = supporting.model_copy(update={"undecided_supporting": "hold"})
    with pytest.raises(UsageError):
        check_power(held, RECIPES, known_by_suite({"agents": least - 1}), LEVEL)


def replay(sessions: int, loss: float, runs: int = 80) -> tuple[float, float]:
    """The shares of variants that pass and fail, by the gate's own bounds."""
    rng = np.random.default_rng(3)
    moves = max(FLIPS, loss)
    chance = [(moves + loss) / 2, 1 - moves, (moves - loss) / 2]
    passed = failed = 0
    for _ in range(runs):
        values = rng.choice([-1.0, 0.0, 1.0], size=sessions, p=chance).tolist()
        passed += p_value(values, -MARGIN, lowest=-1.0) <= LEVEL
        failed += mean_bounds(values, LEVEL).upper < -MARGIN
    return passed / runs, failed / runs


def test_the_table_of_sessions_agrees_with_replays() -> None:
    words = power_of(policy_of("calls")).words
    shares = re.findall(r"(< 1|> 99|\d+) %(?= /| of)", words.partition("1,000 such")[2])
    told = [{"< 1": 0.0, "> 99": 1.0}.get(share) for share in shares]
    told = [int(share) / 100 if t is None else t for t, share in zip(told, shares, strict=True)]
    passes = [replay(sessions, 0.0)[0] for sessions in SHOWN_SESSIONS]
    fails = [replay(sessions, 2 * MARGIN)[1] for sessions in SHOWN_SESSIONS]
    assert told == pytest.approx([*passes, *fails], abs=0.15)
