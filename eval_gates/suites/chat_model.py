"""lm-eval's client of a chat-only endpoint, which applies its own template and tokenizer.

A prompt in the chat format is its messages; any other prompt is one user message. Each question of
multiple choice is one request for the most likely first tokens (`chat_form.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from eval_gates.suites.chat_form import PATH, ChatForm, read_choices
from eval_gates.suites.completions_model import OWN_SETTINGS
from eval_gates.suites.endpoint_client import (
    EndpointRequest,
    RejectedRequest,
    accept,
    endpoint_client,
)
from eval_gates.suites.generated_text import GeneratedText, finish, read_chat
from pipeline.core.errors import StageError
from recipes.generation import ThoughtMarkers


class ChatPrompt(str):
    """Messages as JSON, which lm-eval takes for a prompt."""


def chat_of(prompt: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prompt's messages; those of the settings, and tools, if there are some."""
    if "chat" in settings:
        return dict(settings["chat"])
    if isinstance(prompt, ChatPrompt):
        return {"messages": json.loads(prompt)}
    return {"messages": [{"role": "user", "content": prompt}]}


def generation_request(
    form: ChatForm,
    model: str,
    prompt: str,
    settings: Mapping[str, Any],
    *,
    seed: int,
    template_arguments: Mapping[str, Any],
) -> EndpointRequest:
    """Return the request for one text, by lm-eval's `generation_kwargs`.

    The endpoint has no stop strings where the model thinks: they could end its thoughts.
    """
    thinking = ThoughtMarkers(**settings["thinking"]) if "thinking" in settings else None
    stops = tuple(settings.get("until") or ())
    room = settings.get("max_gen_toks", settings.get("max_tokens"))
    sent = {key: value for key, value in settings.items() if key not in OWN_SETTINGS}
    if thinking is None and stops:
        sent["stop"] = list(stops)
    body = form.body(
        model,
        chat_of(prompt, settings),
        max_tokens=None if room == "model" else room,
        seed=seed,
        settings=sent,
        template_arguments=template_arguments,
    )
    return EndpointRequest(PATH, body, partial(_read_text, stops, thinking))


def _read_text(
    stops: tuple[str, ...], thinking: ThoughtMarkers | None, body: Any
) -> GeneratedText | RejectedRequest:
    try:
        return finish(read_chat(body), stops, thinking)
    except ValueError as error:
        return RejectedRequest(str(error))


def chat_model(
    *,
    url: str,
    model: str,
    form: ChatForm,
    concurrency: int,
    timeout_seconds: int,
    answered: Callable[[int], None],
    template_arguments: Mapping[str, Any] | None = None,
) -> Any:
    """Return an lm-eval model (`lm=` of its `evaluate`) for an endpoint's chat API.

    Its methods raise StageError if the endpoint rejects a request.

    Args:
        url: without `/v1`.
        answered: receives the number of lm-eval's requests just answered.
        template_arguments: of the chat template.
    """
    place = f"{url}/v1/{PATH}"
    base: Any = endpoint_client(url, answered)
    for_template = dict(template_arguments or {})

    def accepted(found: Any) -> Any:
        hint = "read its message: a prompt may be too long, or a field of the request unknown to it"
        return accept(found, place, hint)

    def refuse(what: str) -> StageError:
        return StageError(
            f"the chat API cannot be asked for {what}",
            where=place,
            hint="serve the model where text completions are offered, or choose another suite",
        )

    class ChatModel(base):  # type: ignore[misc]
        """All requests by messages."""

        def statistics(self) -> dict[str, int]:
            """Count the requests sent."""
            return {"requests": self.sent}

        def loglikelihood(
            self, requests: list[Any], disable_tqdm: bool = False
        ) -> list[tuple[float, bool]]:
            by_prompt: dict[str, list[int]] = {}
            for number, request in enumerate(requests):
                if len(request.args[1].split()) > 1:
                    raise refuse(f"a choice of several words: {request.args[1].strip()[:60]!r}")
                by_prompt.setdefault(request.args[0], []).append(number)
            groups = sorted(by_prompt.items())  # for a prefix cache
            found = self.send(
                [
                    EndpointRequest(
                        PATH,
                        form.choice_body(
                            self.model, chat_of(prompt, {})["messages"], self._seed, for_template
                        ),
                        partial(
                            read_choices, choices=[requests[number].args[1] for number in numbers]
                        ),
                        answers=len(numbers),
                    )
                    for prompt, numbers in groups
                ]
            )
            answers = {
                number: value
                for (_, numbers), values in zip(groups, found, strict=True)
                for number, value in zip(numbers, accepted(values), strict=True)
            }
            return [answers[number] for number in range(len(requests))]

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            raise refuse("the log-probability of a whole text")

        def generate_until(
            self, requests: list[Any], disable_tqdm: bool = False
        ) -> list[GeneratedText]:
            asked = [
                generation_request(
                    form,
                    self.model,
                    *request.args,
                    seed=self._seed,
                    template_arguments=for_template,
                )
                for request in requests
            ]
            return [accepted(found) for found in self.send(asked)]

        def apply_chat_template(
            self, chat_history: list[Any], add_generation_prompt: bool = True
        ) -> ChatPrompt:
            if not add_generation_prompt:
                raise refuse("an answer that the task itself begins (gen_prefix)")
            return ChatPrompt(json.dumps(chat_history, ensure_ascii=False))

    return ChatModel(
        model=model,
        base_url=place,
        tokenizer_backend=None,
        num_concurrent=max(2, concurrency),  # below 2 lm-eval takes another way
        timeout=timeout_seconds,
        max_retries=3,
    )
