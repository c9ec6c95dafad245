"""lm-eval's client of an endpoint, with one request per multiple-choice question.

lm-eval scores each choice by its own prompt, which a server cannot serve from its prefix cache. If
each choice is one token, this client requests one token and the log-probabilities of the choices'
tokens (vLLM: `logprob_token_ids`). The values equal those of scored prompts, over the complete
vocabulary. Longer choices and other servers use lm-eval's requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from eval_gates.suites.chat_form import MAX_LOGPROB, PATH
from eval_gates.suites.endpoint_client import (
    PLAIN_SAMPLING,
    EndpointRequest,
    RejectedRequest,
    accept,
    endpoint_client,
)
from eval_gates.suites.generated_text import GeneratedText, finish, read_chat, read_completion
from pipeline.core.errors import StageError
from recipes.generation import ThoughtMarkers

Accepted = TypeVar("Accepted")
ScoredRequest = tuple[Any, list[int], list[int]]  # lm-eval's: its key, context, continuation
Answer = tuple[float, bool]  # lm-eval's: log-probability, whether it is the greedy choice

_CHAT_SLACK = 16  # tokens by which a server's rendering of messages may be longer than ours
OWN_SETTINGS = ("until", "max_gen_toks", "max_tokens", "do_sample", "thinking", "chat")


class OneTokenItem(NamedTuple):
    """One-token continuations of one context."""

    context: tuple[int, ...]  # token ids
    # For each of lm-eval's requests, its number and the id of its continuation.
    places: tuple[tuple[int, int], ...]


class GenerationRequest(NamedTuple):
    """One text to generate."""

    path: str  # after `/v1/`
    body: dict[str, Any]
    length: int  # tokens of prompt and answer
    stops: tuple[str, ...]
    thinking: ThoughtMarkers | None
    has_begun: bool  # the prompt ends within a thought


def one_token_items(requests: list[ScoredRequest]) -> list[OneTokenItem]:
    """Return the contexts whose continuations are one token, sorted for a prefix cache."""
    by_context: dict[tuple[int, ...], list[int]] = {}
    for number, (_, context, _) in enumerate(requests):
        by_context.setdefault(tuple(context), []).append(number)
    return [
        OneTokenItem(context, tuple((number, requests[number][2][0]) for number in numbers))
        for context, numbers in sorted(by_context.items())
        if all(len(requests[number][2]) == 1 for number in numbers)
    ]


def payload(model: str, item: OneTokenItem, seed: int) -> dict[str, Any]:
    """Return the request's body: one token, and the continuations' log-probabilities."""
    ids = sorted({token for _, token in item.places})
    return {
        "model": model,
        "prompt": list(item.context),
        "max_tokens": 1,
        "seed": seed,
        "logprobs": len(ids),  # vLLM requires it in addition to the ids
        "logprob_token_ids": ids,
        "return_tokens_as_token_ids": True,
        **PLAIN_SAMPLING,
    }


def generation_request(
    model: str,
    prompt: str,
    tokens: list[int],
    settings: Mapping[str, Any],
    *,
    limit: int,
    seed: int,
    template_arguments: Mapping[str, Any],
    special_tokens: list[str],
) -> GenerationRequest:
    """Return the request for one text.

    Args:
        prompt: rendered, also of messages that the server renders itself.
        tokens: of the prompt.
        settings: lm-eval's `generation_kwargs`, with `thinking` (markers) and `chat` (messages,
            tools).
        limit: tokens of prompt and answer together.
        special_tokens: which a server leaves out of texts, unless told otherwise.
    """
    thinking = ThoughtMarkers(**settings["thinking"]) if "thinking" in settings else None
    stops = tuple(settings.get("until") or ())
    room = settings.get("max_gen_toks", settings.get("max_tokens"))
    chat = settings.get("chat")
    if room == "model":
        room = max(1, limit - len(tokens) - (_CHAT_SLACK if chat else 0))
    body = {
        "model": model,
        **({**chat, "chat_template_kwargs": dict(template_arguments)} if chat else {}),
        **({} if chat else {"prompt": tokens}),
        "max_tokens": room,
        "seed": seed,
        **PLAIN_SAMPLING,
        **{key: value for key, value in settings.items() if key not in OWN_SETTINGS},
    }
    if thinking is None:
        body["stop"] = list(stops)
    elif any(token in thinking.start + thinking.end for token in special_tokens):
        body["skip_special_tokens"] = False
    return GenerationRequest(
        PATH if chat else "completions",
        body,
        len(tokens) + room,
        stops,
        thinking,
        thinking is not None and prompt.rstrip().endswith(thinking.start),
    )


def read_answer(body: Any, item: OneTokenItem) -> dict[int, Answer] | RejectedRequest:
    """Return answers by the number of lm-eval's request; a rejection if a token is missing."""
    try:
        scored = body["choices"][0]["logprobs"]
        found = {str(token): float(value) for token, value in scored["top_logprobs"][0].items()}
        best = float(scored["token_logprobs"][0])
        values = [(number, found[f"token_id:{token}"]) for number, token in item.places]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return RejectedRequest("its answer lacks the log-probabilities of the tokens asked for")
    return {number: (value, value >= best) for number, value in values}


