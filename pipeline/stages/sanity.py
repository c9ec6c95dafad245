"""Tests in seconds whether a served model speaks.

The baseline continues three texts by 32 greedy tokens, and every arm gives their log-probabilities:
a broken model loses more than a nat a token. Each arm also reads 32 tokens that it wrote:
decoding has its own kernels. Variants are compared with the baseline, so one that is broken itself
shows in what it makes of plain English.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, TypeAdapter

from eval_gates import prompt_scores as scores
from eval_gates.ask import Client, RefusedError, Request
from eval_gates.replies import choice_of
from eval_gates.rows import Question
from pipeline.serving.served_model import ServedModel, ServerInfo, ServerRuntime
from pipeline.stages.context import StageContext
from prepare.record import ForeignText, Record
from prepare.stage import Stage
from recipes.engines import find_engine


class SanityText(Record):
    """A prompt and its continuation."""

    prompt: str
    text: ForeignText = Field(description="32 greedy tokens of this arm")
    prompt_ids: list[int] = Field([])
    answer_ids: list[int] = Field([], description="the tokens of the text")
    nats: float | None = Field(
        None, description="mean negative log-probability of the baseline's tokens, a token"
    )


class SanityResult(Record):
    """How much of the baseline's text the model would write."""

    texts: list[SanityText] = Field([])
    nats: float | None = Field(None, description="a token; None where the endpoint gives none")
    prose_nats: float | None = Field(
        None, description="of plain English, a token; of a baseline alone"
    )
    nats_lost: float | None = Field(None, description="a token, to the baseline")
    kept: float | None = Field(
        None, description="share of the arm's own tokens that are its first choice when it reads"
    )
    baseline_texts: list[str] = Field([], description="of the baseline, after the same prompts")
    broken: str = Field("", description="why it is broken under any policy; '' when it is not")
    server: ServerInfo = ServerInfo()
    engine_version: str = Field("", description="as it reports it; '' of a user's endpoint")

    def fault(self, limit: float) -> str:
        """Return the fault of a model that loses over `limit` nats a token, or ""."""
        if self.broken or self.nats_lost is None or self.nats_lost <= limit:
            return self.broken
        pairs = zip(self.texts, self.baseline_texts, strict=False)
        shown = "; ".join(
            f"after {ours.prompt[-30:]!r} it writes {ours.text[:60]!r}, the baseline {text[:60]!r}"
            for ours, text in pairs
        )
        return (
            f"the served model is broken: it loses {self.nats_lost:.2f} nats a token of its "
            f"baseline's text, more than {limit:g} (policy key broken): {shown}"
        )


_TEXTS = TypeAdapter(list[SanityText])
SANITY = Stage("sanity", 4, ServedModel, ServerRuntime, SanityResult)


PROMPTS = (
    "The old library stood at the corner of the market square. Every morning the doors were "
    "opened at nine, and the first visitors were usually students who wanted a quiet place to "
    "read. In the winter months it was also one of the few warm rooms in the town, so people came "
    "to sit by the windows, drink tea and talk about the weather.",
    "The capital of France is",
    "def mean(values):\n    return",
)
TOKENS = 32
MAX_PROSE_NATS = (
    6.0  # a token of the first prompt; models of English have 2 to 4, and a guess has 10 to 12
)
MIN_KEPT = 0.5  # of an arm's own tokens; intact ones keep 0.99
TIMEOUT_S = 300.0
WRITTEN = {"max_gen_toks": TOKENS, "until": []}


def run(context: StageContext[ServedModel, ServerRuntime]) -> SanityResult:
    """Test the model; StageError if the server does not answer."""
    parameters = context.parameters
    runtime = context.runtime
    endpoint = parameters.endpoint
    by_chat = endpoint is not None and endpoint.chat
    client = Client(
        runtime.url,
        runtime.model,
        WRITTEN,
        by_chat=by_chat,
        socket=runtime.socket,
        timeout_s=TIMEOUT_S,
    )
    baseline: list[SanityText] = []
    if "baseline" in context.spec.inputs:
        # A recorded arm has the same key.
        baseline = _TEXTS.validate_python(context.input_record("baseline").result["texts"])
    why = "its engine and its API have no such request"
    examined: SanityResult | None = None
    reads = find_engine(parameters.serving.engine).dialect.scores_prompts
    if not by_chat and (endpoint is not None or reads):
        try:
            examined = examine(client, baseline)
        except RefusedError as error:
            if endpoint is None:
                raise
            why = error.message
    if examined is None:
        context.note(
            "the sanity test reads what the model writes alone, since the server gives no "
            f"log-probabilities of prompts: {why}"
        )
        texts = [SanityText(prompt=PROMPTS[1], text=write(client, by_chat=by_chat))]
        examined = SanityResult(texts=texts, broken=silence(texts))
    if examined.prose_nats is not None and not examined.prose_nats <= MAX_PROSE_NATS:
        context.note(
            f"the baseline finds plain English improbable: {examined.prose_nats:.1f} nats a token, "
            "where models of English have 2 to 4. Unless it is of another language, its weights, "
            "its tokenizer or its conversion are broken, and then no gate shows anything"
        )
    return examined.model_copy(
        update={"server": runtime.server, "engine_version": runtime.engine_version}
    )


