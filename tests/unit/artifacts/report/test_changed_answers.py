"""Flips and examples: counted, bounded, and in the words of question and answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_run import FakeRun
from reported_run import QUESTIONS, reported_run

from artifacts.report.answers import (
    EXAMPLES,
    LONGEST,
    FlippedAnswer,
    answer_of,
    changed_answers,
    find_choice,
    is_same_answer,
    prompt_of,
)
from artifacts.report.run_evidence import RunEvidence
from eval_gates.rows import Answer, Question
from eval_gates.stopping import GateRule
from eval_gates.suites.humaneval import HumanEval
from eval_gates.suites.mmlu import Mmlu
from eval_gates.suites.rouge import Rouge
from recipes.policy import Margin

MARGINS = {"fp8": Margin(points=0.05)}
CLOZE = Mmlu.policy(margins=MARGINS, prompt_format="cloze")
LETTER = Mmlu.policy(margins=MARGINS, prompt_format="letter")
ROUGE = Rouge.policy(margins=MARGINS)
HUMANEVAL = HumanEval.policy(margins=MARGINS)
QUESTION = Question("1", data={"choices": ["a very long stone", "ice", "all", "none"], "answer": 2})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return reported_run(tmp_path_factory.mktemp("many changes"), lost=0.4)


def evidence_of(made: FakeRun) -> RunEvidence:
    return RunEvidence(made.report, made.store)


def test_a_choice_and_its_score_agree(made: FakeRun) -> None:
    answered = evidence_of(made).find_answers("fp8-dynamic", "mmlu")
    assert answered is not None
    for row in (*answered.baseline, *answered.candidate):
        question = answered.questions[row.id]
        right = find_choice(answered.suite, question, row.answer) == question.data["answer"]
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


def test_gains_are_shown_beside_many_losses() -> None:
    """Losses leave room for half of the examples."""
    from artifacts.report.answers import _examples
    from artifacts.report.run_evidence import PairedAnswers

    before = [Answer(str(n), "p", float(n < 40), "a") for n in range(80)]
    after = [Answer(str(n), "p", float(n >= 40), "b") for n in range(80)]
    rule = GateRule.model_validate(
        {
            "tier": "critical",
            "margin": {"points": 0.1},
            "alpha": 0.05,
        }
    )
    answered = PairedAnswers(before, after, {}, ROUGE, rule)
    words = [example.words for example in _examples("fp8", "rouge", answered).shown]
    assert words == ["right to wrong"] * 5 + ["wrong to right"] * 5


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (1.0, 0.0, "right to wrong"),
        (0.0, 1.0, "wrong to right"),
        (0.0, 0.0, "same score, 0"),
        (0.25, 0.75, "score 0.250 to 0.750"),
    ],
)
def test_words_of_a_change(before: float, after: float, words: str) -> None:
    assert FlippedAnswer("1", before, after, None, None, "", "").words == words


def test_prompts_are_those_that_were_laid_out() -> None:
    assert prompt_of(Question("1", "{{7 * 7}}")) == "{{7 * 7}}"
    assert prompt_of(Question("1")) is None
    assert prompt_of(None) is None


def test_cloze_choices_count_by_character() -> None:
    likelihoods = [-17.0, -6.0, -30.0, -40.0]  # a character of the first costs 1, of 'ice' 2
    assert find_choice(CLOZE, QUESTION, likelihoods) == 0
    assert find_choice(LETTER, QUESTION, likelihoods) == 1
    assert find_choice(CLOZE, None, likelihoods) == 1


def test_an_answer_as_text() -> None:
    row = Answer("1", "p", 0.0, [-17.0, -6.0, -30.0, -40.0])
    assert answer_of(LETTER, QUESTION, row).startswith("B. ice\n(log-likelihoods -17.00")
    assert answer_of(LETTER, None, row).startswith("choice 2\n")
    drawn = Answer("1", "p", 0.5, ["one", "two"], own={"outcome": ["passed", "failed"]})
    assert answer_of(HUMANEVAL, None, drawn) == (
        "one\n--- another sample ---\ntwo\n(tests: passed, failed)"
    )
    long = answer_of(ROUGE, None, Answer("1", "p", 0.0, "x" * (LONGEST + 7)))
    assert long.endswith("[7 more characters are left out]")


def test_a_real_question_of_the_demo() -> None:
    """One of MMLU's development questions as SmolLM2-135M-Instruct and its FP8 variant answered."""
    choices = [
        "The letter is an offer to sell",
        "A valid offer cannot be made by letter.",
        "The letter contains a valid offer which will terminate within a reasonable time.",
        "The letter lacks one of the essential elements of an offer.",
    ]
    question = Question("jurisprudence/170", data={"choices": choices, "answer": 3})
    before = [-21.450193524360657, -38.07137191295624, -56.065839648246765, -39.25058130174875]
    after = [-20.69793063402176, -37.11498586833477, -53.90037393569946, -39.83165243268013]
    assert find_choice(CLOZE, question, before) == 3  # scored as right
    assert find_choice(CLOZE, question, after) == 2  # scored as wrong


def test_other_likelihoods_of_one_choice_are_the_same_answer() -> None:
    row = Answer("1", "p", 0.0, [-1.0, -9.0])
    assert is_same_answer(LETTER, None, row, replace(row, answer=[-2.0, -9.0]))
    assert not is_same_answer(LETTER, None, row, replace(row, answer=[-9.0, -1.0]))
    assert not is_same_answer(LETTER, None, row, replace(row, score=1.0))


def test_a_conversation_shows_figures_and_no_text() -> None:
    flip = {"first_flip": 4, "margin": 0.02, "text": "secret"}
    row = Answer("c/1", "p", 0.9375, "digest", nats=0.31, own=flip)
    words = answer_of(HumanEval.policy(margins={"fp8": 0.1}), None, row)
    assert words.startswith("93.8 % of tokens kept, 0.310 nats a token")
    assert "number 5, by 0.020 nats" in words
    assert "secret" not in words
