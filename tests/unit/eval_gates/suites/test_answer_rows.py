"""From lm-eval's samples to answer rows; lm-eval itself lives in the evaluate environment."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listener import Listener

from eval_gates.suites import code_suite, humaneval, lm_eval_suite, mbpp, mmlu, rouge
from eval_gates.suites.answer_rows import NO_ANSWER, common_fields, texts_of
from eval_gates.suites.generated_text import GeneratedText
from eval_gates.suites.humaneval import HumanEvalTask
from eval_gates.suites.lm_eval_metrics import Metric
from eval_gates.suites.lm_eval_suite import GeneratedScores, LmEvalTask
from eval_gates.suites.mbpp import MbppTask
from eval_gates.suites.rouge import RougeTask
from pipeline.core.errors import EvaluationDataError, StageError
from recipes.generation import Sampling

GREEDY = {"until": ["\n\n"], "max_gen_toks": 96, "do_sample": False, "temperature": 0.0}


def generated(*texts: Any, number: int = 0, prompt: str = "Summarize it.") -> dict[str, Any]:
    """A sample as lm-eval logs it for generate_until; several texts have seeds of their own."""
    seeds = [{}] if len(texts) == 1 else [{"seed": 1234 + n} for n in range(len(texts))]
    return {
        "doc_id": number,
        "doc": {},
        "target": "",
        "arguments": [(prompt, {**GREEDY, **seed}) for seed in seeds],
        "resps": [[text] for text in texts],
        "filtered_resps": list(texts),
        "filter": "none",
    }


def chosen(number: int, **metrics: float) -> dict[str, Any]:
    """A sample as lm-eval logs it for multiple_choice."""
    return {
        "doc_id": number,
        "arguments": [("Question: 1 + 1?\nAnswer:", f" {choice}") for choice in (1, 2, 3, 4)],
        "filtered_resps": [(-2.5, "False"), (-0.5, "True"), (-3.0, "False"), (-4.0, "False")],
        **metrics,
    }


class TestCommon:
    def test_id_and_digest(self) -> None:
        row = common_fields({"id": "anatomy/3"}, chosen(0))
        assert row.keys() == {"id", "prompt_sha256"}
        assert row["id"] == "anatomy/3"
        assert len(row["prompt_sha256"]) == 64

    def test_the_answer_does_not_count(self) -> None:
        digests = {
            common_fields({"id": "1"}, generated(text))["prompt_sha256"] for text in ("a", "b")
        }
        assert len(digests) == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            [("Other prompt.", GREEDY)],
            [("Summarize it.", GREEDY | {"max_gen_toks": 97})],
            [("Summarize it.", GREEDY | {"until": []})],
            [("Summarize it.", GREEDY | {"seed": 1})],
            [("Summarize it. ", GREEDY)],
            [("Summarize it.", GREEDY), ("Summarize it.", GREEDY)],
        ],
    )
    def test_all_that_was_sent_counts(self, arguments: list[Any]) -> None:
        sample = generated("a")
        other = sample | {"arguments": arguments}
        assert common_fields({"id": "1"}, sample) != common_fields({"id": "1"}, other)

    def test_every_choice_counts(self) -> None:
        sample = chosen(0)
        other = sample | {"arguments": [*sample["arguments"][:3], ("Question: 1 + 1?", " 5")]}
        assert common_fields({"id": "1"}, sample) != common_fields({"id": "1"}, other)

    def test_the_order_of_settings_does_not_count(self) -> None:
        reversed_settings = dict(reversed(GREEDY.items()))
        samples = [generated("a") | {"arguments": [("p", s)]} for s in (GREEDY, reversed_settings)]
        assert common_fields({"id": "1"}, samples[0]) == common_fields({"id": "1"}, samples[1])

    @given(first=st.text(), second=st.text())
    def test_equal_only_for_equal_prompts(self, first: str, second: str) -> None:
        rows = [
            common_fields({"id": "1"}, generated("", prompt=prompt)) for prompt in (first, second)
        ]
        assert (rows[0] == rows[1]) == (first == second)


class TestTexts:
    @pytest.mark.parametrize("texts", [["A summary."], [""], ["LMEVAL"], ["a", "", "b"]])
    def test_texts(self, texts: list[str]) -> None:
        assert texts_of(generated(*texts)) == texts

    @pytest.mark.parametrize("text", [NO_ANSWER, None, (1.0, "True")])
    def test_no_answer_is_refused(self, text: Any) -> None:
        with pytest.raises(StageError, match="question 17") as caught:
            texts_of(generated("a", text, number=17))
        assert "log" in caught.value.hint


class TestMmlu:
    QUESTIONS: ClassVar[list[Any]] = [
        {"id": "anatomy/0", "subject": "anatomy"},
        {"id": "law/1", "subject": "law"},
    ]
    SAMPLES: ClassVar[list[Any]] = [
        chosen(0, acc=1.0, acc_norm=0.0),
        chosen(1, acc=0.0, acc_norm=1.0),
    ]

    @pytest.mark.parametrize(("metric", "scores"), [("acc", [1.0, 0.0]), ("acc_norm", [0.0, 1.0])])
    def test_rows(self, metric: str, scores: list[float]) -> None:
        rows = mmlu.answer_rows(metric, self.QUESTIONS, self.SAMPLES, Listener())
        assert [row["score"] for row in rows] == scores
        assert [row["id"] for row in rows] == ["anatomy/0", "law/1"]
        assert [row["subject"] for row in rows] == ["anatomy", "law"]
        assert rows[0]["answer"] == [-2.5, -0.5, -3.0, -4.0]
        assert json.loads(json.dumps(rows)) == rows

    def test_a_question_without_an_answer(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            mmlu.answer_rows("acc", self.QUESTIONS, self.SAMPLES[:1], Listener())


def elsewhere(text: str, question: str) -> float:
    """A scorer of answers to other questions."""
    assert (text, question) == ("A summary.", "mine") or text == "A."
    return 0.1


class TestRouge:
    SCORES: ClassVar[dict[str, Any]] = {
        "rouge1": 0.5,
        "rouge2": 0.25,
        "rougeL": 0.375,
        "rougeLsum": 0.4,
        "bleu": 0.125,
    }

    QUESTION: ClassVar[dict[str, Any]] = {"id": "mine", "references": ["A summary."]}

    @pytest.fixture(autouse=True)
    def scores_without_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """rouge-score and sacrebleu are installed in the evaluate environment only."""

        def score(text: str, references: list[str]) -> dict[str, float]:
            return self.SCORES if text in references else dict.fromkeys(self.SCORES, 0.0)

        monkeypatch.setattr(rouge, "score", score)

    @pytest.mark.parametrize("metric", SCORES)
    def test_rows(self, metric: str) -> None:
        task = RougeTask.model_validate({"metric": metric})
        sample = generated("A summary.")
        (row,) = rouge.answer_rows(task, elsewhere, [self.QUESTION], [sample], Listener())
        assert row["score"] == self.SCORES[metric]
        assert {name: row[name] for name in self.SCORES} == self.SCORES
        assert (row["id"], row["answer"]) == ("mine", "A summary.")
        assert row["unrelated"] == 0.1

    def test_the_score_of_several_answers_is_their_mean(self) -> None:
        task = RougeTask.model_validate({"samples": 4, "sampling": {"temperature": 0.5}})
        sample = generated("A summary.", "A.", "A.", "A summary.")
        (row,) = rouge.answer_rows(task, elsewhere, [self.QUESTION], [sample], Listener())
        assert row["score"] == row["rougeL"] == pytest.approx(0.375 / 2)
        assert len(row["answer"]) == len(row["tokens"]) == 4

    def test_a_thinking_models_unfinished_answer_scores_nothing(self) -> None:
        cut = GeneratedText("A summary.", 7, is_truncated=True)
        sample = generated(cut, GeneratedText("A summary.", 5), GeneratedText("", 9))
        for thinking, score in ((None, 2 / 3), ("remove", 1 / 3)):
            task = RougeTask.model_validate(
                {"samples": 3, "sampling": {"temperature": 0.5}, "thinking": thinking}
            )
            (row,) = rouge.answer_rows(
                task, lambda text, _: 0.0, [self.QUESTION], [sample], Listener()
            )
            assert row["score"] == pytest.approx(score * 0.375)
            assert (row["tokens"], row["truncated"], row["unclosed"]) == ([7, 5, 9], 1, 0)

    def test_no_answer_is_not_scored_as_a_bad_one(self) -> None:
        samples = [generated("A."), generated(NO_ANSWER, number=1)]
        questions = [{**self.QUESTION, "id": name} for name in "ab"]
        with pytest.raises(StageError, match="question 1"):
            rouge.answer_rows(RougeTask(), elsewhere, questions, samples, Listener())


class TestHumanEval:
    SUITE: ClassVar[HumanEvalTask] = HumanEvalTask(
        prompt_format="chat", max_tokens=256, memory_mb_per_problem=256
    )
    QUESTION: ClassVar[dict[str, Any]] = {
        "id": "Test/0",
        "task_id": "Test/0",
        "prompt": 'def double(x: int) -> int:\n    """Twice x."""\n',
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
        "canonical_solution": "    return 2 * x\n",
        "request": "Write it.",
    }

    def answer(self, what: str) -> str:
        return f"Sure:\n```python\n{self.QUESTION['prompt']}    return {what}\n```"

    def test_answers_are_run(self) -> None:
        texts = [self.answer(what) for what in ("2 * x", "x", "(")]
        samples = [generated(text, number=number) for number, text in enumerate(texts)]
        listener = Listener()
        rows = code_suite.answer_rows(
            humaneval.program, self.SUITE, [self.QUESTION] * 3, samples, listener
        )
        assert [row["score"] for row in rows] == [1.0, 0.0, 0.0]
        assert [row["outcome"] for row in rows] == ["passed", "failed", "failed"]
        assert rows[1]["detail"]
        assert [row["answer"] for row in rows] == texts
        assert rows[0]["code"].startswith("def double")
        assert listener.events[-1] == ("run programs", 3, 3, "programs")

    @pytest.mark.parametrize(("k", "scores"), [(1, [0.5, 0.0]), (2, [5 / 6, 0.0])])
    def test_several_answers_make_one_score(self, k: int, scores: list[float]) -> None:
        """Two of four are right: a draw of two misses both once in six."""
        texts = [
            [self.answer(what) for what in ("x", "2 * x", "0", "x + x")],
            [self.answer("x")] * 4,
        ]
        samples = [generated(*drawn, number=number) for number, drawn in enumerate(texts)]
        rows = code_suite.answer_rows(
            humaneval.program,
            HumanEvalTask.model_validate(
                {
                    **self.SUITE.model_dump(),
                    **{"k": k, "samples": 4, "sampling": {"temperature": 0.5}},
                }
            ),
            [self.QUESTION] * 2,
            samples,
            Listener(),
        )
        assert [row["score"] for row in rows] == pytest.approx(scores)
        assert rows[0]["outcome"] == ["failed", "passed", "failed", "passed"]
        assert [row["answer"] for row in rows] == texts
        assert [len(row["code"]) for row in rows] == [len(row["detail"]) for row in rows] == [4, 4]
        assert json.loads(json.dumps(rows)) == rows

    def test_unfinished_thoughts_are_not_run(self) -> None:
        right = self.answer("2 * x")
        texts = [GeneratedText(right, 9), GeneratedText(right, 16, is_truncated=True)]
        task = HumanEvalTask.model_validate(
            {
                **self.SUITE.model_dump(),
                **{"samples": 2, "sampling": {"temperature": 0.5}, "thinking": "remove"},
            }
        )
        (row,) = code_suite.answer_rows(
            humaneval.program,
            task,
            [self.QUESTION],
            [generated(*texts)],
            Listener(),
        )
        assert row["outcome"] == ["passed", "unfinished"]
        assert (row["score"], row["tokens"], row["truncated"]) == (0.5, [9, 16], 1)
        assert json.loads(json.dumps(row)) == row

    def test_no_answer_runs_nothing(self) -> None:
        listener = Listener()
        with pytest.raises(StageError, match="question 0"):
            code_suite.answer_rows(
                humaneval.program,
                self.SUITE,
                [self.QUESTION],
                [generated(NO_ANSWER)],
                listener,
            )
        assert listener.events == []


class TestMbpp:
    QUESTION: ClassVar[dict[str, Any]] = {
        **TestHumanEval.QUESTION,
        "id": "Mbpp/0",
        "test": "for x in range(9):\n    assert double(x) == 2 * x\n",
    }

    def test_a_test_that_calls_the_function_by_name(self) -> None:
        """It defines no `check`, and HumanEval's program would call one."""
        texts = [f"```\ndef double(x):\n    return {what}\n```" for what in ("x + x", "8", "x")]
        rows = code_suite.answer_rows(
            mbpp.program,
            MbppTask(**TestHumanEval.SUITE.model_dump(exclude={"kind"})),
            [self.QUESTION] * 3,
            [generated(text, number=number) for number, text in enumerate(texts)],
            Listener(),
        )
        assert [row["outcome"] for row in rows] == ["passed", "failed", "failed"]


