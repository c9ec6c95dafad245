"""Suites whose answers are generated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import model_validator

from eval_gates.rows import AnsweredQuestion, Question, Reply, Score
from eval_gates.suites.suite_kind import SuiteKind
from prepare.events import Progress
from prepare.limited_call import grade_all
from recipes.generation import Generation, Sampling, Thinking, ThoughtMarkers
from recipes.policy import EvalTask


class GeneratingTask(EvalTask, Generation):
    """Base of tasks with generated answers."""

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


Generating = TypeVar("Generating", bound=GeneratingTask)


class GeneratingKind(SuiteKind[Generating]):
    """Suite of generated answers."""

    stops: Mapping[str, Sequence[str]] = {}  # strings that end an answer, by the prompt's format

    def settings(self, task: Generating) -> dict[str, Any]:
        stops = list(self.stops.get(task.prompt_format, ()))
        return {**generation_settings(task), "until": stops}


class TextKind(GeneratingKind[Generating]):
    """Suite whose samples are scored alone, in processes with limits."""

    scores_empty = False  # each answer has what an empty one scores

    @abstractmethod
    def score_text(self, task: Generating, question: Question, reply: Reply) -> float:
        """Return a score from 0 to 1; runs in a limited process."""

    def own(self, task: Generating, question: Question, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the suite's own keys."""
        return {}

    def prepare_scoring(self, task: Generating) -> None:
        """Import what scores answers, before the limited process starts."""

    def score(self, task: Generating, question: Question, replies: Sequence[Reply]) -> Score:
        return self._grade(task, question, replies, None)

    def score_batch(
        self, task: Generating, batch: Sequence[AnsweredQuestion], progress: Progress
    ) -> list[Score]:
        self.prepare_scoring(task)
        return [self._grade(task, *asked) for asked in batch]

    def _grade(
        self, task: Generating, question: Question, replies: Sequence[Reply], other: Question | None
    ) -> Score:
        read = [reply for reply in replies if not is_unsolved(task, reply)]
        asked = [question, *([other] if self.scores_unrelated and other else [])]
        calls = [
            partial(self.score_text, task, asked_question, reply)
            for asked_question in asked
            for reply in read
        ]
        if self.scores_empty:
            calls.append(partial(self.score_text, task, question, Reply()))
        scores = grade_all(calls, 0.0)
        own = scores[: len(read)]
        related = scores[len(read) : 2 * len(read)]
        return Score(
            sum(own) / len(replies),
            unrelated=sum(related) / len(replies) if len(asked) > 1 else None,
            empty=scores[-1] if self.scores_empty else None,
            own=self.own(task, question, replies),
        )


def generation_settings(asked: Generation) -> dict[str, Any]:
    """Return a resolved task's settings of generation."""
    return {
        "until": [],
        "max_gen_toks": asked.max_tokens,
        "samples": asked.samples,
        **sampling_settings(asked.sampling),
        **thinking_settings(asked.thinking),
    }


def sampling_settings(sampling: Sampling | str) -> dict[str, Any]:
    """Return resolved sampling."""
    if isinstance(sampling, Sampling):
        return {"do_sample": True, **sampling.model_dump()}
    if sampling != "greedy":
        raise ValueError("the checkpoint's own sampling was not resolved")
    return {"do_sample": False, "temperature": 0.0}


def thinking_settings(thinking: Thinking) -> dict[str, Any]:
    """Return the client's setting `thinking`."""
    if thinking is None:
        return {}
    if not isinstance(thinking, ThoughtMarkers):
        raise ValueError("the template's own markers of thoughts were not resolved")
    return {"thinking": thinking.model_dump()}


def is_unsolved(task: GeneratingTask, reply: Reply) -> bool:
    """Return whether the answer scores 0 unread: it is unfinished after thinking."""
    return task.thinks and reply.is_unfinished
