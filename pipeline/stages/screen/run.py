"""Screens a served model in seconds: what it loses of its baseline's text, and what it writes.

The baseline continues three texts by 32 greedy tokens. Every arm reads these texts and gives their
tokens' log-probabilities (eval_gates/prompt_scores.py): quantization or a kernel that broke a model
costs more than a nat a token. Each arm also writes 32 tokens and reads them: its
kernels for decoding are others than those for reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eval_gates.chat_form import PATH, ChatForm
from eval_gates.prompt_scores import (
    BrokenNumbersError,
    Generated,
    ScoredToken,
    generate_body,
    nats,
    read_generated,
    read_scores,
    read_tokens,
    score_body,
    share_kept,
)
from eval_gates.replies import read_chat
from pipeline.core.errors import ServingError
from pipeline.serving.openai_endpoint import authorization
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.context import StageContext
from pipeline.stages.screen import SCREEN, ScreenedText, ScreenResult
from recipes.engines import find_engine

PROMPTS = (
    "The old library stood at the corner of the market square. Every morning the doors were "
    "opened at nine, and the first visitors were usually students who wanted a quiet place to "
    "read. In the winter months it was also one of the few warm rooms in the town, so people came "
    "to sit by the windows, drink tea and talk about the weather.",
    "The capital of France is",
    "def mean(values):\n    return",
)
TOKENS = 32
MIN_KEPT = 0.5  # of an arm's own tokens; intact ones keep 0.99
TIMEOUT_SECONDS = 300
REFUSALS = (400, 404, 405, 422, 501)
Read = TypeVar("Read")


class UnsupportedRequestError(ServingError):
    """The endpoint does not support this kind of request."""


def run(context: StageContext[ServedModel, ServerRuntime]) -> ScreenResult:
    """Have the model write and read.

    Raises:
        ServingError: the server does not answer.
    """
    parameters, runtime = context.parameters, context.runtime
    form = parameters.endpoint.chat if parameters.endpoint is not None else None
    ask = ScreenProbe(runtime.url, runtime.model, runtime.socket, form)
    baseline: list[ScreenedText] = []
    if "baseline" in context.spec.inputs:
        baseline = SCREEN.result_of(context.input_record("baseline")).texts
    ours_reads = find_engine(parameters.serving.engine).dialect.scores_prompts
    why = "its engine has no such request"
    found: ScreenResult | None = None
    if parameters.endpoint is not None or ours_reads:
        try:
            found = screen(ask, baseline)
        except UnsupportedRequestError as error:
            if parameters.endpoint is None:
                raise
            why = error.message
    if found is None:
        context.note(
            "the screen reads what the model writes alone, since the server gives no "
            f"log-probabilities of prompts: {why}"
        )
        texts = [ScreenedText(prompt=PROMPTS[1], text=ask.write(PROMPTS[1]))]
        found = ScreenResult(texts=texts, broken=silence(texts))
    return found.model_copy(
        update={"server": runtime.server, "engine_version": runtime.engine_version}
    )


def screen(ask: ScreenProbe, baseline: list[ScreenedText]) -> ScreenResult:
    """Return the result of an arm; `baseline` has the baseline's texts, if this is another."""
    before = baseline if baseline and baseline[0].prompt_ids else []
    texts: list[ScreenedText] = []
    read: list[ScoredToken] = []  # of the baseline's tokens
    own: list[ScoredToken] = []  # of what it writes
    try:
        for number, prompt in enumerate(PROMPTS):
            ids = ask.tokens(prompt)
            written = ask.generate(ids)
            scored = ask.score(ids, written.tokens)
            own += scored
            if before:
                if before[number].prompt_ids != ids:
                    return ScreenResult(
                        texts=texts,
                        broken="the served model has another tokenizer than its baseline: it "
                        f"reads {ids[:8]} where that reads {before[number].prompt_ids[:8]}",
                    )
                scored = ask.score(ids, before[number].answer_ids)
            read += scored
            texts.append(
                ScreenedText(
                    prompt=prompt,
                    text=written.text,
                    prompt_ids=ids,
                    answer_ids=written.tokens,
                    nats=nats(scored) if scored else None,
                )
            )
    except BrokenNumbersError as error:
        return ScreenResult(texts=texts, broken=str(error))
    if not own or not read:
        return ScreenResult(texts=texts, broken=silence([]))
    values = [each.nats for each in before if each.nats is not None]
    sizes = [len(each.answer_ids) for each in before if each.nats is not None]
    lost = None
    if values:
        then = sum(n * size for n, size in zip(values, sizes, strict=True)) / sum(sizes)
        lost = nats(read) - then
    kept = share_kept(own)
    return ScreenResult(
        texts=texts,
        nats=nats(read),
        nats_lost=lost,
        kept=kept,
        baseline_texts=[each.text for each in before],
        broken=silence(texts) or find_fault(lost, kept),
    )


