"""Comparison of a server's tokenizer with ours, before it is asked anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval_gates.ask import Client, RefusedError, Request, UnansweredError
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.prompt_scores import first_difference, render, tokenize
from prepare.errors import StageError
from recipes.checkpoints.same_tokens import (
    MAX_MARKS,
    SCRIPTS,
    SENTENCES,
    TokenReader,
    cure_in,
    find_difference,
    marked_text,
    reader_of,
)
from recipes.checkpoints.tokenizer_file import TOKENIZER_CONFIG

TIMEOUT_S = 300.0
SHOWN = 8  # tokens
CONVERSATION = (
    {"role": "user", "content": "Which city is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
)


def check_server_tokens(
    spec: dict[str, Any], tokenizer: Tokenizer, note: Callable[[str], None]
) -> None:
    """Check that the server reads and writes text as our tokenizer does.

    `spec` is the worker's. StageError: it does not. Endpoints that do not tell are not compared.
    """
    client = Client(
        spec["url"],
        spec["model"],
        {},
        concurrency=spec["concurrency"],
        tokenizer=tokenizer,
        socket=spec.get("socket"),
        timeout_s=TIMEOUT_S,
    )
    marks = tokenizer.special_ids(MAX_MARKS)
    ours = reader_of(tokenizer.tokenizer)
    texts = [*SENTENCES, *SCRIPTS, marked_text(list(marks))]
    is_own = spec.get("socket") is not None
    try:
        ids = client.send([tokenize(_body(client, prompt=text)) for text in texts])
        if not all(ids):
            raise RefusedError("it gives no token ids", where="/tokenize")
        written = client.send([detokenize(_body(client, tokens=tokens)) for tokens in ids])
    except (RefusedError, UnansweredError) as error:
        if is_own and isinstance(error, UnansweredError):
            raise
        note(f"the server's tokenizer is not compared with ours: {error.message[:200]}")
        return
    read = dict(zip(texts, ids, strict=True))
    shown = {tuple(tokens): text for tokens, text in zip(ids, written, strict=True)}
    server = TokenReader("the model server", read.__getitem__, lambda ids: shown[tuple(ids)])
    if fault := find_difference(ours, server, marks):
        place = f"{spec['tokenizer']}/{TOKENIZER_CONFIG}, key tokenizer_class"
        raise StageError(
            f"{fault}: the model is asked other text than is meant",
            where=place if is_own else f"{spec['url']}; {place}",
            hint=cure_in(Path(spec["tokenizer"]))
            if is_own
            else "give --tokenizer the tokenizer that the endpoint serves",
        )


def check_server_template(
    spec: dict[str, Any], tokenizer: Tokenizer, note: Callable[[str], None]
) -> None:
    """Check that the server renders a conversation as the recorded arm's template does.

    StageError: it does not. UnansweredError: it is late. One without such a request is not
    compared, and noted.
    """
    client = Client(spec["url"], spec["model"], {}, socket=spec.get("socket"), timeout_s=TIMEOUT_S)
    arguments = dict(tokenizer.template_arguments)
    asked = _body(client, messages=CONVERSATION, chat_template_kwargs=arguments)
    try:
        ((theirs, _),) = client.send([render(asked, name="")])
    except RefusedError as error:
        note(f"the server's chat template is not compared with the record's: {error.message[:200]}")
        return
    ours = tokenizer.encode(tokenizer.render(CONVERSATION))
    if ours == theirs:
        return
    at = first_difference(ours, theirs)
    raise StageError(
        f"the endpoint's chat template renders otherwise: the first token that differs is number "
        f"{at}, {_shown(tokenizer, theirs, at)} instead of {_shown(tokenizer, ours, at)}",
        where=spec["url"],
        hint="serve it with the chat template that the recorded answers were asked with",
    )


def _shown(tokenizer: Tokenizer, ids: list[int], at: int) -> str:
    """Return the text of some tokens, for people."""
    return ascii(tokenizer.tokenizer.decode(ids[at : at + SHOWN])) if at < len(ids) else "the end"


def detokenize(body: dict[str, Any]) -> Request:
    """Return the request of the text of token ids."""
    return Request("/detokenize", body, _read_text)


def _body(client: Client, **asked: Any) -> dict[str, Any]:
    return {"model": client.model, "add_special_tokens": False, **asked}


def _read_text(body: Any) -> str:
    """Return `/detokenize`'s text, else ValueError."""
    names = ("prompt", "text")  # of vLLM and SGLang
    given = [body[name] for name in names if name in body] if isinstance(body, dict) else []
    text = next(iter(given), None)
    if not isinstance(text, str):
        raise ValueError("its answer has no text")
    return text