def read_scored(
    body: Any, prompts: list[list[int]], lengths: list[int]
) -> list[Answer] | RejectedRequest:
    """Return the log-probability of each scored prompt's continuation, or a rejection."""
    try:
        choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
        return [
            _read_continuation(choice["logprobs"], len(prompt), length)
            for choice, prompt, length in zip(choices, prompts, lengths, strict=True)
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return RejectedRequest("its answer lacks the log-probabilities of the prompt's tokens")


def _read_continuation(scored: dict[str, Any], end: int, begin: int) -> Answer:
    values, tops = scored["token_logprobs"], scored["top_logprobs"]
    if not end <= len(values) == len(tops) <= end + 1:
        raise ValueError(f"{len(values)} log-probabilities of {end} tokens")
    found = [float(value) for value in values[begin:end]]
    best = [float(max(top.values())) for top in tops[begin:end]]
    return sum(found), all(value >= top for value, top in zip(found, best, strict=True))


def read_generated(
    body: Any, asked: GenerationRequest, special_tokens: list[str]
) -> GeneratedText | RejectedRequest:
    """Return the generated text; a rejection if the answer has none."""
    try:
        found = (read_chat if asked.path == PATH else read_completion)(body)
    except ValueError as error:
        return RejectedRequest(str(error))
    return finish(
        found,
        asked.stops,
        asked.thinking,
        has_begun=asked.has_begun,
        special_tokens=special_tokens if "skip_special_tokens" in asked.body else (),
    )


def special_texts(tokenizer: Any) -> list[str]:
    """Return the texts of the tokens that a server leaves out of its answers.

    `all_special_tokens` lacks those without a role, such as gpt-oss's `<|channel|>`.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = [*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)]
    return list(dict.fromkeys(filter(None, texts)))


def check_fit(lengths: list[int], limit: int) -> None:
    """Raise StageError if a prompt with its answer is too long; lm-eval would cut it."""
    too_long = [length for length in lengths if length > limit]
    if too_long:
        raise StageError(
            f"{len(too_long)} of {len(lengths)} questions are too long: with the answer, the "
            f"longest has {max(too_long)} tokens, and {limit} fit",
            hint="raise max-model-len in the profile, or lower num_fewshot or max_tokens in the "
            "policy",
        )


def render_chat(tokenizer: Any, messages: list[Any], **settings: Any) -> str:
    """Return the prompt of the messages; StageError if the chat template refuses them."""
    from jinja2 import TemplateError

    try:
        prompt: str = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    except TemplateError as error:
        roles = ", ".join(dict.fromkeys(str(message.get("role")) for message in messages))
        raise StageError(
            f"the chat template refuses messages of {roles}: {error}"[:300],
            hint="take 'prompt_format: completion' for this suite, or another template",
        ) from error
    return prompt


def check_numbers(values: list[float]) -> None:
    """Raise StageError if a value is no log-probability."""
    wrong = [value for value in values if not value <= MAX_LOGPROB]  # NaN, too
    if wrong:
        raise StageError(
            f"the endpoint gave {len(wrong)} of {len(values)} choices a log-probability of "
            f"{wrong[0]:g}, which is none",
            hint="the served model is broken, or the endpoint does not speak as OpenAI's does",
        )


def completions_model(
    *,
    url: str,
    model: str,
    tokenizer: str,
    trust_remote_code: bool,
    concurrency: int,
    max_length: int,
    timeout_seconds: int,
    answered: Callable[[int], None],
    note: Callable[[str], None],
    asks_once: bool = True,
    template_arguments: Mapping[str, Any] | None = None,
) -> Any:
    """Return an lm-eval model (`lm=` of its `evaluate`) for an OpenAI-compatible endpoint.

    Its methods raise StageError if a prompt is too long, or a value is no log-probability.

    Args:
        url: without `/v1/completions`.
        max_length: tokens that the server accepts, prompt and answer together.
        answered: receives the number of lm-eval's requests just answered.
        template_arguments: of the chat template.
    """
    place = f"{url}/v1/completions"
    for_template = dict(template_arguments or {})

    def accepted(found: Accepted | RejectedRequest) -> Accepted:
        return accept(
            found,
            place,
            "serve the model with a server that gives them, such as vLLM; suites of generated text "
            "need texts and their number of tokens alone",
        )

    base: Any = endpoint_client(url, answered)

    class OneRequestCompletions(base):  # type: ignore[misc]
        """`local-completions` with one request per item if possible."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            # Whether the endpoint can; None: not tried yet.
            self._asks_once: bool | None = None if asks_once else False
            self._counts = {"one_request": 0, "scored": 0, "fallen_back": 0}
            self._special = special_texts(self.tokenizer)

        @staticmethod
        def parse_logprobs(
            outputs: Any, tokens: Any = None, ctxlens: Any = None, **_: Any
        ) -> list[Answer]:
            return accepted(read_scored(outputs, tokens, ctxlens))

        def statistics(self) -> dict[str, int]:
            """Count the requests sent, and items (contexts) by way."""
            return {"requests": self.sent, **self._counts}

        def _loglikelihood_tokens(
            self, requests: list[ScoredRequest], **settings: Any
        ) -> list[Answer]:
            lengths: dict[tuple[int, ...], int] = {}
            for _, context, continuation in requests:
                length = len(context) + len(continuation)
                lengths[tuple(context)] = max(length, lengths.get(tuple(context), 0))
            check_fit(list(lengths.values()), self.max_length)
            items = one_token_items(requests)
            answers = self._ask_once(items)
            rest = [number for number in range(len(requests)) if number not in answers]
            contexts = {tuple(requests[number][1]) for number in rest}
            self._counts["scored"] += len(contexts)
            self._counts["fallen_back"] += sum(item.context in contexts for item in items)
            if rest:
                scored = super()._loglikelihood_tokens([requests[n] for n in rest], **settings)
                answers.update(zip(rest, scored, strict=True))
            check_numbers([value for value, _ in answers.values()])
            return [answers[number] for number in range(len(requests))]

        def generate_until(
            self, requests: list[Any], disable_tqdm: bool = False
        ) -> list[GeneratedText]:
            prompts = [self._prompt(*request.args) for request in requests]
            different = list(dict.fromkeys(prompts))
            tokens = dict(zip(different, self.tok_encode(different), strict=True))
            asked = [
                generation_request(
                    self.model,
                    prompt,
                    tokens[prompt],
                    request.args[1],
                    limit=self.max_length,
                    seed=self._seed,
                    template_arguments=for_template,
                    special_tokens=self._special,
                )
                for request, prompt in zip(requests, prompts, strict=True)
            ]
            check_fit([each.length for each in asked], self.max_length)
            return [
                accepted(found)
                for found in self.send(
                    [
                        EndpointRequest(
                            each.path,
                            each.body,
                            partial(read_generated, asked=each, special_tokens=self._special),
                        )
                        for each in asked
                    ]
                )
            ]

        def apply_chat_template(
            self, chat_history: list[Any], add_generation_prompt: bool = True, **settings: Any
        ) -> str:
            return render_chat(
                self.tokenizer,
                chat_history,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **settings,
                **for_template,
            )

        def _prompt(self, prompt: str, settings: dict[str, Any]) -> str:
            chat = settings.get("chat")
            if chat is None:
                return prompt
            return self.apply_chat_template(chat["messages"], tools=chat.get("tools"))

        def _ask_once(self, items: list[OneTokenItem]) -> dict[int, Answer]:
            if not items or self._asks_once is False:
                return {}
            found: list[dict[int, Answer] | RejectedRequest] = []
            if self._asks_once is None:
                # One item alone shows whether the endpoint can; not every one has to be refused.
                found = self._send(items[:1])
                self._asks_once = not isinstance(found[0], RejectedRequest)
                if isinstance(found[0], RejectedRequest):
                    note(
                        "the endpoint does not give the log-probabilities of chosen tokens "
                        f"({found[0].reason}): every choice is scored by its own request"
                    )
                    return {}
            found += self._send(items[len(found) :])
            known = [answer for answer in found if not isinstance(answer, RejectedRequest)]
            self._counts["one_request"] += len(known)
            return {number: value for answer in known for number, value in answer.items()}

        def _send(self, items: list[OneTokenItem]) -> list[Any]:
            found: list[Any] = self.send(
                [
                    EndpointRequest(
                        "completions",
                        payload(self.model, item, self._seed),
                        partial(read_answer, item=item),
                        answers=len(item.places),
                    )
                    for item in items
                ]
            )
            return found

    return OneRequestCompletions(
        model=model,
        base_url=place,
        tokenizer_backend="huggingface",
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        num_concurrent=max(2, concurrency),  # below 2 lm-eval takes another way
        max_length=max_length,
        timeout=timeout_seconds,
        max_retries=3,
    )
