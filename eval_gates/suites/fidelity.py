"""Conversations without right answers: which of the baseline's tokens an arm would write, too.

Every arm, the baseline included, reads the baseline's greedy answer; the score is its share of
first choices. The baseline's own share is the noise floor of decoding against prefill. Texts and
token ids stay in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates import prompt_scores
from eval_gates.ask import Client, TooLongError, UnansweredError
from eval_gates.depth import DepthSuite
from eval_gates.prompt_scores import (
    Generated,
    ScoredToken,
    nats,
    share_kept,
    thought_end,
)
from eval_gates.quality_result import KEPT_SHARE
from eval_gates.rows import Answer, Question, Reply, Score
from eval_gates.suites.chat_logs import (
    CARRIED_FILE,
    SESSION,
    STEM,
    TEXTS,
    Remark,
    digest_of,
    open_chats,
    other_rendering,
    read_conversation,
    sessions_of,
    tell,
    tokenized,
)
from eval_gates.suites.json_lines import FIELDS, id_of, write_rows
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render, SuiteKind
from prepare.digest import digest_json
from prepare.errors import EvaluationDataError
from recipes.generation import Form, TemplateArgument
from recipes.policy import EvalTask

CONTEXT = "context"  # own key: tokens that the answer follows
NEAR_TIE = 0.05  # nats: below, two starts of the baseline differ, too


class FidelityTask(EvalTask):
    """Conversations, and how much of them is compared."""

    kind: Literal["fidelity"] = "fidelity"
    prompt_format: Form = "auto"
    max_tokens: int = Field(96, ge=1, le=4_096, description="tokens of the baseline's answer")
    scored_tokens: int = Field(
        2_048,
        ge=64,
        le=131_072,
        description="tokens of conversation and answer, whose logits a server computes together "
        "(6 bytes a token and vocabulary entry); of a longer conversation the last part is read",
    )
    reads_together: bool = Field(
        False,
        description="conversations are read together, up to scored_tokens: faster, but near ties "
        "may fall otherwise each time",
    )
    chat_template_kwargs: dict[str, TemplateArgument] = Field({}, max_length=50)


class Fidelity(SuiteKind[FidelityTask]):
    """Conversations of your own, without right answers."""

    task = FidelityTask
    sources = ("eval-data", "builtin")
    folder_stem = STEM
    carried = CARRIED_FILE
    assumed_baseline = 0.99
    may_repeat = True
    decision = DepthSuite
    reads_baseline = True
    is_whole_in_bundle = False
    private_keys = ("text", "prompt_ids", "answer_ids", "flip")

    def __init__(self) -> None:
        self._chats: dict[str, dict[str, Any]] = {}

    def questions(self, task: FidelityTask, order: QuestionOrder) -> Read:
        rows = self.read(order.source, order.folder)
        remarks = list[Remark]()
        chats = [read_conversation(row, place, remarks) for place, row in rows]
        tell(remarks, order.progress)
        ids = [id_of(row, f"conversation/{number}") for number, (_, row) in enumerate(rows)]
        kept = [{"id": id_, **chat} for id_, chat in zip(ids, chats, strict=True)]
        write_rows(order.output / TEXTS, kept)
        data: list[dict[str, Any]] = [{} for _ in rows]
        if task.reads_fields:  # the fields leave the questions when these are grouped
            data = [{FIELDS: fields} for fields in _fields(rows)]
        # Rows go into bundles, so the prompt is a digest.
        questions = [
            Question(id_, digest_of(chat), data=own)
            for id_, chat, own in zip(ids, chats, data, strict=True)
        ]
        return questions, {}

    def known_cluster(
        self, task: FidelityTask, identity: QuestionSource, folder: Path | None
    ) -> str | None:
        sessions = sessions_of(self.read(identity, folder))
        return SESSION if len(set(sessions)) < len(sessions) else None

    def open(self, task: FidelityTask, questions: Sequence[Question], folder: Path) -> None:
        self._chats = open_chats(folder, questions)

    def render(self, task: FidelityTask, question: Question, template: Render | None) -> Question:
        # To be shown only: each arm's server renders.
        chat = self._chats[question.id]
        tools = {"tools": chat["tools"]} if "tools" in chat else {}
        return replace(
            question,
            prompt=chat.get("prompt", ""),
            messages=tuple(chat.get("messages", ())),
            server=tools,
        )

    def ask(
        self,
        task: FidelityTask,
        client: Client,
        batch: Sequence[Question],
        baseline: Mapping[str, Answer] | None,
    ) -> list[list[Reply]]:
        """Return one reply per conversation, whose `own` has the scored tokens.

        `baseline` is by id; None for itself. StageError if the arm renders otherwise, or the server
        lacks prompts' log-probabilities.
        """
        chats = [self._chats[question.id] for question in batch]
        bodies = [
            tokenized(client.model, chat, task.prompt_format, task.chat_template_kwargs)
            for chat in chats
        ]
        rendered = client.send(
            [
                prompt_scores.render(body, question.id)
                for body, question in zip(bodies, batch, strict=True)
            ]
        )
        room = max(1, min(task.scored_tokens, client.max_length) - task.max_tokens - 1)
        prompts = [ids[-room:] for ids, _ in rendered]
        if baseline is None:
            wanted = [prompt_scores.generate(client.model, p, task.max_tokens) for p in prompts]
            answers = client.send(wanted)
        else:
            answers = []
            rows = [baseline[question.id].own for question in batch]
            prompts = [  # one may be cut to less, for an engine that ended
                prompt[-len(row["prompt_ids"]) :] if row["is_cut"] else prompt
                for prompt, row in zip(prompts, rows, strict=True)
            ]
            for question, prompt, row in zip(batch, prompts, rows, strict=True):
                if prompt != row["prompt_ids"]:
                    raise other_rendering(question.id, prompt, row["prompt_ids"])
                answers.append(Generated(row["answer_ids"], row["text"]))
        requests = [
            prompt_scores.score(client.model, prompt, answer.tokens)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        try:
            # Complete prompts' logits are outside the engine's memory profile.
            together = task.scored_tokens if task.reads_together else 1
            scored = client.send(requests, tokens_in_flight=together)
        except UnansweredError as error:
            lengths = [request.length for request in requests]
            most = min(together, sum(lengths)) if task.reads_together else max(lengths)
            raise TooLongError(
                f"too long for prompt log-probabilities: the engine ended at {most} tokens "
                f"({error.message})",
                where=error.where,
                hint=f"set scored_tokens: {max(64, most // 2)} in the suite, so that half as "
                "many logits are computed together",
            ) from error
        client.answered(len(batch))
        return [
            [
                Reply(
                    digest_json(answer.tokens),
                    len(answer.tokens),
                    own={
                        "text": answer.text,
                        "prompt_ids": prompt,
                        "answer_ids": answer.tokens,
                        "prompt_sha256": digest_json(prompt),
                        "is_cut": len(ids) > len(prompt),
                        CONTEXT: len(prompt),
                        "in_thought": in_thought,
                        "scored": tokens,
                    },
                )
            ]
            for (ids, in_thought), prompt, answer, tokens in zip(
                rendered, prompts, answers, scored, strict=True
            )
        ]

    def score(self, task: FidelityTask, question: Question, replies: Sequence[Reply]) -> Score:
        """Return the share kept, nats per token, and the first difference."""
        (reply,) = replies
        own = dict(reply.own)
        scored: list[ScoredToken] = own.pop("scored")
        in_thought = own.pop("in_thought", False)
        if not scored:
            raise EvaluationDataError(
                "the baseline ends its answer before the first token",
                where=f"conversation {question.id}",
                hint="remove the conversation",
            )
        flips = [place for place, token in enumerate(scored) if not token.is_kept]
        read = str(own.pop("prompt_sha256"))
        if thoughts := thought_end(scored, has_begun=in_thought):
            own["kept_of_thoughts"] = share_kept(scored[:thoughts])
            if thoughts < len(scored):
                own["kept_after_thoughts"] = share_kept(scored[thoughts:])
        if flips:
            first = scored[flips[0]]
            own |= {"first_flip": flips[0], "margin": first.margin}
            start = len("".join(token.text for token in scored[: flips[0]]))
            own["flip"] = {"start": start, "token": first.text, "choice": first.choice}
            own["near_ties"] = sum(scored[place].margin < NEAR_TIE for place in flips)
        return Score(share_kept(scored), nats=nats(scored), prompt_sha256=read, own=own)

    def depth(self, answer: Answer) -> int | None:
        depth = answer.own.get(CONTEXT)
        return depth if type(depth) is int else None

    def metric(self, task: FidelityTask, laid_out: str | None) -> str:
        return KEPT_SHARE

    def typical_change(self, task: FidelityTask) -> float:
        return 0.1


def _fields(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the fields of lines by which they can be grouped, with each one's session."""
    sessions = sessions_of(rows)
    return [{**row, SESSION: session} for (_, row), session in zip(rows, sessions, strict=True)]
