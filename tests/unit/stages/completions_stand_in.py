"""A real HTTP server that answers /v1/completions as vLLM's OpenAI server does, as it is told to.

With `echo` and `logprobs` the answer holds the prompt's tokens (here its words) and one more,
the first without a log-probability; without them, a short text.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class CompletionsStandIn:
    """The server; a context manager.

    Attributes:
        requests: bodies of all requests, in order.
        logprob: of every token of the prompt after the first.
        odd_logprobs: other values by the token's position.
        text: what it generates.
        status: answered to every request; with 200 as told above.
        scores: whether it answers requests that ask it to score a prompt.
        headers: of all requests, in order.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.logprob = -2.0
        self.odd_logprobs: dict[int, float | None] = {}
        self.text = " Paris, on the Seine."
        self.status = 200
        self.scores = True
        self.headers: list[dict[str, str]] = []
        stand_in = self

        class Handler(_Handler):
            server_told = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Of the server, as a stage is given it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The body of the answer to a request."""
        if not asked.get("echo"):
            return {"choices": [{"index": 0, "text": self.text, "logprobs": None}]}
        words = asked["prompt"].split(" ")
        values: list[float | None] = [None, *[self.logprob] * (len(words) - 1)]
        for position, value in self.odd_logprobs.items():
            values[position] = value
        # The generated token stands behind the prompt's; its value says nothing of the passage.
        scored = {"tokens": [*words, "!"], "token_logprobs": [*values, -123.0]}
        return {"choices": [{"index": 0, "text": asked["prompt"] + "!", "logprobs": scored}]}

    def __enter__(self) -> CompletionsStandIn:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_told: CompletionsStandIn

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_told.requests.append(asked)
        self.server_told.headers.append(dict(self.headers))
        known = self.path == "/v1/completions"
        status = self.server_told.status if known else 404
        if asked.get("echo") and not self.server_told.scores:
            status = 400
        body = self.server_told.answer(asked) if status == 200 else {"error": "EngineCore is dead"}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are kept, not printed."""
