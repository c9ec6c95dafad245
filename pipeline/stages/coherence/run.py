"""Checks a served model's coherence before any long evaluation.

It scores a passage of plain English: a model that quantization (or a wrong kernel) broke has a
perplexity many times the baseline's, which a short answer may not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_gates.chat_form import PATH, ChatForm
from eval_gates.replies import read_chat
from pipeline.core.errors import ServingError
from pipeline.serving.openai_endpoint import authorization
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.coherence import COHERENCE, CoherenceResult
from pipeline.stages.context import StageContext
from recipes.engines import find_engine

PASSAGE = (
    "The old library stood at the corner of the market square. Every morning the doors were "
    "opened at nine, and the first visitors were usually students who wanted a quiet place to "
    "read. In the winter months it was also one of the few warm rooms in the town, so people came "
    "to sit by the windows, drink tea and talk about the weather."
)
PROMPT = "The capital of France is"
MAXIMUM_PERPLEXITY_RATIO = 2.0
TIMEOUT_SECONDS = 300
REFUSALS = (400, 404, 405, 422, 501)


def run(context: StageContext[ServedModel, ServerRuntime]) -> CoherenceResult:
    """Score the passage and generate a few words.

    Raises:
        ServingError: the server does not answer.
    """
    parameters, runtime = context.parameters, context.runtime
    form = parameters.endpoint.chat if parameters.endpoint is not None else None
    ask = CoherenceProbe(runtime.url, runtime.model, runtime.socket, form)
    text = ask.complete()
    scored = True
    try:
        perplexity = ask.passage_perplexity()
    except UnsupportedRequestError as error:
        # Whether our own server does is known.
        dialect = find_engine(parameters.serving.engine).dialect
        if parameters.endpoint is None and dialect.scores_prompts:
            raise
        perplexity, scored = None, False
        context.note(
            f"perplexity not measured, the endpoint does not score prompts: {error.message}"
        )
    baseline = None
    if "baseline" in context.spec.inputs:
        baseline = COHERENCE.result_of(context.input_record("baseline")).perplexity
    return CoherenceResult(
        perplexity=perplexity,
        perplexity_ratio=perplexity / baseline if perplexity and baseline else None,
        sample=text,
        incoherent=incoherence(perplexity, baseline, text) if scored else silence(text),
        server=runtime.server,
        engine_version=runtime.engine_version,
    )


def incoherence(perplexity: float | None, baseline: float | None, text: str) -> str:
    """Return why the model is broken; "" if it is coherent.

    Args:
        perplexity: on the passage; None if a log-probability was not a number.
        baseline: the baseline's perplexity; None for the baseline itself.
    """
    if perplexity is None:
        return "the served model is broken: its log-probabilities are not numbers"
    if silence(text):
        return silence(text)
    if baseline is not None and perplexity > MAXIMUM_PERPLEXITY_RATIO * baseline:
        return (
            f"the served model is incoherent: perplexity {perplexity:.1f} on plain English, "
            f"more than {MAXIMUM_PERPLEXITY_RATIO:g} times the baseline's {baseline:.1f}"
        )
    return ""


def silence(text: str) -> str:
    """Return why a model with this answer is broken; "" if it is coherent."""
    return "" if text.strip() else "the served model answers with nothing"


class UnsupportedRequestError(ServingError):
    """The endpoint does not support this kind of request."""


@dataclass(frozen=True)
class CoherenceProbe:
    """Single greedy requests to one served model."""

    url: str
    model: str
    socket: str | None = None
    form: ChatForm | None = None  # None: text completions

    def passage_perplexity(self) -> float | None:
        """Return the perplexity of the passage's tokens after the first, by the server's scores."""
        if self.form is not None:
            raise UnsupportedRequestError("the chat API has no such request", where=self.url)
        answer = self._post({"prompt": PASSAGE, "max_tokens": 1, "echo": True, "logprobs": 1})
        try:
            # The first token has no log-probability; the last one was generated.
            values = answer["choices"][0]["logprobs"]["token_logprobs"][1:-1]
        except (LookupError, TypeError) as error:
            raise UnsupportedRequestError(
                "it echoes no log-probabilities", where=self.url
            ) from error
        if len(values) < len(PASSAGE.split()) // 2:  # as of TensorRT-LLM, which echoes text alone
            raise UnsupportedRequestError("it echoes no log-probabilities", where=self.url)
        numbers = all(isinstance(value, (int, float)) for value in values)
        if not values or not numbers:
            return None
        try:
            if not all(math.isfinite(value) for value in values):
                return None
            return math.exp(-sum(values) / len(values))
        except OverflowError:
            return None

    def complete(self) -> str:
        """Return a short greedy answer; by the chat API, thoughts if there is no other text."""
        if self.form is not None:
            return self._complete_chat(self.form)
        answer = self._post({"prompt": PROMPT, "max_tokens": 16})
        try:
            return str(answer["choices"][0]["text"])
        except (LookupError, TypeError) as error:
            raise ServingError("the model server's answer has no text", where=self.url) from error

    def _complete_chat(self, form: ChatForm) -> str:
        answer = self._post(
            form.body(
                self.model,
                {"messages": [{"role": "user", "content": f"{PROMPT} ..."}]},
                max_tokens=16,
                seed=1,
                settings={},
                template_arguments={},
            ),
            PATH,
        )
        try:
            found = read_chat(answer)
        except ValueError as error:
            raise ServingError(f"the model server's answer: {error}", where=self.url) from error
        return found.text or found.reasoning

    def _post(self, request: dict[str, Any], path: str = "completions") -> dict[str, Any]:
        """Return the answer to one request; raise ServingError if there is none."""
        import httpx

        from pipeline.core.bounded_http import send_request

        local = self.url.startswith(("http://127.0.0.1", "http://localhost"))
        ours = self.socket is not None
        try:
            answer = send_request(
                "POST",
                f"{self.url}/v1/{path}",
                json={"model": self.model, "temperature": 0, **request},
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
            data: dict[str, Any] = answer.json()
        except ValueError as error:
            raise ServingError(
                f"the model server's answer is no JSON: {error}", where=self.url
            ) from error
        return data
