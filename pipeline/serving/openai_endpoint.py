"""External OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from typing import Any

import httpx

from eval_gates.reply_forms import find_error
from prepare.credentials import restore_credentials
from prepare.errors import ServingError
from prepare.escape import MAX_NAME_CHARACTERS, clip, one_line
from prepare.process_environment import ENDPOINT_KEY
from prepare.untrusted import MEBIBYTE, parse_json
from recipes.checkpoints.folder import MAX_CONTEXT

MAX_BYTES = 16 * MEBIBYTE
# For an endpoint that does not report its limit; vLLM does.
DEFAULT_MAX_LENGTH = 4096
ANSWER_TIMEOUT_S = 30.0
STREAMED_TOKENS = 4
ENGINES = (
    ("/version", "vLLM", "version"),
    ("/get_server_info", "SGLang", "version"),
    ("/props", "llama.cpp", "build_info"),
)
"""Where an engine tells its version."""


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

        ServingError: no response, another model, or several.
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

    def request(self, method: str, path: str, json: Any = None) -> httpx.Response:
        """Send one request with the environment's API key.

        ValueError: no complete response of status 200.
        """
        key = os.environ.get(ENDPOINT_KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        address = f"{self.url}{path}"
        try:
            answer = send_request(
                method, address, headers=headers, timeout_s=ANSWER_TIMEOUT_S, json=json
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ValueError(f"it does not respond: {error}") from error
        if answer.status_code != 200:
            words = answer.content[:300].decode(errors="replace")
            raise ValueError(f"it responded with {answer.status_code}: {words}")
        return answer

    def tell_engine(self) -> str:
        """Return the engine's name and version, where it tells them; else ''."""
        for path, name, key in ENGINES:
            try:
                told = parse_json(self.request("GET", path).content)
                version = told[key]
            except (ValueError, LookupError, TypeError):
                continue
            if isinstance(version, str) and version:
                return clip(one_line(f"{name} {version}"), MAX_NAME_CHARACTERS)
        return ""

    def check_stream(self) -> None:
        """Raise ServingError if streams do not count tokens."""
        body = {
            "model": self.model,
            "prompt": "The capital of France is",
            "max_tokens": STREAMED_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        counts = []
        try:
            answer = self.request("POST", "/v1/completions", body)
            for line in answer.content.decode(errors="replace").splitlines():
                part = line.removeprefix("data:").strip()
                chunk = parse_json(part) if part.startswith("{") else {}
                if (fault := find_error(chunk)) is not None:
                    raise ValueError(f"it says: {fault[0][:300]}")
                if not chunk.get("choices") and isinstance(chunk.get("usage"), dict):
                    counts.append(chunk["usage"].get("completion_tokens"))
            if counts[-1:] != [STREAMED_TOKENS]:
                raise ValueError(f"it counts {str(counts[-1:])[:40]} of {STREAMED_TOKENS} tokens")
        except ValueError as error:
            raise ServingError(
                "the endpoint does not stream text completions with their token counts "
                f"(stream_options.include_usage), which 'speed' needs: {error}",
                where=f"{self.url}/v1/completions",
                hint="serve the model with a server that offers this, such as vLLM; or take a "
                "policy without 'speed'",
            ) from error

    def _models(self) -> dict[str, dict[str, Any]]:
        try:
            # The name is sent back, so it must be text that can be encoded.
            listed = parse_json(self.request("GET", "/v1/models").content)["data"]
            return {str(model["id"]): dict(model) for model in listed}
        except (ValueError, LookupError, TypeError) as error:
            raise ServingError(
                f"the endpoint does not list its models: {error}",
                where=f"{self.url}/v1/models",
                hint="use the URL of an OpenAI-compatible server, such as http://127.0.0.1:8000; "
                f"set {ENDPOINT_KEY} if it requires a key",
            ) from error


def send_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    json: Any = None,
    headers: dict[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> httpx.Response:
    """Send one request to an untrusted server, without proxy or retries.

    A library's timeout applies to one read, `timeout_s` to all. A compressed response is rejected:
    10 MB of gzip can expand to 10 GB.

    httpx.HTTPError: no complete response within the limits. httpx.InvalidURL: the URL is invalid.
    """
    address = restore_credentials(url)
    sent = {**(headers or {}), "Accept-Encoding": "identity"}

    async def exchange() -> httpx.Response:
        transport = httpx.AsyncHTTPTransport()  # which reads SSL_CERT_FILE, and no proxies
        async with (
            httpx.AsyncClient(timeout=timeout_s, trust_env=False, transport=transport) as client,
            client.stream(method, address, json=json, headers=sent) as response,
        ):
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise httpx.DecodingError(f"the response is compressed ({encoding[:20]})")
            parts = []
            size = 0
            async for part in response.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > max_bytes:
                    raise httpx.ReadError(f"the response is larger than {max_bytes:,} bytes")
            return httpx.Response(response.status_code, content=b"".join(parts))

    try:
        return asyncio.run(asyncio.wait_for(exchange(), timeout_s))
    except httpx.NetworkError as error:
        if str(error):
            raise
        raise httpx.NetworkError("the connection broke") from error
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no complete response within {timeout_s:g} s") from error
