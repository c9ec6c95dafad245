"""A stand-in for vLLM's OpenAI server: same command line, same answers, milliseconds to start.

`stand_in_python` makes an "interpreter" that runs this module instead of the `-m MODULE` it is
asked for. How it behaves is said by variables of its environment, as a profile would set them:

    STAND_IN=answers       (default) opens the port, answers
    STAND_IN=dies          prints the file $STAND_IN_LOG and ends with 1, as vLLM does
    STAND_IN=warns         prints the file $STAND_IN_LOG, and answers
    STAND_IN=reports       reports $STAND_IN_REPORT of its KV cache, and answers
    STAND_IN=killed        ends by SIGKILL, as the kernel does when memory is short
    STAND_IN=silent        runs on and never opens the port
    STAND_IN=refuses       opens the port, is healthy, answers every completion with 500
    STAND_IN=another       answers as another model, as a stranger on our port would
    STAND_IN=drafts        counts four drafted tokens a stream, of which one is accepted
    STAND_IN=slow          opens the port after a second, and ends with 1 where it is taken

It always has a child process, as vLLM has its engine's process. GET /facts tells what it was
started with; POST /die ends it with exit code 9.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def stand_in_python(folder: Path) -> Path:
    """An executable that takes a Python's place and runs this module for any arguments."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{Path(__file__).resolve()}" "$@"\n')
    script.chmod(0o755)
    return script


class Handler(BaseHTTPRequestHandler):
    """Answers the few requests that the pipeline sends."""

    options: argparse.Namespace
    facts: dict[str, Any]
    streams = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {})
        elif self.path == "/v1/models":
            is_another = os.environ.get("STAND_IN") == "another"
            root = "/another/model" if is_another else self.options.model
            self.answer(200, {"data": [{"id": self.options.served_model_name, "root": root}]})
        elif self.path == "/metrics" and os.environ.get("STAND_IN") == "drafts":
            self.tell_drafts()
        elif self.path == "/facts":
            self.answer(200, self.facts)
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path == "/die":
            os._exit(9)
        if os.environ.get("STAND_IN") == "refuses":
            self.answer(500, {"error": "EngineCore is dead"})
        elif asked["model"] != self.options.served_model_name:
            self.answer(404, {"error": f"The model `{asked['model']}` does not exist."})
        elif asked.get("stream"):
            self.stream(asked["max_tokens"])
        else:
            self.answer(200, {"choices": [{"text": " world"}]})

    def tell_drafts(self) -> None:
        """As vLLM counts them."""
        counts = {"drafts": 1, "draft_tokens": 4, "accepted_tokens": 1}
        lines = [
            f'vllm:spec_decode_num_{name}_total{{engine="0"}} {each * Handler.streams}.0\n'
            for name, each in counts.items()
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write("".join(lines).encode())

    def stream(self, tokens: int) -> None:
        """One event a token, as a load generator asks for."""
        Handler.streams += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(tokens):
            self.wfile.write(b'data: {"choices": [{"text": " world"}]}\n\n')
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})
        self.wfile.write(f"data: {usage}\n\ndata: [DONE]\n\n".encode())

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        print(f'INFO:     127.0.0.1 - "{format % arguments}"', flush=True)


class SocketServer(ThreadingHTTPServer):
    """An HTTP server on a Unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        return connection, ("unix", 0)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line of vLLM's server as the pipeline writes it; other options are let pass."""
    parser = argparse.ArgumentParser(prog="api_server.py")
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("-m", dest="module")
    program.add_argument("-c", dest="code")
    for name in ("model", "served-model-name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--uds")
    return parser.parse_known_args(arguments)[0]


def main() -> None:
    options = parse(sys.argv[1:])
    behaviour = os.environ.get("STAND_IN", "answers")
    child = subprocess.Popen(["sleep", "60"])
    if behaviour == "dies":
        print(Path(os.environ["STAND_IN_LOG"]).read_text(), flush=True)
        sys.exit(1)
    if behaviour == "warns":
        print(Path(os.environ["STAND_IN_LOG"]).read_text(), flush=True)
    if behaviour == "reports":
        folder = Path(os.environ["PREPARE_ENGINE_REPORT"])
        (folder / "report.1.json").write_text(os.environ["STAND_IN_REPORT"])
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "silent":
        print("(APIServer pid=1) INFO 11-21 09:51:43 [model.py:733] still loading", flush=True)
        time.sleep(60)
    if behaviour == "slow":
        time.sleep(1)
    Handler.options = options
    Handler.facts = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "processes": [os.getpid(), child.pid],
    }
    print("INFO:     Application startup complete.", flush=True)
    if options.uds:
        SocketServer(options.uds, Handler).serve_forever()
    else:
        ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