def write(client: Client, *, by_chat: bool) -> str:
    """Return a short greedy text, or thoughts if chat gives nothing else."""
    if by_chat:
        ((reply,),) = client.ask([Question("sanity", f"{PROMPTS[1]} ...")])
        return reply.text or "..." * reply.is_thought
    asked = {"model": client.model, "prompt": PROMPTS[1], "max_tokens": TOKENS, "temperature": 0}
    read = Request("completions", asked, lambda body: choice_of(body).get("text") or "")
    return str(_ask(client, read))


def examine(client: Client, baseline: list[SanityText]) -> SanityResult:
    """Return an arm's result; `baseline` has another arm's texts."""
    before = baseline if baseline and baseline[0].prompt_ids else []
    texts: list[SanityText] = []
    read: list[scores.ScoredToken] = []  # of the baseline's tokens
    own: list[scores.ScoredToken] = []  # of what it writes
    prose: float | None = None

    try:
        for number, prompt in enumerate(PROMPTS):
            asked = {"model": client.model, "prompt": prompt}
            ids = _ask(client, scores.tokenize(asked))
            if not ids:
                raise RefusedError("it gives no token ids", where="/tokenize")
            written = _ask(client, scores.generate(client.model, ids, TOKENS))
            scored = _ask(client, scores.score(client.model, ids, written.tokens))
            own += scored
            if before:
                if before[number].prompt_ids != ids:
                    return SanityResult(
                        texts=texts,
                        broken="the served model has another tokenizer than its baseline: it "
                        f"reads {ids[:8]} where that reads {before[number].prompt_ids[:8]}",
                    )
                scored = _ask(client, scores.score(client.model, ids, before[number].answer_ids))
            read += scored
            texts.append(
                SanityText(
                    prompt=prompt,
                    text=written.text,
                    prompt_ids=ids,
                    answer_ids=written.tokens,
                    nats=scores.nats(scored) if scored else None,
                )
            )
        if not baseline:
            ids = texts[0].prompt_ids
            prose = scores.nats(_ask(client, scores.score(client.model, ids[:1], ids[1:])))
    except scores.BrokenNumbersError as error:
        return SanityResult(texts=texts, broken=error.message)
    if not own or not read:
        return SanityResult(texts=texts, broken=silence([]))
    sizes = [
        (earlier.nats, len(earlier.answer_ids)) for earlier in before if earlier.nats is not None
    ]
    lost = None
    if sizes:
        then = sum(nats * size for nats, size in sizes) / sum(size for _, size in sizes)
        lost = scores.nats(read) - then
    kept = scores.share_kept(own)
    return SanityResult(
        texts=texts,
        nats=scores.nats(read),
        prose_nats=prose,
        nats_lost=lost,
        kept=kept,
        baseline_texts=[earlier.text for earlier in before],
        broken=silence(texts) or find_fault(lost, kept),
    )


def _ask(client: Client, request: Request) -> Any:
    (answer,) = client.send([request])
    return answer


def find_fault(lost: float | None, kept: float) -> str:
    """Return why a model with these figures is broken, or "".

    `lost` is in nats a token; `kept` is the share of its tokens that it chooses again.
    """
    if lost is not None and not math.isfinite(lost):
        return "the served model is broken: the baseline's text is impossible for it"
    if kept < MIN_KEPT:
        return (
            f"the served model is broken: of the tokens that it writes it chooses {100 * kept:.0f} "
            "% when it reads them"
        )
    return ""


def silence(texts: list[SanityText]) -> str:
    """Return why a model that answers so is broken, or ""."""
    said = any(answer.text.strip() for answer in texts)
    return "" if said else "the served model answers with nothing"
