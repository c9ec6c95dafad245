"""What is scored by chance, or by always giving one answer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from eval_gates.clusters import shared_text
from eval_gates.questions_worker import guessing
from eval_gates.rows import Question
from eval_gates.suites.lm_eval_task import Metric, scored_choices
from eval_gates.suites.lm_rows import LmRows


def chosen(right: str, of: str) -> list[tuple[str, float]]:
    return [(letter, float(letter in right)) for letter in of]


def guessed(*choices: list[tuple[str, float]], clusters: str = "") -> float:
    labels = clusters or [""] * len(choices)
    asked = [Question(str(n), cluster=labels[n]) for n in range(len(choices))]
    return guessing(asked, {str(n): each for n, each in enumerate(choices)})


@pytest.mark.parametrize(
    ("choices", "guess"),
    [
        (
            [chosen("A", "ABCD"), chosen("B", "ABCD"), chosen("C", "ABCD"), chosen("D", "ABCD")],
            0.25,
        ),
        ([chosen("A", "ABCD")] * 3 + [chosen("B", "ABCD")], 0.75),
        # Another set of choices here and there hides no answer that is mostly right.
        ([chosen("A", "ABCD")] * 3 + [chosen("B", "ABCDE")], 0.75),
        ([chosen("A", "ABCD")] * 3 + [chosen("x", "xy")], 0.875),
        ([chosen("AC", "ABCD"), chosen("BD", "ABCD")], 0.5),  # several are right
        ([[("p", 0.6), ("q", 0.2)], [("r", 0.5), ("s", 0.1)]], 0.45),
        ([], 0.0),
    ],
)
def test_by_chance_or_by_one_answer(choices: Any, guess: float) -> None:
    assert guessed(*choices) == pytest.approx(guess)


def test_a_cluster_counts_as_one() -> None:
    """A passage with four questions of four choices, and four of one question with two."""
    letters = [chosen(right, "ABCD") for right in "ABCD"]
    pairs = [chosen(a, a + b) for a, b in ("kl", "mn", "op", "qr")]
    clusters = "aaaabcde"
    assert guessed(*letters, *pairs, clusters=clusters) >= (0.25 + 4 * 0.5) / 5
    assert guessed(*letters, *pairs) < (0.25 + 4 * 0.5) / 5


class Task:
    """Scores as TruthfulQA's mc2: the likelihood of all that is true."""

    def doc_to_choice(self, document: dict[str, Any]) -> list[str]:
        return list(document["choices"])

    @property
    def task(self) -> Task:
        return self

    def score_values(self, document: dict[str, Any], results: Any) -> dict[str, float]:
        taken = [greedy for _, greedy in results[: len(document["choices"])]]
        right = [
            is_true for is_true, is_taken in zip(document["true"], taken, strict=True) if is_taken
        ]
        return {"acc": float(right[0]), "acc_mutual_info": float(len(results) == 2 * len(taken))}


@pytest.mark.parametrize(("metric", "scores"), [("acc", [1, 0, 1]), ("acc_mutual_info", [1, 1, 1])])
def test_the_tasks_own_score_of_each_choice(metric: str, scores: list[int]) -> None:
    document = {"choices": ["p", "q", "r"], "true": [True, False, True]}
    found = scored_choices(cast("LmRows", Task()), Metric(metric, "mean", True), document)
    assert found == list(zip("pqr", scores, strict=True))


def test_one_passage_may_have_most_of_the_questions() -> None:
    text = "It is long enough to be a passage of several sentences about one and the same thing. {}"
    giant = [{"passage": text.format("" if n < 60 else n), "q": str(n)} for n in range(100)]
    assert shared_text(giant) == "passage"
    instruction = [{"passage": text.format("" if n < 98 else n), "q": str(n)} for n in range(100)]
    assert shared_text(instruction) is None