def find_fault(lost: float | None, kept: float) -> str:
    """Return why a model with these figures is broken under any limit; "" if it is not.

    Args:
        lost: nats a token, to the baseline; None for the baseline.
        kept: share of the greedy tokens that it wrote and chooses when it reads them.
    """
    if lost is not None and not math.isfinite(lost):
        return "the served model is broken: the baseline's text is impossible for it"
    if kept < MIN_KEPT:
        return (
            f"the served model is broken: of the tokens that it writes it chooses {100 * kept:.0f} "
            "% when it reads them"
        )
    return ""


def silence(texts: list[ScreenedText]) -> str:
    """Return why a model with these answers is broken; "" if it writes."""
    said = any(each.text.strip() for each in texts)
    return "" if said else "the served model answers with nothing"


@dataclass(frozen=True)
class ScreenProbe:
    """Single requests to one served model."""

    url: str
    model: str
    socket: str | None = None
    form: ChatForm | None = None  # None: text completions

    def tokens(self, prompt: str) -> list[int]:
        """Return the prompt's token ids, by the server's tokenizer."""
        if self.form is not None:
            raise UnsupportedRequestError("the chat API has no such request", where=self.url)
        found = self._ask("/tokenize", {"model": self.model, "prompt": prompt}, read_tokens)
        if not found:
            raise UnsupportedRequestError("it gives no token ids", where=self.url)
        return found

    def generate(self, prompt: list[int]) -> Generated:
        """Return greedy tokens."""
        body = generate_body(self.model, prompt, TOKENS)
        return self._ask("/v1/completions", body, read_generated)

    def score(self, prompt: list[int], answer: list[int]) -> list[ScoredToken]:
        """Return the scores of an answer's tokens; BrokenNumbersError if they are no numbers."""
        body = score_body(self.model, [*prompt, *answer])
        return self._ask("/v1/completions", body, lambda found: read_scores(found, answer))

    def write(self, prompt: str) -> str:
        """Return a short greedy text; by the chat API, thoughts if there is no other text."""
        if self.form is None:
            body = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            return self._ask("/v1/completions", body, _text)
        body = self.form.body(
            self.model,
            {"messages": [{"role": "user", "content": f"{prompt} ..."}]},
            max_tokens=TOKENS,
            seed=1,
            settings={},
            template_arguments={},
        )
        try:
            found = read_chat(self._post(body, f"/v1/{PATH}"))
        except ValueError as error:
            raise ServingError(f"the model server's answer: {error}", where=self.url) from error
        return found.text or found.reasoning

    def _ask(self, path: str, body: dict[str, Any], read: Callable[[Any], Read]) -> Read:
        answer = self._post(body, path)
        try:
            return read(answer)
        except BrokenNumbersError:
            raise
        except ValueError as error:
            raise UnsupportedRequestError(str(error), where=self.url) from error

    def _post(self, request: dict[str, Any], path: str) -> Any:
        """Return the answer to one request; raise ServingError if there is none."""
        import httpx

        from pipeline.core.bounded_http import send_request

        local = self.url.startswith(("http://127.0.0.1", "http://localhost"))
        ours = self.socket is not None
        try:
            answer = send_request(
                "POST",
                f"{self.url}{path}",
                json=request,
                headers={} if ours else authorization(),
                socket=Path(self.socket) if self.socket is not None else None,
                trust_env=not (ours or local),
                timeout_s=TIMEOUT_SECONDS,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServingError(
                f"the model server did not answer: {error}", where=self.url
            ) from error
        if answer.status != 200:
            kind = UnsupportedRequestError if answer.status in REFUSALS else ServingError
            raise kind(
                f"the model server answered {answer.status}: {answer.text[:500]}",
                where=self.url,
            )
        try:
            return answer.json()
        except ValueError as error:
            raise ServingError(
                f"the model server's answer is no JSON: {error}", where=self.url
            ) from error


def _text(body: Any) -> str:
    try:
        return str(body["choices"][0]["text"])
    except (LookupError, TypeError) as error:
        raise ValueError("the model server's answer has no text") from error