class TestLmEval:
    ACC = Metric("acc", "mean", True)
    QUESTIONS: ClassVar[list[Any]] = [{"id": "task/7", "doc_index": 7, "cluster": "c"}]

    @staticmethod
    def scored(answer: Any, question: str) -> GeneratedScores:
        assert question == "task/7"
        return GeneratedScores(0.75 if answer == "4" else 0.0, empty=0.0, unrelated=0.25)

    def test_choices(self) -> None:
        samples = [chosen(0, acc=1, acc_norm=0)]
        (row,) = lm_eval_suite.chosen_rows(self.ACC, self.QUESTIONS, samples, Listener())
        assert (row["id"], row["score"]) == ("task/7", 1.0)
        assert row["answer"] == [-2.5, -0.5, -3.0, -4.0]

    def test_text_before_and_after_its_filter(self) -> None:
        sample = generated("It is 4, I think.") | {"filtered_resps": ["4"]}
        (row,) = lm_eval_suite.generated_rows(
            LmEvalTask(task="x"), self.scored, self.QUESTIONS, [sample], Listener()
        )
        assert (row["answer"], row["filtered"]) == ("It is 4, I think.", "4")
        assert row["score"] == 0.75
        assert (row["empty"], row["unrelated"], row["cluster"]) == (0.0, 0.25, "c")

    def test_no_answer_is_refused_whatever_its_filter_made_of_it(self) -> None:
        sample = generated(NO_ANSWER) | {"filtered_resps": ["[invalid]"]}
        with pytest.raises(StageError, match="question 0"):
            lm_eval_suite.generated_rows(
                LmEvalTask(task="x"), self.scored, self.QUESTIONS, [sample], Listener()
            )

    def test_the_score_of_several_answers_is_their_mean(self) -> None:
        task = LmEvalTask(
            task="x", samples=4, sampling=Sampling(temperature=0.5), thinking="remove"
        )
        texts = ["4!", "5!", GeneratedText("4!", 8, is_unclosed=True), "4!"]
        sample = generated(*texts) | {"filtered_resps": ["4", "5", "4", "4"]}
        (row,) = lm_eval_suite.generated_rows(
            task, self.scored, self.QUESTIONS, [sample], Listener()
        )
        assert row["score"] == pytest.approx(2 * 0.75 / 4)
        assert (row["answer"], row["filtered"]) == (texts, ["4", "5", "4", "4"])
        assert (row["tokens"], row["unclosed"]) == ([0, 0, 8, 0], 1)

    @pytest.mark.parametrize("metrics", [{"acc": 37.5}, {"acc": (1, 0)}, {}])
    def test_a_metric_out_of_bounds_is_refused(self, metrics: dict[str, Any]) -> None:
        samples = [chosen(0, **metrics)]
        with pytest.raises(EvaluationDataError, match="'acc'"):
            lm_eval_suite.chosen_rows(self.ACC, self.QUESTIONS, samples, Listener())
