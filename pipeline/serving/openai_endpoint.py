"""An OpenAI-compatible endpoint that someone else serves."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.checkpoint.folder import MAX_CONTEXT
from pipeline.core.errors import ServingError
from pipeline.core.process_environment import ENDPOINT_KEY

if TYPE_CHECKING:
    from pipeline.core.bounded_http import HttpResponse

# Of an endpoint that does not say how long its prompts may be; vLLM's does.
DEFAULT_MAX_LENGTH = 4096
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class OpenAIEndpoint:
    """Where a model answers."""

    url: str  # without the `/v1` at its end
    model: str = ""  # as the endpoint calls it; "" for the only one that it serves
    max_length: int = DEFAULT_MAX_LENGTH  # tokens that a prompt and its answer may have together

    @classmethod
    def from_url(cls, url: str, model: str | None) -> OpenAIEndpoint:
        """The endpoint at a URL as users write it, with or without `/v1`."""
        return cls(url.rstrip("/").removesuffix("/v1"), model or "")

    def resolve_model(self) -> OpenAIEndpoint:
        """With the model's name and limit as the endpoint gives them.

        Raises:
            ServingError: it does not answer, or does not serve that model, or serves several.
        """
        served = self._models()
        known = ", ".join(sorted(served)[:20]) or "none"
        if self.model and self.model not in served:
            raise ServingError(
                f"the endpoint does not serve the model '{self.model}'",
                where=self.url,
                hint=f"it serves: {known}",
            )
        if not self.model and len(served) != 1:
            raise ServingError(
                f"the endpoint serves {len(served)} models",
                where=self.url,
                hint="name one with --baseline-model or --candidate-model; it serves: " + known,
            )
        model = self.model or next(iter(served))
        length = served[model].get("max_model_len")
        if not isinstance(length, int) or not 0 < length <= MAX_CONTEXT:
            length = DEFAULT_MAX_LENGTH
        return replace(self, model=model, max_length=length)

    def request(self, method: str, path: str, *, seconds: float, json: Any = None) -> HttpResponse:
        """The answer to one request, which carries the key of the environment.

        Args:
            path: behind the URL, with `/v1`.
            seconds: of the whole exchange.

        Raises:
            httpx.HTTPError: there is no whole answer.
            httpx.InvalidURL: the URL is none.
        """
        from pipeline.core.bounded_http import send_request

        return send_request(
            method, f"{self.url}{path}", headers=authorization(), timeout_s=seconds, json=json
        )

    def _models(self) -> dict[str, dict[str, Any]]:
        import httpx

        place = f"{self.url}/v1/models"
        try:
            answer = self.request("GET", "/v1/models", seconds=ANSWER_TIMEOUT_S)
            if answer.status != 200:
                raise ValueError(f"it answered {answer.status}: {answer.text[:200]}")
            return {str(entry["id"]): dict(entry) for entry in answer.json()["data"]}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise ServingError(
                f"the endpoint does not name its models: {error}",
                where=place,
                hint="give the URL of an OpenAI-compatible server, such as http://127.0.0.1:8000; "
                f"one that asks for a key is given that of {ENDPOINT_KEY}",
            ) from error


def authorization() -> dict[str, str]:
    """The header that carries the key of the environment; none without one."""
    key = os.environ.get(ENDPOINT_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
