"""Flips and examples: counted, bounded, and in the words of question and answer."""

from __future__ import annotations

import pytest
from fake_run import FakeRun
from reported_run import QUESTIONS, reported_run

from artifacts.report.answers import (
    EXAMPLES,
    LONGEST,
    answer_of,
    changed_answers,
    examples_of,
    find_choice,
)
from artifacts.report.reported_run import PairedAnswers, ReportedRun
from eval_gates.decisions.suite import Decisions
from eval_gates.rows import Answer, Question
from eval_gates.suites.fidelity import Fidelity
from eval_gates.suites.humaneval import HumanEval
from eval_gates.suites.mmlu import Mmlu
from eval_gates.suites.rouge import Rouge
from recipes.policy import Margin

MARGINS = {"fp8": Margin(points=0.05)}
CLOZE = Mmlu.policy(margins=MARGINS, prompt_format="cloze")
LETTER = Mmlu.policy(margins=MARGINS, prompt_format="letter")
ROUGE = Rouge.policy(margins=MARGINS)
LOGS = Fidelity.policy(margins=MARGINS)
AGENTS = Decisions.policy(margins=MARGINS)
HUMANEVAL = HumanEval.policy(margins=MARGINS)
QUESTION = Question("1", data={"choices": ["a very long stone", "ice", "all", "none"], "answer": 2})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return reported_run(tmp_path_factory.mktemp("many changes"), lost=0.4)


def evidence_of(made: FakeRun) -> ReportedRun:
    return ReportedRun(made.report, made.store)


def test_a_choice_and_its_score_agree(made: FakeRun) -> None:
    answered = evidence_of(made).find_answers("fp8-dynamic", "mmlu")
    assert answered is not None
    for row in (*answered.baseline, *answered.candidate):
        question = answered.questions[row.id]
        right = find_choice(answered.suite, question, row.answer, "acc") == question.data["answer"]
        assert right == (row.score == 1.0)


def test_examples_are_few_and_begin_with_losses(made: FakeRun) -> None:
    found = {(each.recipe, each.suite): each for each in changed_answers(evidence_of(made))}
    assert set(found) == {
        (recipe, suite) for recipe in ("fp8-dynamic", "awq-w4a16") for suite in QUESTIONS
    }
    mmlu = found["fp8-dynamic", "mmlu"]
    assert mmlu.changed == made.report.variants[0].gates[0].flips > EXAMPLES
    assert len(mmlu.shown) == EXAMPLES
    assert mmlu.shown[0].words == "right to wrong"


def test_choices_whose_lengths_are_unknown_are_counted_as_a_lower_limit() -> None:
    """Without its question the choice by length was taken for the choice by likelihood."""
    rows = [
        ("right", 1.0, [-17.0, -6.0], [-6.0, -17.0]),
        ("wrong", 0.0, [-17.0, -6.0], [-17.0, -6.0]),
        ("lost", 1.0, [-17.0, -6.0], [-17.0, -6.0]),
    ]
    before = [Answer(name, "p", score, first) for name, score, first, _ in rows]
    after = [Answer(name, "p", float(name == "right"), second) for name, _, _, second in rows]
    told = examples_of("fp8", "mmlu", PairedAnswers(before, after, {}, CLOZE), "acc_norm")
    assert told.words == "at least 1 of 3 answers changed"
    told = examples_of("fp8", "mmlu", PairedAnswers(before, after, {}, LETTER), "acc")
    assert told.words == "2 of 3 answers changed"


def test_gains_are_shown_beside_many_losses() -> None:
    """Losses leave room for half of the examples."""
    before = [Answer(str(n), "p", float(n < 40), "a") for n in range(80)]
    after = [Answer(str(n), "p", float(n >= 40), "b") for n in range(80)]
    answered = PairedAnswers(before, after, {}, ROUGE)
    words = [example.words for example in examples_of("fp8", "rouge", answered).shown]
    assert words == ["right to wrong"] * 5 + ["wrong to right"] * 5


def test_the_ten_worst_conversations_with_their_first_other_token() -> None:
    flip = {"start": 4, "token": "cat", "choice": "dog"}
    own = {"first_flip": 1, "margin": 0.25, "text": "The cat sat", "flip": flip}
    before = [Answer(str(n), "p", 0.99, None, nats=0.0, own=own) for n in range(40)]
    after = [Answer(str(n), "p", 0.95 - n / 100, None, nats=n / 10, own=own) for n in range(39)]
    after.append(Answer("39", "p", 1.0, None, nats=0.0, own={"text": "The cat sat"}))
    found = examples_of("fp8", "traffic", PairedAnswers(before, after, {}, LOGS))
    assert [each.question for each in found.shown] == [str(n) for n in range(38, 28, -1)]
    worst = found.shown[0]
    assert "57.0 % of tokens kept, 3.800 nats a token" in worst.variant
    assert "the first other token is number 2, by 0.250 nats" in worst.variant
    assert "The \u27e6cat\u27e7 sat" in worst.baseline
    assert worst.variant.endswith("The \u27e6dog\u27e7")


def test_each_side_of_a_decision_has_its_own_text() -> None:
    """A variant that drops an argument was shown with equal texts."""
    texts = ['{"day": "Monday", "part": "chain"}', '{"day": "Monday"}']
    before, after = (
        [Answer("s/0", "p", score, None, own={"text": text})]
        for score, text in zip((1.0, 0.0), texts, strict=True)
    )
    (shown,) = examples_of("fp8", "agents", PairedAnswers(before, after, {}, AGENTS)).shown
    assert texts[0] in shown.baseline
    assert texts[1] in shown.variant
    assert texts[1] not in shown.baseline


def test_an_answer_as_text() -> None:
    row = Answer("1", "p", 0.0, [-17.0, -6.0, -30.0, -40.0])
    assert answer_of(LETTER, QUESTION, row).startswith("B. ice\n(log-likelihoods -17.00")
    assert answer_of(LETTER, None, row).startswith("choice 2\n")
    cloze = answer_of(CLOZE, QUESTION, Answer("1", "p", 0.0, [-17.0, -6.0, -30.0, -40.0]))
    assert cloze.startswith("A. a very long stone\n(log-likelihoods -17.00, -6.00")
    assert "lengths -1.00, -2.00, -10.00, -10.00" in cloze
    unknown = answer_of(CLOZE, None, row, "acc_norm")
    assert unknown.startswith("(log-likelihoods")
    drawn = Answer("1", "p", 0.5, ["one", "two"], own={"outcome": ["passed", "failed"]})
    assert answer_of(HUMANEVAL, None, drawn) == (
        "one\n--- another sample ---\ntwo\n(tests: passed, failed)"
    )
    long = answer_of(ROUGE, None, Answer("1", "p", 0.0, "x" * (LONGEST + 7)))
    assert long.endswith("[7 more characters are left out]")
