"""Client of an OpenAI-compatible endpoint.

Choices of one token each are one request (vLLM: `logprob_token_ids`), others are prompts' ends. A
chat API writes its choice. The first answered request shows which fields the endpoint accepts.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

from eval_gates import replies
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.reply_forms import find_error
from eval_gates.rows import Question, Reply, sample_seed
from eval_gates.token_budget import TokenBudget
from eval_gates.written_choice import find_choice
from prepare.credentials import restore_credentials
from prepare.errors import StageError
from prepare.untrusted import MEBIBYTE, parse_json
from recipes.generation import ThoughtMarkers

CHAT = "chat/completions"  # after `/v1/`
SEED = 1234  # of requests that draw nothing
# vLLM would follow the model's generation_config.json.
PLAIN_SAMPLING = {
    "temperature": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# Fields that OpenAI's chat API lacks, with neutral values.
EXTENSIONS = {"repetition_penalty": 1.0, "top_k": 0, "min_p": 0.0, "chat_template_kwargs": {}}
FORMS = tuple(
    (length, extended)
    for length in ("max_tokens", "max_completion_tokens")
    for extended in (True, False)
)
"""Forms of chat requests, the richest first: the field of an answer's length, and whether the
fields that OpenAI's API lacks are sent."""
# The log-probabilities of a prompt of 100,000 tokens are 10 MB.
MAX_BYTES = 16 * MEBIBYTE
TRIES = 3
PATIENCE_S = 600  # that one request waits, where the endpoint says how long
TIMEOUT_S = 1800.0  # of one request
CHOICE_TOKENS = 16  # of a choice that is written, unless the model thinks
THINKING_TOKENS = 4096  # of one that is thought about, where the policy has no number
_MAX_REASON = 2000  # characters of an error answer
_CHAT_SLACK = 16  # tokens by which a server's rendering of messages may be longer than ours
_PASSING_STATUSES = (408, 429)  # not the question's fault, so worth another try
_NOT_IMPLEMENTED = 501
_OWN_SETTINGS = ("until", "max_gen_toks", "max_tokens", "do_sample", "thinking", "samples")
_NAMED = (0.0, True)
_NOT_NAMED = (-1e3, False)
Settings = Mapping[str, Any]
"""`until`, `max_gen_toks` (tokens, or 'model'), `samples`, sampling, and `thinking` (markers)."""


class RefusedError(StageError):
    """The endpoint does not support such a request."""


class UnansweredError(StageError):
    """The endpoint does not answer; it may have ended."""


class RateLimitError(UnansweredError):
    """The endpoint asks to wait for too long; it has not ended."""


class TooLongError(StageError):
    """The engine ended over the logits of prompts that it computes together."""


class _RejectedRequestError(Exception):
    """A request that the endpoint refuses, about `name` if that is known."""

    def __init__(self, words: str, name: str = "") -> None:
        super().__init__(words)
        self.name = name


class _FailedRequestError(Exception):
    """Failed request that may succeed when it is sent again, after `wait_s` if not None."""

    def __init__(self, words: str, wait_s: float | None = None) -> None:
        super().__init__(words)
        self.wait_s = wait_s


# A template may raise an error about the roles or calls of one conversation alone.
_OTHER_LINE = (
    "where the chat template cannot render that conversation, change it or leave it out; otherwise "
)
_OTHER_SERVER = (
    "serve the model with a server that offers this, such as vLLM; with its chat API alone take "
    "--api chat; a prompt may be too long; settings of sampling may be unknown to it; tool calls "
    "need its parser (vLLM: --enable-auto-tool-choice --tool-call-parser NAME); suites of "
    "generated text need no log-probabilities"
)


class Request(NamedTuple):
    """One request."""

    path: str  # after `/v1/`, unless it begins with a slash
    body: dict[str, Any]  # of chat requests in the richest form
    read: Callable[[Any], Any]  # parses the answer's JSON; ValueError if it lacks a part
    length: int = 0  # tokens of prompt and answer
    name: str = ""  # of a conversation that a template renders, for messages


