"""Forms in which servers write texts, thoughts and calls, other than OpenAI's.

What can be read in one way is read, and named in the answer's row. Signs of the rest show a server
that is not set up for the suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from prepare.untrusted import parse_json
from recipes.generation import THOUGHT_MARKERS

# Forms of answers: each continues "N of M answers ...".
ENDED = "end with the model's end token, which is removed"
EMPTY_THOUGHT = "begin with an empty thought, which is removed"
ENTITIES = "have HTML entities such as &lt; (code, JSON and calls are read without them)"
AS_OBJECT = "have tool arguments as an object, not as a JSON text"
TWICE = "have tool arguments that are encoded twice"
FENCED = "have tool arguments in a code fence"

_END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "<|EOT|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|END_RESPONSE|>",
    "<|end_of_role|>",
    "<|user|>",
    "<|endofturn|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[EOS]",
    "</s>",
)
_ENDS = re.compile(rf"(?:(?:{'|'.join(map(re.escape, _END_TOKENS))})\s*)+\Z")
_STRUCK = re.compile(r"<s\b")  # HTML's, which </s> closes
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#0?39|#34|#x27|#x22);")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_CHARACTERS |= {"#39": "'", "#039": "'", "#34": '"', "#x27": "'", "#x22": '"'}
_FENCE = re.compile(r"\s*```[a-zA-Z]*\s*(.*?)\s*```\s*", re.DOTALL)
# gpt-oss, without its special tokens.
_HARMONY = re.compile(r"\s*analysis.*assistantfinal", re.DOTALL)
# Those that vLLM's and SGLang's parsers read, at a text's start or behind words and thoughts.
_CALL_MARK = re.compile(
    r"<tool_calls?>|<TOOLCALL>|\[TOOL_CALLS\]|<\|tool_calls?\|?>|<\|python_tag\|>|<function[=_]|"
    r"<\|tool_calls?_(?:section_)?begin\|>|<\uff5ctool\u2581calls?\u2581begin\uff5c>|"
    r"<\|tool_call_(?:begin|start)\|>|<\|START_ACTION\|>|<\|action_start\|>|<minimax:tool_call>|"
    r"<seed:tool_call>|<invoke name=|functools\[|to=functions\."
)
_NAMED_CALL = re.compile(
    r"\A\s*(?:```(?:json)?\s*)?\[?\s*\{\s*\"(?:name|function)\"\s*:\s*\"[^\"]+\"\s*,"
    r"\s*\"(?:arguments|parameters)\"\s*:"
)


def clean(text: str, *, takes_thoughts: bool) -> tuple[str, tuple[str, ...]]:
    """Return a text without its end token and empty thought, and the forms that it had."""
    forms = []
    end = _ENDS.search(text)
    if end is not None and not (end[0].lstrip().startswith("</s>") and _STRUCK.search(text)):
        text = text[: end.start()]
        forms.append(ENDED)
    if not takes_thoughts and (rest := _after_empty_thought(text)) is not None:
        text = rest
        forms.append(EMPTY_THOUGHT)
    return text, tuple(forms)


def _after_empty_thought(text: str) -> str | None:
    begun = text.lstrip()
    for markers in THOUGHT_MARKERS:
        if begun.startswith(markers.start):
            inner = begun.removeprefix(markers.start).lstrip()
            if inner.startswith(markers.end):
                return inner.removeprefix(markers.end).lstrip()
    return None


def begins_with_thought(text: str) -> bool:
    """Return whether a text's first part is a thought, or the rest of one."""
    begun = text.lstrip()
    for markers in THOUGHT_MARKERS:
        if begun.startswith(markers.start):
            return True
        closed = text.find(markers.end)
        if closed >= 0 and text.find(markers.start, 0, closed) < 0:
            return True  # the template began it
    return _HARMONY.match(text) is not None


def has_call_marks(text: str) -> bool:
    """Return whether a text has a call that a server's parser would read."""
    return _CALL_MARK.search(text) is not None or _NAMED_CALL.match(text) is not None


def has_entities(text: str) -> bool:
    """Return whether a text has HTML entities of characters that code and JSON need."""
    return _ENTITY.search(text) is not None


def unescape(text: str) -> str:
    """Return a text with these characters in place of their entities, once."""
    return _ENTITY.sub(lambda entity: _CHARACTERS[entity[0][1:-1]], text)


def read_arguments(value: Any) -> tuple[str, str]:
    """Return a call's arguments as a JSON text, and their form if it is another; else ValueError.

    A text that is no JSON is the model's.
    """
    if value is None:
        return "", ""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False), AS_OBJECT
    if not isinstance(value, str):
        raise ValueError("its tool call has arguments that are neither a text nor an object")
    fenced = _FENCE.fullmatch(value)
    if fenced is not None and _object_in(fenced[1]) is not None:
        return fenced[1], FENCED
    inner = _parsed(value)
    if isinstance(inner, str) and _object_in(inner) is not None:
        return inner, TWICE
    return value, ""


def read_content(content: Any) -> tuple[str, str, bool]:
    """Return a message's text, its thoughts, and whether a part refuses; else ValueError.

    Some APIs (Mistral) write a list of parts.
    """
    if isinstance(content, str):
        return content, "", False
    if content is None:
        return "", "", False
    if not isinstance(content, list):
        raise ValueError("its message is not a text")
    texts = list[str]()
    thoughts = list[str]()
    is_refused = False
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "output_text"):
            texts.append(_text_of(part.get("text")))
        elif kind in ("thinking", "reasoning"):
            thoughts.append(_text_of(part.get("thinking") or part.get("text") or ""))
        elif kind == "refusal":
            is_refused = True
        else:
            raise ValueError(f"its message has a part of the type {str(kind)[:40]!r}")
    return "".join(texts), "".join(thoughts), is_refused


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [each.get("text") if isinstance(each, dict) else each for each in value]
        if all(isinstance(each, str) for each in texts):
            return "".join(map(str, texts))
    raise ValueError("its message is not a text")


def find_error(body: Any) -> tuple[str, int | None] | None:
    """Return the words and the code of an error that came with status 200, if it is one."""
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, Sequence) and choices else None
    first = first if isinstance(first, dict) else {}
    said = body.get("error") or first.get("error")
    if not said and body.get("object") == "error":
        said = body
    if not said and first.get("finish_reason") == "error":
        said = "finish_reason: error"
    if not said:
        return None
    words = said.get("message") if isinstance(said, dict) else said
    code = said.get("code") if isinstance(said, dict) else None
    words = words if isinstance(words, str) else json.dumps(said, ensure_ascii=False)
    return words, code if type(code) is int else None


def _object_in(text: str) -> dict[str, Any] | None:
    found = _parsed(text)
    return found if isinstance(found, dict) else None


def _parsed(text: str) -> Any:
    try:
        return parse_json(text, finite=False, whole_text=False)
    except ValueError:
        return None
