"""lm-eval's client of an OpenAI-compatible endpoint: requests in flight together, with limits.

lm-eval would send generation requests of different settings, so of different seeds, one after
another. Here a batch's requests are sent together, and lm-eval retries each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from eval_gates.suites.bounded_session import BoundedSession
from pipeline.core.errors import StageError

Accepted = TypeVar("Accepted")

# Not the question's fault, so worth another try; other answers from 400 to 499 are refusals.
_PASSING_STATUSES = (408, 429)
# A model's generation_config.json may say otherwise, and vLLM would follow it.
PLAIN_SAMPLING = {
    "temperature": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class RejectedRequest(NamedTuple):
    """Reason why an endpoint does not answer such a request."""

    reason: str


@dataclass(frozen=True)
class EndpointRequest:
    """One request."""

    path: str  # after `/v1/`; with a leading slash, of the server
    body: dict[str, Any]
    read: Callable[[Any], Any]  # parses the answer's JSON; may return a RejectedRequest
    answers: int = 1  # lm-eval's requests that it answers


def accept(found: Accepted | RejectedRequest, url: str, hint: str) -> Accepted:
    """Return what is not a rejection; raise StageError for one."""
    if isinstance(found, RejectedRequest):
        raise StageError(
            f"the endpoint cannot be asked this suite: {found.reason}", where=url, hint=hint
        )
    return found


def endpoint_client(url: str, answered: Callable[[int], None]) -> Any:
    """Return a class over lm-eval's `local-completions`; a subclass makes the requests.

    Args:
        url: without `/v1`.
        answered: receives the number of lm-eval's requests just answered.
    """
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class EndpointClient(LocalCompletionsAPI):  # type: ignore[misc]
        """Sends :class:`EndpointRequest`; other messages as lm-eval does."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.sent = 0

        def send(self, requests: list[EndpointRequest]) -> list[Any]:
            """Return what each answer was read as, in the order of the requests."""
            import asyncio

            if not requests:
                return []
            found = asyncio.run(self.get_batched_requests(requests, [None] * len(requests)))
            return [answer for batch in found for answer in batch]

        async def amodel_call(
            self, session: Any, sem: Any, messages: list[Any], **settings: Any
        ) -> Any:
            self.sent += 1
            session = BoundedSession(session)
            if not isinstance(messages[0], EndpointRequest):
                answers = await super().amodel_call(session, sem, messages, **settings)
                answered(len(answers))
                return answers
            (asked,) = messages
            address = f"{url}{asked.path if asked.path[0] == '/' else f'/v1/{asked.path}'}"
            async with sem, session.post(address, json=asked.body, headers=self.header) as response:
                if 400 <= response.status < 500 and response.status not in _PASSING_STATUSES:
                    return [
                        RejectedRequest(f"it answered {response.status}: {await response.text()}")
                    ]
                response.raise_for_status()
                found = await response.json()
            answer = asked.read(found)
            if not isinstance(answer, RejectedRequest):
                answered(asked.answers)
            return [answer]

    return EndpointClient