class Client:
    """Asks one endpoint the questions of one suite.

    `url` has no `/v1`. `max_length` counts prompt and answer. `tokenizer` is None for the chat API
    alone. Our server's `socket` gets no key. With `asks_once` one request has all choices.
    """

    def __init__(
        self,
        url: str,
        model: str,
        settings: Settings,
        *,
        concurrency: int = 1,
        max_length: int = 0,
        tokenizer: Tokenizer | None = None,
        answered: Callable[[int], None] = lambda questions: None,
        note: Callable[[str], None] = lambda text: None,
        by_chat: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        is_chat: bool = False,
        socket: str | None = None,
        asks_once: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._url = url
        self.model = model
        self._settings = settings
        self._concurrency = max(1, concurrency)
        self.max_length = max_length
        self._tokenizer = tokenizer
        self.by_chat = by_chat
        self._is_chat = is_chat
        self._template_arguments = dict(template_arguments or {})
        self._socket = socket
        self.answered = answered
        self._note = note
        self._timeout_s = timeout_s
        # Whether the endpoint gives chosen tokens' log-probabilities; None: not tried yet.
        self._asks_once: bool | None = None if asks_once else False
        self._forms: Sequence[tuple[str, bool]] = FORMS
        self._special = tokenizer.special_texts() if tokenizer else []
        self._paused_until = 0.0  # of the event loop's clock
        self.counts = {"requests": 0, "one_request": 0, "scored": 0, "fallen_back": 0}

    def render(self, messages: Sequence[Any], **settings: Any) -> str:
        """Return a prompt, or JSON for an endpoint that renders itself."""
        if self._tokenizer is not None:
            return self._tokenizer.render(messages, **settings)
        if settings.get("continue_final_message"):
            raise self._refusal("an answer that the task itself begins (gen_prefix)")
        return json.dumps(list(messages), ensure_ascii=False)

    def shown(self, question: Question) -> str:
        """Return a question's text as the model reads it."""
        if question.messages:
            tools = question.server.get("tools")
            return self.render(question.messages, **({"tools": tools} if tools else {}))
        if self._is_chat and not question.is_rendered and not question.continuations:
            return self.render([{"role": "user", "content": question.prompt}])
        return question.prompt

    def ask(self, questions: Sequence[Question]) -> list[list[Reply]]:
        """Return the replies to each question, in order.

        StageError if a prompt is too long, or the endpoint does not answer.
        """
        return self._run(self._ask(questions))

    def send(self, requests: Sequence[Request], *, tokens_in_flight: int = 0) -> list[Any]:
        """Return what is read of the answers, in order.

        `tokens_in_flight` bounds the sum of the lengths of requests that are under way together; a
        longer one goes alone. With 1 they go one after the other; 0: no bound.
        """

        async def send_all() -> list[Any]:
            budget = TokenBudget(tokens_in_flight)

            async def send_within_budget(request: Request) -> Any:
                async with budget.take(request.length):
                    return await self._send(request)

            async with self._open():
                return await _gather([send_within_budget(request) for request in requests])

        return self._run(send_all())

    def _run(self, requests: Any) -> list[Any]:
        try:
            results: list[Any] = asyncio.run(requests)
        except _RejectedRequestError as error:
            what = f"about '{error.name}'" if error.name else "this suite"
            raise RefusedError(
                f"the endpoint cannot be asked {what}: {error}",
                where=self._url,
                hint=f"{_OTHER_LINE}{_OTHER_SERVER}" if error.name else _OTHER_SERVER,
            ) from error
        return results

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        import httpx

        limits = httpx.Limits(max_connections=self._concurrency)
        transport = httpx.AsyncHTTPTransport(uds=self._socket, limits=limits)
        async with httpx.AsyncClient(
            transport=transport, timeout=self._timeout_s, follow_redirects=False, trust_env=False
        ) as self._client:
            self._slots = asyncio.Semaphore(self._concurrency)
            yield

    async def _ask(self, questions: Sequence[Question]) -> list[list[Reply]]:
        async with self._open():
            chosen = [n for n, question in enumerate(questions) if question.continuations]
            written = [n for n, question in enumerate(questions) if not question.continuations]
            replies = dict(
                zip(chosen, await self._choose([questions[n] for n in chosen]), strict=True)
            )
            made = [self.requests_of(questions[n]) for n in written]
            self._check_fit([request.length for requests in made for request in requests])
            texts = await _gather([self._answered(map(self._send, requests)) for requests in made])
            replies.update(zip(written, texts, strict=True))
        return [replies[number] for number in range(len(questions))]

    async def _answered(self, work: Any) -> list[Any]:
        answers = await _gather(list(work))
        self.answered(1)
        return answers

    def requests_of(self, question: Question) -> list[Request]:
        """Return a request per sample."""
        settings = {**self._settings, **question.generate}
        samples = int(settings.get("samples", 1))
        is_drawn = samples > 1 or bool(settings.get("do_sample"))
        return [
            self._request(question, settings, sample_seed(question.id, n) if is_drawn else SEED)
            for n in range(samples)
        ]

    def _request(self, question: Question, settings: Settings, seed: int) -> Request:
        thinking = ThoughtMarkers(**settings["thinking"]) if "thinking" in settings else None
        stops = tuple(settings.get("until") or ())
        room = settings.get("max_gen_toks", settings.get("max_tokens"))
        sent = {key: value for key, value in settings.items() if key not in _OWN_SETTINGS}
        body = {"model": self.model, "seed": seed, **PLAIN_SAMPLING, **sent}
        # A stop string could end the thoughts, so the endpoint gets none.
        if thinking is None and (stops or not self.by_chat):
            body["stop"] = list(stops)
        has_begun = False
        special = list[str]()
        tokens = list[int]()
        is_messages = self.by_chat or bool(question.messages)
        if not self.by_chat:
            prompt = self.shown(question)
            tokens = self._encode(prompt)
            if room == "model":
                room = max(1, self.max_length - len(tokens) - _CHAT_SLACK * is_messages)
            if thinking and any(token in thinking.start + thinking.end for token in self._special):
                body["skip_special_tokens"] = False
                special = self._special
            has_begun = thinking is not None and prompt.rstrip().endswith(thinking.start)
        if room != "model":
            body["max_tokens"] = room
        if is_messages:
            body |= {"messages": self._messages(question), **question.server}
            body["chat_template_kwargs"] = self._template_arguments
        else:
            body["prompt"] = tokens

        def read(answer: Any) -> Reply:
            parse = replies.read_chat if is_messages else replies.read_completion
            reply, reasoning = parse(answer)
            if self.by_chat and isinstance(room, int) and reply.tokens > room:
                raise ValueError(f"it gives {reply.tokens} tokens where {room} are the limit")
            return replies.finish(
                reply, reasoning, stops, thinking, has_begun=has_begun, special_tokens=special
            )

        length = len(tokens) + (room if isinstance(room, int) else 0)
        path = CHAT if is_messages else "completions"
        return Request(path, body, read, length, question.id if question.messages else "")

    def _messages(self, question: Question) -> list[Any]:
        if question.messages:
            return list(question.messages)
        if question.is_rendered:
            return list(json.loads(question.prompt))  # noqa: TID251
        return [{"role": "user", "content": question.prompt}]

    async def _choose(self, questions: Sequence[Question]) -> list[list[Reply]]:
        if self.by_chat:
            work = [self._answered([self._write_choice(one)]) for one in questions]
            return await _gather(work)
        pairs = [self._pairs(question) for question in questions]
        self._check_fit([max(len(c) + len(t) for c, t in one) for one in pairs])
        order = sorted(range(len(pairs)), key=lambda n: pairs[n][0][0])  # for a prefix cache
        chosen: dict[int, list[Reply]] = {}
        single = [n for n in order if _is_one_token(pairs[n])]
        if single and self._asks_once is None:
            # One item shows whether the endpoint can.
            try:
                chosen[single[0]] = await self._choose_once(pairs[single[0]])
                self._asks_once = True
            except _RejectedRequestError as error:
                self._asks_once = False
                self._note(
                    "the endpoint does not give the log-probabilities of chosen tokens "
                    f"({error}): every choice is scored by its own request"
                )
        if self._asks_once:
            rest = [n for n in single if n not in chosen]
            once = await _gather([self._choose_once(pairs[n]) for n in rest])
            chosen.update(zip(rest, once, strict=True))
        rest = [n for n in order if n not in chosen]
        self.counts["one_request"] += len(chosen)
        self.counts["scored"] += len(rest)
        self.counts["fallen_back"] += len(set(rest) & set(single))
        scored = await _gather([self._score(pairs[n]) for n in rest])
        chosen.update(zip(rest, scored, strict=True))
        return [chosen[number] for number in range(len(questions))]

    def _pairs(self, question: Question) -> list[tuple[list[int], list[int]]]:
        contexts = question.contexts or [question.prompt] * len(question.continuations)
        if self._tokenizer is None:
            raise self._refusal("log-probabilities without a tokenizer")
        return [
            self._tokenizer.encode_pair(context, continuation)
            for context, continuation in zip(contexts, question.continuations, strict=True)
        ]

    async def _choose_once(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Reply]:
        tokens = [tail[0] for _, tail in pairs]
        body = choice_body(self.model, pairs[0][0], tokens)
        read = partial(replies.read_chosen, tokens=tokens)
        (values,) = await self._answered([self._send(Request("completions", body, read))])
        return [Reply(values=_checked(values))]

    async def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Reply]:
        requests = [
            Request(
                "completions",
                {
                    "model": self.model,
                    "prompt": context + tail,
                    "max_tokens": 1,
                    "temperature": 0,
                    "logprobs": 1,
                    "echo": True,
                    "seed": SEED,
                },
                partial(replies.read_scored, prompt=len(context + tail), begin=len(context)),
            )
            for context, tail in pairs
        ]
        return [Reply(values=_checked(await self._answered(map(self._send, requests))))]

    async def _write_choice(self, question: Question) -> Reply:
        choices = [continuation.strip() for continuation in question.continuations]
        if question.contexts or any(len(choice.split()) != 1 for choice in choices):
            raise self._refusal(f"a choice of several words: {choices[0][:60]!r}")
        thinks = "thinking" in self._settings
        room = self._settings.get("max_gen_toks") or THINKING_TOKENS if thinks else CHOICE_TOKENS
        messages = self._messages(question)
        wanted = f"\n\nAnswer with one of these and nothing else: {', '.join(choices)}"
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + wanted}
        settings = {**self._settings, "until": [], "max_gen_toks": room, "samples": 1}
        asked = Question(question.id, messages=tuple(messages))
        reply: Reply = await self._send(self._request(asked, settings, SEED))
        is_read = not (thinks and reply.is_unfinished)
        chosen = find_choice(reply.text, choices) if is_read else None
        values = [_NAMED if n == chosen else _NOT_NAMED for n in range(len(choices))]
        return replace(reply, calls=(), values=tuple(values), is_named=True)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise self._refusal("text completions without a tokenizer")
        return self._tokenizer.encode(text)

    def _check_fit(self, lengths: Sequence[int]) -> None:
        """Raise StageError for a length that a server could cut."""
        too_long = [length for length in lengths if length > self.max_length]
        if too_long and not self.by_chat:
            raise StageError(
                f"{len(too_long)} of {len(lengths)} questions are too long: with the answer, the "
                f"longest has {max(too_long)} tokens, and {self.max_length} fit",
                hint="serve more tokens (max-model-len), or lower num_fewshot or max_tokens in "
                "the policy",
            )

    async def _send(self, request: Request) -> Any:
        if not (self.by_chat and request.path == CHAT):
            return await self._try_often(request)
        refused: _RejectedRequestError | None = None
        for form in self._forms:
            body = _in_form(request.body, *form)
            if body is not None:
                try:
                    answer = await self._try_often(request._replace(body=body))
                except _RejectedRequestError as error:
                    refused = refused or error
                else:
                    self._forms = (form,)
                    return answer
        raise refused or _RejectedRequestError("it takes no form of requests with these settings")

    async def _try_often(self, request: Request) -> Any:
        tries = 0
        waited_s = 0.0
        while True:
            try:
                async with self._slots:
                    await self._wait_for_rate()
                    self.counts["requests"] += 1
                    return await self._send_once(request)
            except _FailedRequestError as error:
                if error.wait_s is None:
                    tries += 1
                else:
                    waited_s += error.wait_s
                if tries == TRIES or waited_s > PATIENCE_S:
                    raise self._unanswered(request, error) from error
                if error.wait_s is not None:
                    self._limit_rate(error)
                    continue
            await asyncio.sleep(2 ** (tries - 1))

    def _unanswered(self, request: Request, error: _FailedRequestError) -> UnansweredError:
        kind = UnansweredError
        if error.wait_s is None:
            what = f"after {TRIES} requests"
            hint = "read the server's log"
        else:
            kind = RateLimitError
            what = f"and asks to wait {error.wait_s:,.0f} s (at most {PATIENCE_S:,} s are waited)"
            hint = "raise its limit of requests, or run the same command again later"
        return kind(
            f"the endpoint does not answer a question, {what}: {error}",
            where=f"{self._url}{_address(request)}",
            hint=hint,
        )

    def _limit_rate(self, error: _FailedRequestError) -> None:
        """Delay all requests, as the endpoint asks."""
        if not self._paused_until:
            self._note(f"the endpoint limits the rate of requests, and is waited for ({error})")
        until = asyncio.get_running_loop().time() + (error.wait_s or 0)
        self._paused_until = max(self._paused_until, until)

    async def _wait_for_rate(self) -> None:
        wait_s = self._paused_until - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _send_once(self, request: Request) -> Any:
        import httpx

        key = "" if self._socket else os.environ.get("OPENAI_API_KEY", "")
        headers = {
            "Authorization": f"Bearer {key}".strip(),
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        address = restore_credentials(self._url) + _address(request)
        try:
            async with (
                asyncio.timeout(self._timeout_s),  # a server that sends a byte a minute has no end
                self._client.stream(
                    "POST", address, content=json.dumps(request.body), headers=headers
                ) as response,
            ):
                received = await _receive(response)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise _FailedRequestError(f"{type(error).__name__} {error}".strip()) from error
        status = response.status_code
        said = received[:_MAX_REASON].decode(errors="replace")
        is_fault = 400 <= status < 500 or status == _NOT_IMPLEMENTED
        if is_fault and status not in _PASSING_STATUSES:
            raise _RejectedRequestError(f"it answered {status}: {said}", request.name)
        if status >= 400:
            wait_s = seconds_to_wait(response.headers.get("Retry-After"))
            raise _FailedRequestError(f"it answered {status}: {said}", wait_s)
        try:
            # NaN is read here and refused below with its cause: a broken model.
            body = parse_json(received, whole_text=False, finite=False)
        except ValueError as error:
            raise _FailedRequestError(f"it did not answer JSON: {error}") from error
        _check_no_error(body)
        try:
            return request.read(body)
        except ValueError as error:
            raise _RejectedRequestError(str(error), request.name) from error

    def _refusal(self, what: str) -> StageError:
        return StageError(
            f"the endpoint cannot be asked for {what}",
            where=self._url,
            hint="serve the model where text completions are offered, or choose another suite",
        )


def choice_body(model: str, context: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """Return the request of these tokens' log-probabilities."""
    ids = sorted(set(tokens))
    return {
        "model": model,
        "prompt": list(context),
        "max_tokens": 1,
        "seed": SEED,
        "logprobs": len(ids),  # vLLM requires it in addition to the ids
        "logprob_token_ids": ids,
        "return_tokens_as_token_ids": True,
        **PLAIN_SAMPLING,
    }


def seconds_to_wait(retry_after: str | None) -> float | None:
    """Return the seconds of a header Retry-After, at least 1; None if it has neither of its forms.

    It is a number, or a date (RFC 9110, 10.2.3).
    """
    text = (retry_after or "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return max(1.0, float(text))
    try:
        date = parsedate_to_datetime(text)
        return max(1.0, date.timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def _check_no_error(body: Any) -> None:
    """Raise for an error that a gateway gave with status 200."""
    if (error := find_error(body)) is not None:
        words, code = error
        said = f"it answered 200 with an error: {words[:_MAX_REASON]}"
        if code is not None and 400 <= code < 500 and code not in _PASSING_STATUSES:
            raise _RejectedRequestError(said)
        raise _FailedRequestError(said)


def _address(request: Request) -> str:
    return request.path if request.path.startswith("/") else f"/v1/{request.path}"


def _in_form(body: Mapping[str, Any], length: str, extended: bool) -> dict[str, Any] | None:
    """Return a chat request in one of :data:`FORMS`, if without loss."""
    kept = {"max_tokens": length}
    sent = {kept.get(key, key): value for key, value in body.items()}
    if not extended and any(sent.get(key, same) != same for key, same in EXTENSIONS.items()):
        return None
    unsent = {"chat_template_kwargs"} if not body.get("chat_template_kwargs") else set()
    unsent |= set() if extended else EXTENSIONS.keys()
    return {key: value for key, value in sent.items() if key not in unsent}


def _is_one_token(pairs: Sequence[tuple[list[int], list[int]]]) -> bool:
    return all(len(tail) == 1 and context == pairs[0][0] for context, tail in pairs)


def _checked(values: Sequence[tuple[float, bool]]) -> tuple[tuple[float, bool], ...]:
    wrong = [value for value, _ in values if not value <= replies.MAX_LOGPROB]  # NaN, too
    if wrong:
        raise StageError(
            f"the endpoint gave {len(wrong)} of {len(values)} choices a log-probability of "
            f"{wrong[0]:g}, which is none",
            hint="the served model is broken, or the endpoint does not speak as OpenAI's does",
        )
    return tuple(values)


async def _receive(response: Any) -> bytes:
    """Return an answer of at most :data:`MAX_BYTES`, or raise _FailedRequestError."""
    if 300 <= response.status_code < 400:
        raise _FailedRequestError(f"it answered {response.status_code}: redirects are not followed")
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise _FailedRequestError(f"its answer is compressed ({encoding[:20]!a})")
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > MAX_BYTES:
            raise _FailedRequestError(f"its answer is larger than {MAX_BYTES:,} bytes")
    return bytes(content)


async def _gather(work: Sequence[Any]) -> list[Any]:
    """Return the results in order; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
