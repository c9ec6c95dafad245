"""Answers of a baseline and a variant as they are kept, and their judging, for tests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from eval_gates.quality_gate import gate_rule_of, judge_quality
from eval_gates.quality_result import QualityResult
from eval_gates.rows import Answer
from eval_gates.suites.humaneval import HumanEval
from eval_gates.suites.mmlu import Mmlu
from eval_gates.suites.rouge import Rouge
from recipes.policy import AnySuite, Margin
from recipes.schema import Family

Rows = list[dict[str, Any]]
SUBJECTS = ("anatomy", "philosophy", "virology", "sociology")
MARGINS = {"fp8": Margin(points=0.05), "int4": Margin(points=0.25)}
SHARES = {"fp8": Margin(recovery=0.9), "int4": Margin(recovery=0.5)}
MMLU = Mmlu.policy(margins=MARGINS)
HUMANEVAL = HumanEval.policy(margins=MARGINS)
ROUGE = Rouge.policy(margins=MARGINS)


def recovery(suite: AnySuite) -> AnySuite:
    return suite.model_copy(update={"margins": SHARES})


def answers(scores: Sequence[Any]) -> Rows:
    """Lines of `answers.jsonl`."""
    return [
        {
            "id": f"{SUBJECTS[n % 4]}/{n}",
            "prompt_sha256": hashlib.sha256(str(n).encode()).hexdigest(),
            "answer": [-1.0, -2.5, -0.25, -4.0],
            "score": score,
            "group": SUBJECTS[n % 4],
            "unrelated": 0.0,
        }
        for n, score in enumerate(scores)
    ]


def parsed(rows: Sequence[dict[str, Any]]) -> list[Answer]:
    return [Answer.from_row(row) for row in rows]


def judged_rows(
    baseline: Rows,
    candidate: Rows,
    suite: AnySuite = ROUGE,
    family: Family = "fp8",
    alpha: float = 0.05,
    again: Sequence[dict[str, Any]] = (),
) -> QualityResult:
    return judge_quality(
        "suite",
        suite,
        gate_rule_of(suite, family, alpha),
        metric="acc",
        baseline=parsed(baseline),
        candidate=parsed(candidate),
        again=parsed(again),
        guessing=Mmlu.guessing if suite.kind == "mmlu" else 0.0,
    )


def judged(
    before: Sequence[float], after: Sequence[float], suite: AnySuite = ROUGE, **changes: Any
) -> QualityResult:
    return judged_rows(answers(before), answers(after), suite, **changes)


def flipped(n: int, lost: int, gained: int, right: int) -> tuple[list[float], list[float]]:
    """Answers in random order: the baseline knows `right` of `n`."""
    pairs = (
        [(1.0, 0.0)] * lost
        + [(1.0, 1.0)] * (right - lost)
        + [(0.0, 1.0)] * gained
        + [(0.0, 0.0)] * (n - right - gained)
    )
    random.Random(n).shuffle(pairs)
    return [b for b, _ in pairs], [a for _, a in pairs]
