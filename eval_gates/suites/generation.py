"""Suites whose answers are generated: settings, requests, scores of unfinished answers, rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import model_validator

from eval_gates.answer_validity import REFUSED, THOUGHTS_ONLY, UNREAD
from eval_gates.chance_baselines import EMPTY, UNRELATED
from eval_gates.limited_call import grade_all
from eval_gates.suites.answer_rows import common_fields, texts_of, unwrap
from eval_gates.suites.generated_text import GeneratedText
from eval_gates.suites.suite_kind import Row, Rows
from pipeline.core.events import Progress
from recipes.generation import Generation, Sampling, Thinking, ThoughtMarkers
from recipes.policy import EvalTask


class GeneratingTask(EvalTask, Generation):
    """Base of the tasks whose answers are generated."""

    @model_validator(mode="after")
    def _samples_differ(self) -> GeneratingTask:
        if self.samples > 1 and self.sampling == "greedy":
            raise ValueError(
                f"'samples: {self.samples}' of greedy answers are one answer: add "
                "'sampling: model', or a temperature such as 'sampling: {temperature: 0.7}'"
            )
        return self

    @property
    def thinks(self) -> bool:
        return self.thinking is not None


def request_settings(asked: Generation, stops: Sequence[str]) -> dict[str, Any]:
    """Return lm-eval's `generation_kwargs` of resolved settings; else ValueError."""
    if asked.max_tokens is None:
        raise ValueError("the suite has no default of max_tokens")
    return {
        "until": list(stops),
        "max_gen_toks": asked.max_tokens,
        **sampling_settings(asked.sampling),
        **thinking_settings(asked.thinking),
    }


def sampling_settings(sampling: Sampling | str) -> dict[str, Any]:
    """Return the settings of resolved sampling; ValueError for `model`."""
    if isinstance(sampling, Sampling):
        return {"do_sample": True, **sampling.model_dump()}
    if sampling != "greedy":
        raise ValueError("the checkpoint's own sampling was not resolved")
    return {"do_sample": False, "temperature": 0.0}


def thinking_settings(thinking: Thinking) -> dict[str, Any]:
    """Return the client's own setting `thinking`, the markers; ValueError for words."""
    if thinking is None:
        return {}
    if not isinstance(thinking, ThoughtMarkers):
        raise ValueError("the template's own markers of thoughts were not resolved")
    return {"thinking": thinking.model_dump()}


def task_config(
    task: GeneratingTask, template: str | Callable[[Row], str], stops: Sequence[str]
) -> dict[str, Any]:
    """Return the lm-eval configuration of a task whose answers `rows_of` scores.

    Args:
        template: jinja, over a question's fields; or a function of the question.
        stops: at most four; vLLM refuses more.
    """
    return {
        "task": task.kind,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": template,
        "doc_to_target": "",
        "generation_kwargs": request_settings(task, stops),
        "num_fewshot": 0,
        "metric_list": [],
        "metadata": {"version": 1.0},
    }


def is_unsolved(task: GeneratingTask, text: GeneratedText) -> bool:
    """Return whether the answer scores 0 unread: a thinking model did not come to its end."""
    return task.thinks and text.is_unfinished


def score_answers(
    task: GeneratingTask, texts: Sequence[GeneratedText], score: Callable[[GeneratedText], float]
) -> list[float]:
    """Return each answer's score; 0 for unsolved ones."""
    return [0.0 if is_unsolved(task, text) else score(text) for text in texts]


def generated_fields(task: GeneratingTask, sample: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that describe its answers: texts, tokens, what they lack."""
    texts = texts_of(sample)
    return {
        "answer": unwrap([str(text) for text in texts]),
        "tokens": [text.tokens for text in texts],
        "truncated": sum(text.is_truncated for text in texts),
        "unclosed": sum(text.is_unclosed for text in texts),
        REFUSED: sum(text.is_refused for text in texts),
        THOUGHTS_ONLY: sum(text.is_thought for text in texts),
        UNREAD: sum(is_unsolved(task, text) for text in texts),
    }


def mean(values: Sequence[float]) -> float:
    """Return the mean of one question's values."""
    return sum(values) / len(values)


class GeneratedScores(NamedTuple):
    """Scores of one generated answer."""

    score: float
    empty: float  # of an empty answer to the same question
    unrelated: float  # of this answer to another question


def generated_rows(
    task: GeneratingTask,
    score: Callable[[Any, str], GeneratedScores],
    questions: Rows,
    samples: Rows,
    progress: Progress,
) -> Rows:
    """Return rows whose `answer` is the text, or several; `filtered` is what was scored.

    Args:
        score: of a filtered answer to the question of that id.
    """
    rows = []
    for question, sample in zip(questions, samples, strict=True):
        unsolved = [is_unsolved(task, text) for text in texts_of(sample)]
        filtered = sample["filtered_resps"]
        scores = [
            GeneratedScores(*each)
            for each in grade_all(
                [partial(score, text, question["id"]) for text in filtered],
                GeneratedScores(0.0, 0.0, 0.0),
            )
        ]
        solved = [0.0 if no else each.score for no, each in zip(unsolved, scores, strict=True)]
        rows.append(
            {
                **common_fields(question, sample),
                **generated_fields(task, sample),
                "filtered": unwrap([str(text) for text in filtered]),
                "score": mean(solved),
                EMPTY: scores[0].empty,
                UNRELATED: mean([each.unrelated for each in scores]),
            }
        )
    return rows
