"""A real OpenAI-like server of a language model of words, with nothing in common with vLLM's.

Its model is a text: after a word comes the one that most often follows it there. Its command line,
health path, list of models, key and log are its own, and it does not score prompts.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.7"


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    text: list[str]

    def do_GET(self) -> None:
        listing = {"models": [{"path": self.options.weights}]}
        answers: dict[str, Any] = {"/ready": {}, "/v1/models": listing}
        found = answers.get(self.path)
        self.answer(404 if found is None else 200, found)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != self.options.alias:
            self.answer(404, "no such model")
        elif asked.get("echo") or "logprob_token_ids" in asked:
            self.answer(422, "prompts are not scored")
        else:
            self.answer(200, {"choices": [{"text": self.complete(**asked)}]})

    def complete(self, prompt: str, max_tokens: int, **_: Any) -> str:
        words = prompt.split()
        for _step in range(max_tokens):
            followers = Counter(
                b for a, b in zip(self.text, self.text[1:], strict=False) if a == words[-1]
            )
            if not followers:
                break
            words.append(followers.most_common(1)[0][0])
        return "".join(f" {word}" for word in words[len(prompt.split()) :])

    def answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class SocketServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()[0], ("unix", 0)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("weights", "alias", "listen", "cache"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    if options.slots < 1:
        sys.exit("tiny: slots exhausted")
    print(f"tiny: {options.slots} slots, cache {options.cache}", flush=True)
    Handler.options, Handler.text = options, Path(options.weights, "text").read_text().split()
    kind, _, place = options.listen.partition(":")
    if kind == "unix":
        SocketServer(place, Handler).serve_forever()
    ThreadingHTTPServer(("127.0.0.1", int(place)), Handler).serve_forever()


if __name__ == "__main__":
    main()
