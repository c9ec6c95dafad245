"""From lm-eval's samples to answer rows; lm-eval itself lives in the evaluate environment."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listener import Listener

from pipeline.errors import StageError
from pipeline.workers.evaluate import (
    NO_ANSWER,
    SUITES,
    answered,
    check_prompts_fit,
    common,
    humaneval_rows,
    no_truncation,
)

GREEDY = {"until": ["\n\n"], "max_gen_toks": 96, "do_sample": False, "temperature": 0.0}


def generated(text: Any, number: int = 0, prompt: str = "Summarize it.") -> dict[str, Any]:
    """A sample as lm-eval logs it for generate_until."""
    return {
        "doc_id": number,
        "doc": {},
        "target": "",
        "arguments": [(prompt, dict(GREEDY))],
        "resps": [[text]],
        "filtered_resps": [text],
        "filter": "none",
    }


def chosen(number: int, acc: float, acc_norm: float) -> dict[str, Any]:
    """A sample as lm-eval logs it for multiple_choice."""
    return {
        "doc_id": number,
        "arguments": [("Question: 1 + 1?\nAnswer:", f" {choice}") for choice in (1, 2, 3, 4)],
        "filtered_resps": [(-2.5, "False"), (-0.5, "True"), (-3.0, "False"), (-4.0, "False")],
        "acc": acc,
        "acc_norm": acc_norm,
    }


def rows_of(suite: dict[str, Any], questions: list[Any], samples: list[Any]) -> list[Any]:
    spec = {"suite": suite, "questions": "questions.jsonl"}
    _, make_rows, _ = SUITES[suite["kind"]](spec)
    return make_rows(questions, samples, suite, Listener())


class TestCommon:
    def test_id_and_digest(self) -> None:
        row = common({"id": "anatomy/3"}, chosen(0, 1.0, 1.0))
        assert row.keys() == {"id", "prompt_sha256"}
        assert row["id"] == "anatomy/3"
        assert len(row["prompt_sha256"]) == 64

    def test_the_answer_does_not_count(self) -> None:
        digests = {common({"id": "1"}, generated(text))["prompt_sha256"] for text in ("a", "b")}
        assert len(digests) == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            [("Other prompt.", GREEDY)],
            [("Summarize it.", GREEDY | {"max_gen_toks": 97})],
            [("Summarize it.", GREEDY | {"until": []})],
            [("Summarize it. ", GREEDY)],
            [("Summarize it.", GREEDY), ("Summarize it.", GREEDY)],
        ],
    )
    def test_all_that_was_sent_counts(self, arguments: list[Any]) -> None:
        sample = generated("a")
        other = sample | {"arguments": arguments}
        assert common({"id": "1"}, sample) != common({"id": "1"}, other)

    def test_every_choice_counts(self) -> None:
        sample = chosen(0, 1.0, 1.0)
        other = sample | {"arguments": [*sample["arguments"][:3], ("Question: 1 + 1?", " 5")]}
        assert common({"id": "1"}, sample) != common({"id": "1"}, other)

    def test_the_order_of_settings_does_not_count(self) -> None:
        reversed_settings = dict(reversed(GREEDY.items()))
        samples = [generated("a") | {"arguments": [("p", s)]} for s in (GREEDY, reversed_settings)]
        assert common({"id": "1"}, samples[0]) == common({"id": "1"}, samples[1])

    @given(first=st.text(), second=st.text())
    def test_equal_only_for_equal_prompts(self, first: str, second: str) -> None:
        rows = [common({"id": "1"}, generated("", prompt=prompt)) for prompt in (first, second)]
        assert (rows[0] == rows[1]) == (first == second)


class TestAnswered:
    @pytest.mark.parametrize("text", ["A summary.", "", "LMEVAL"])
    def test_a_text(self, text: str) -> None:
        assert answered(generated(text)) == text

    @pytest.mark.parametrize("text", [NO_ANSWER, None, (1.0, "True")])
    def test_no_answer_is_refused(self, text: Any) -> None:
        with pytest.raises(StageError, match="gave no answer to question 17") as caught:
            answered(generated(text, number=17))
        assert "log" in caught.value.cure


class TestMmlu:
    QUESTIONS = ({"id": "anatomy/0", "subject": "anatomy"}, {"id": "law/1", "subject": "law"})
    SAMPLES = (chosen(0, 1.0, 0.0), chosen(1, 0.0, 1.0))

    @pytest.mark.parametrize(("form", "scores"), [("letter", [1.0, 0.0]), ("cloze", [0.0, 1.0])])
    def test_rows(self, form: str, scores: list[float]) -> None:
        suite = {"kind": "mmlu", "form": form}
        rows = rows_of(suite, list(self.QUESTIONS), list(self.SAMPLES))
        assert [row["score"] for row in rows] == scores
        assert [row["id"] for row in rows] == ["anatomy/0", "law/1"]
        assert [row["subject"] for row in rows] == ["anatomy", "law"]
        assert rows[0]["answer"] == [-2.5, -0.5, -3.0, -4.0]
        assert json.loads(json.dumps(rows)) == rows

    def test_a_question_without_an_answer(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            rows_of({"kind": "mmlu", "form": "letter"}, list(self.QUESTIONS), [self.SAMPLES[0]])


class TestRouge:
    SUITE: ClassVar[dict[str, Any]] = {
        "kind": "rouge",
        "metric": "rougeL",
        "form": "chat",
        "max_tokens": 96,
    }
    SCORES: ClassVar[dict[str, Any]] = {"rouge1": 0.5, "rouge2": 0.25, "rougeL": 0.375}

    @pytest.mark.parametrize("metric", ["rouge1", "rouge2", "rougeL"])
    def test_rows(self, metric: str) -> None:
        sample = generated("A summary.") | self.SCORES
        (row,) = rows_of(self.SUITE | {"metric": metric}, [{"id": "mine"}], [sample])
        assert row["score"] == self.SCORES[metric]
        assert {name: row[name] for name in self.SCORES} == self.SCORES
        assert (row["id"], row["answer"]) == ("mine", "A summary.")

    def test_no_answer_is_not_scored_as_a_bad_one(self) -> None:
        samples = [generated("A summary.") | self.SCORES, generated(NO_ANSWER, 1) | self.SCORES]
        with pytest.raises(StageError, match="question 1"):
            rows_of(self.SUITE, [{"id": "a"}, {"id": "b"}], samples)


class TestHumanEval:
    SUITE: ClassVar[dict[str, Any]] = {
        "kind": "humaneval",
        "form": "chat",
        "max_tokens": 256,
        "seconds_per_problem": 10,
        "memory_mb_per_problem": 256,
    }
    QUESTION: ClassVar[dict[str, Any]] = {
        "id": "Test/0",
        "task_id": "Test/0",
        "prompt": 'def double(x: int) -> int:\n    """Twice x."""\n',
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
        "canonical_solution": "    return 2 * x\n",
        "request": "Write it.",
    }

    def test_answers_are_run(self) -> None:
        header = self.QUESTION["prompt"]
        texts = [f"```python\n{header}    return {what}\n```" for what in ("2 * x", "x", "(")]
        samples = [generated(text, number) for number, text in enumerate(texts)]
        listener = Listener()
        rows = humaneval_rows([self.QUESTION] * 3, samples, self.SUITE, listener)
        assert [row["score"] for row in rows] == [1.0, 0.0, 0.0]
        assert [row["outcome"] for row in rows] == ["passed", "failed", "failed"]
        assert "AssertionError" in rows[1]["detail"]
        assert [row["answer"] for row in rows] == texts
        assert rows[0]["code"].startswith("def double")
        assert listener.events[-1] == ("run programs", 3, 3, "programs")

    def test_no_answer_runs_nothing(self) -> None:
        listener = Listener()
        with pytest.raises(StageError, match="question 0"):
            humaneval_rows([self.QUESTION], [generated(NO_ANSWER)], self.SUITE, listener)
        assert listener.events == []


class LetterModel:
    """Cuts text into tokens of one letter, as lm-eval's models cut theirs."""

    def tok_encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class TestTruncation:
    """lm-eval cuts a prompt that is too long, and only logs it."""

    SPEC: ClassVar[dict[str, Any]] = {
        "max_length": 2048,
        "questions": str(Path("out") / "questions.jsonl"),
    }

    def test_a_cut_prompt_is_refused(self) -> None:
        logger = logging.getLogger("lm_eval.models.api_models")
        words = "Context length (3000) exceeds max length (2048). Truncating context."
        refused = pytest.raises(StageError, match="1 prompts were cut")
        with refused as caught, no_truncation(self.SPEC):
            logger.warning(words)
        assert words in caught.value.what
        assert caught.value.where == self.SPEC["questions"]
        assert logging.getLogger("lm_eval").handlers == []

    @pytest.mark.parametrize(("letters", "fits"), [(1983, True), (1984, False), (5000, False)])
    def test_a_prompt_and_its_answer_must_fit(self, letters: int, fits: bool) -> None:
        """Where lm-eval is to generate it cuts silently, and keeps one token back."""
        samples = [generated("a"), generated("a", 17, prompt="x" * letters)]
        if fits:
            check_prompts_fit(samples, LetterModel(), 64, self.SPEC)
            return
        with pytest.raises(StageError, match="the prompt of question 17") as caught:
            check_prompts_fit(samples, LetterModel(), 64, self.SPEC)
        assert f"has {letters} tokens, and the answer may have 64" in caught.value.what
        assert "together they may have 2048 tokens" in caught.value.what

    def test_other_words_are_no_matter(self) -> None:
        with no_truncation(self.SPEC):
            logging.getLogger("lm_eval").warning("Chat template is not set.")
        assert logging.getLogger("lm_eval").handlers == []

    def test_other_errors_come_through(self) -> None:
        with pytest.raises(KeyError), no_truncation(self.SPEC):
            raise KeyError("mine")
        assert logging.getLogger("lm_eval").handlers == []
