"""External OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.checkpoint.folder import MAX_CONTEXT
from pipeline.core.errors import ServingError
from pipeline.core.process_environment import ENDPOINT_KEY
from pipeline.core.untrusted import parse_json

if TYPE_CHECKING:
    from pipeline.core.bounded_http import HttpResponse

# For an endpoint that does not report its limit; vLLM does.
DEFAULT_MAX_LENGTH = 4096
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class OpenAIEndpoint:
    """Address and model of an endpoint."""

    url: str  # without the final `/v1`
    model: str = ""  # its name at the endpoint; "" for the only model
    max_length: int = DEFAULT_MAX_LENGTH  # limit for prompt and completion tokens together
    adapts: str = ""  # the model that its LoRA adapter changes, as vLLM lists it

    @classmethod
    def from_url(cls, url: str, model: str | None) -> OpenAIEndpoint:
        return cls(url.rstrip("/").removesuffix("/v1"), model or "")

    def resolve_model(self) -> OpenAIEndpoint:
        """Return this endpoint with the reported model name and limit.

        Raises:
            ServingError: it does not respond, does not serve the model, or serves several.
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
                hint="select one with --baseline-model or --candidate-model; it serves: " + known,
            )
        model = self.model or next(iter(served))
        length = served[model].get("max_model_len")
        if not isinstance(length, int) or not 0 < length <= MAX_CONTEXT:
            length = DEFAULT_MAX_LENGTH
        adapts = str(served[model].get("parent") or "")
        return replace(self, model=model, max_length=length, adapts=adapts)

    def request(self, method: str, path: str, *, seconds: float, json: Any = None) -> HttpResponse:
        """Send one request with the environment's API key.

        Raises:
            httpx.HTTPError: there is no complete response.
            httpx.InvalidURL: the URL is invalid.
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
                raise ValueError(f"it responded with {answer.status}: {answer.text[:200]}")
            # The name is sent back, so it must be text that can be encoded.
            return {str(each["id"]): dict(each) for each in parse_json(answer.content)["data"]}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise ServingError(
                f"the endpoint does not list its models: {error}",
                where=place,
                hint="use the URL of an OpenAI-compatible server, such as http://127.0.0.1:8000; "
                f"set {ENDPOINT_KEY} if it requires a key",
            ) from error


def authorization() -> dict[str, str]:
    """Return the header with the environment's API key, if there is one."""
    key = os.environ.get(ENDPOINT_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
