"""A small OpenAI server over transformers: greedy answers and log-probabilities of prompts.

It runs inside the environment `outside-serve`. Weights of `int8_worker.py` are widened to float32.
"""

from __future__ import annotations

import argparse
import json
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class RequestError(ValueError):
    """A request that this server does not support."""


class Model:
    """A checkpoint in memory; it answers one request at a time."""

    def __init__(self, folder: str, threads: int, max_length: int) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        if threads:
            torch.set_num_threads(threads)
        self.folder = folder
        self._max_length = max_length
        self._torch = torch
        self._turn = threading.Lock()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        self._model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        missing, unknown = self._model.load_state_dict(read_weights(folder), strict=False)
        self._model.tie_weights()
        lacking = [name for name in missing if name != "lm_head.weight"]
        if lacking or unknown or (missing and not config.tie_word_embeddings):
            raise SystemExit(f"the weights do not fit the model: {[*lacking, *unknown][:3]}")

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer `/v1/completions`."""
        if body.get("temperature") != 0 or body.get("stream"):
            raise RequestError("only greedy answers in one piece are given")
        prompt = body["prompt"]
        ids = self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        tokens = int(body.get("max_tokens", 16))
        if not ids or len(ids) + tokens > self._max_length:
            raise RequestError(f"{len(ids)} + {tokens} tokens; the limit is {self._max_length}")
        with self._turn, self._torch.inference_mode():
            if body.get("echo"):
                choice = self._score(ids)
                written = 0
            else:
                choice, written = self._write(ids, tokens, body.get("stop") or [])
        usage = {"prompt_tokens": len(ids), "completion_tokens": written}
        return {"object": "text_completion", "choices": [{"index": 0, **choice}], "usage": usage}

    def _score(self, ids: list[int]) -> dict[str, Any]:
        """Return each token's log-probability, and its place's best; the first has none."""
        logits = self._model(self._torch.tensor([ids])).logits[0, :-1]
        logprobs = self._torch.log_softmax(logits.float(), dim=-1)
        own = logprobs[range(len(ids) - 1), ids[1:]].tolist()
        best, choices = logprobs.max(dim=-1)
        tops = [
            {self._tokenizer.decode([choice]): value}
            for choice, value in zip(choices.tolist(), best.tolist(), strict=True)
        ]
        values = {"token_logprobs": [None, *own], "top_logprobs": [None, *tops]}
        return {"text": self._tokenizer.decode(ids), "finish_reason": "length", "logprobs": values}

    def _write(self, ids: list[int], tokens: int, stops: list[str]) -> tuple[dict[str, Any], int]:
        """Return a greedy continuation up to a stop string, and its number of tokens."""
        prompt = self._torch.tensor([ids])
        answer = self._model.generate(
            prompt,
            attention_mask=self._torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        text = self._tokenizer.decode(answer, skip_special_tokens=True)
        ends = [text.find(stop) for stop in stops if stop in text]
        reason = "stop" if ends or len(answer) < tokens else "length"
        return {"text": text[: min(ends, default=len(text))], "finish_reason": reason}, len(answer)


def read_weights(folder: str) -> dict[str, Any]:
    """Return a checkpoint's tensors; integers are multiplied by their rows' scales."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(file))
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        scale = tensors.pop(name).float()
        weight = name.removesuffix("_scale")
        tensors[weight] = tensors[weight].float() * scale
    return tensors


def handler_of(model: Model) -> type[BaseHTTPRequestHandler]:
    """Return the requests' handler."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listing = {"object": "list", "data": [{"id": "model", "root": model.folder}]}
            answers = {"/health": {}, "/v1/models": listing}
            known = self.path in answers
            self.answer(200 if known else 404, answers.get(self.path, {"error": "unknown path"}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                self.answer(404, {"error": {"message": f"there is no {self.path}"}})
                return
            try:
                self.answer(200, model.complete(body))
            except RequestError as error:
                self.answer(400, {"error": {"message": str(error)}})

        def answer(self, status: int, body: Any) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: a Unix socket's client has no address."""

    return Handler


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A server on a Unix socket; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 128


class PortServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A server on a port of this machine."""

    daemon_threads = True
    allow_reuse_address = True


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", default="")
    parser.add_argument("--socket", default="")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--kv-cache-dtype", choices=["auto"], default="auto")
    parser.add_argument("--threads", type=int, default=0)
    if sys.argv[1:2] == ["--check"]:  # parse the words of several servers alone
        for words in map(json.loads, sys.argv[2:]):
            parser.parse_args(words)
        return
    told = parser.parse_args()
    handler = handler_of(Model(told.model, told.threads, told.max_model_len))
    if told.socket:
        server: socketserver.BaseServer = UnixServer(told.socket, handler)
    else:
        server = PortServer(("127.0.0.1", told.port), handler)
    server.serve_forever()


if __name__ == "__main__":
    main()
