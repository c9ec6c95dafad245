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
ENTITIES = "have HTML entities such as &lt;, and are read without them"
AS_OBJECT = "have tool arguments as an object, not as a JSON text"
REPEATED = "have tool arguments that are encoded more than once"
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
# Other families' names of the same: any special token of an end or of a next turn, and padding.
_OTHER_ENDS = (
    r"<[|\uff5c](?![^|\uff5c<>]*(?:tool|think|thought|action|python|call_|reason))"
    r"[^|\uff5c<>\s]{0,30}(?:end|eo[stmd]|im_sep|separator|user|assistant|observation|pad)"
    r"[^|\uff5c<>\s]{0,30}[|\uff5c]>",
    r"<(?:\w{1,20}:)?(?:eos|eod|eot|end_of_\w{1,20}|_end|pad)>",
    r"<(?:extra_id_1|SPECIAL_1[12])>",  # Nemotron's
    r"\[\|endofturn\|\]",
    r"\[e~\[",  # MiniMax's
)
_END = "|".join((*map(re.escape, _END_TOKENS), *_OTHER_ENDS))
_ENDS = re.compile(rf"(?:(?:{_END})\s*)+\Z", re.IGNORECASE)
_STRUCK = re.compile(r"<s\b", re.IGNORECASE)  # HTML's, which </s> closes
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#0?39|#34|#x27|#x22);")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_CHARACTERS |= {"#39": "'", "#039": "'", "#34": '"', "#x27": "'", "#x22": '"'}
_FENCE = re.compile(r"\s*```[a-zA-Z]*\s*(.*?)\s*```\s*", re.DOTALL)
# Thoughts besides those of THOUGHT_MARKERS: of other models, of prompts, and gpt-oss's, without
# its special tokens.
_THOUGHT = re.compile(
    r"\s*(?:<\|?(?:\w{1,20}[:_])?(?:think|thought|reason|reflect|analysis)[\w:]{0,60}\|?>|"
    r"<\|begin_of_thought\|>|<unused94>thought|Here is my thought process:|"
    r"analysis.*assistantfinal)",
    re.DOTALL | re.IGNORECASE,
)
# Behind a thought that the template began.
_THOUGHT_END = re.compile(
    r"</(?:\w{1,20}:)?\w{0,20}(?:think|thought|reason)[\w:]{0,60}>|<\|end_of_thought\|>|"
    r"\[BEGIN FINAL RESPONSE\]",
    re.IGNORECASE,
)
# Those that vLLM's, SGLang's and other servers' parsers read, at a text's start or behind words and
# thoughts. Patterns, as alternatives of one.
CALL_STARTS = (  # what follows is an object or a Python call
    r"<(?:\w{1,20}[:_])?tool_calls?>",
    r"<(?:\w{1,20}_)?function_calls?>",
    "<TOOLCALL>",
    r"\[TOOL_CALLS\]",
    r"\[TOOL_REQUEST\]",
    r"<\|tool_calls?\|?>",
    r"<\|python_(?:tag|start)\|>",
    r"<[|\uff5c]tool[\u2581_]calls?[\u2581_](?:section_)?begin[|\uff5c]>",
    r"<\|tool_(?:call|list)_(?:begin|start)\|>",
    r"<\|START_ACTION\|>",
    r"<\|action_start\|>",
    r"<\|tools_prefix\|>",
    r"<\|plamo:begin_tool\w{0,20}:plamo\|>",
    r"<\|content_invoke_tool\w{0,20}\|>",
    "<tools>",
    "```tool_(?:code|call)",
    r"functools(?=\[)",
    r"function call(?:<\|role_sep\|>)?(?=\s{0,9}\{\s{0,9}\"name\")",  # GigaChat's
)
_CALL_MARK = re.compile(
    "|".join(CALL_STARTS) + r"|<(?:\w{1,20}_)?function[=_]|<\|plamo:begin_tool|"
    r"<\|content_invoke_tool|<[|\uff5c]DSML[|\uff5c]|<(?:\w{1,20}:)?invoke(?:\s+name=|>)|"
    r"to=functions\.|\u273fFUNCTION\u273f|^[ \t]*+Action:.*\n\s*+Action Input:",
    re.MULTILINE,
)
_FENCED_PART = re.compile(r"```(?:json)?\s*(.*?)(?:```|\Z)", re.DOTALL)
_BEGINS_OBJECT = re.compile(r"\s*+\[?\s*+\{")
_NAME = re.compile(r"\"(?:name|tool_name|function)\"\s*:\s*\"[^\"]+\"")
_ARGUMENTS = re.compile(r"\"(?:arguments|parameters)\"\s*:")
# Llama's: a list of Python's calls, or one call.
_PYTHON_CALL = r"[A-Za-z_][\w.]*\((?:\s*\w+\s*=.*)?\)"
_PYTHON_CALLS = re.compile(rf"\s*(?:\[\s*{_PYTHON_CALL}\s*+,?\s*+\]|{_PYTHON_CALL})\s*+", re.DOTALL)
MAX_LAYERS = 4


def clean(text: str, *, takes_thoughts: bool) -> tuple[str, tuple[str, ...]]:
    """Return a text without its end token and empty thought, and the forms that it had."""
    forms = []
    end = _ENDS.search(text)
    if end is not None and not (
        end[0].lstrip().lower().startswith("</s>") and _STRUCK.search(text)
    ):
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
    plain = unescape(text)
    begun = plain.lstrip()
    for markers in THOUGHT_MARKERS:
        if begun.startswith(markers.start):
            return True
        closed = plain.find(markers.end)
        if closed >= 0 and plain.find(markers.start, 0, closed) < 0:
            return True  # the template began it
    if _THOUGHT.match(plain) is not None:
        return True
    end = _THOUGHT_END.search(plain)
    return end is not None and f"<{end[0].lstrip('</')}" not in plain


def has_call_marks(text: str) -> bool:
    """Return whether a text has a call that a server's parser would read."""
    plain = unescape(text)
    if _CALL_MARK.search(plain) is not None or _PYTHON_CALLS.fullmatch(plain) is not None:
        return True
    return any(map(_is_named_call, (plain, *_FENCED_PART.findall(plain))))


def _is_named_call(text: str) -> bool:
    begins = _BEGINS_OBJECT.match(text) is not None
    return begins and _NAME.search(text) is not None and _ARGUMENTS.search(text) is not None


def has_entities(text: str) -> bool:
    """Return whether a text has HTML entities of characters that code and JSON need."""
    return _ENTITY.search(text) is not None


def unescape(text: str) -> str:
    """Return a text with these characters in place of their entities, once."""
    return _ENTITY.sub(lambda entity: _CHARACTERS[entity[0][1:-1]], text)


def readings(text: str) -> list[str]:
    """Return a text as it is, and without its HTML entities, where it has any."""
    return [text, unescape(text)] if has_entities(text) else [text]


def without_added_entities(text: str, asked: str) -> str:
    """Return an answer without HTML entities, unless the question has some, too."""
    return text if has_entities(asked) else unescape(text)


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
    text = value
    form = ""
    for _ in range(MAX_LAYERS):
        if _object_in(text) is not None:
            return text, form
        inner, layer = _unwrapped(text)
        if not layer:
            break
        text = inner
        form = form or layer
    return value, ""


def _unwrapped(text: str) -> tuple[str, str]:
    """Return the text in a JSON string, a code fence or entities, and which; else no form."""
    if (fenced := _FENCE.fullmatch(text)) is not None:
        return fenced[1], FENCED
    inner = _parsed(text)
    if isinstance(inner, str):
        return inner, REPEATED
    if inner is None and has_entities(text):
        return unescape(text), ENTITIES
    return text, ""


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
        texts = [part.get("text") if isinstance(part, dict) else part for part in value]
        if all(isinstance(part, str) for part in texts):
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
    parsed = _parsed(text)
    return parsed if isinstance(parsed, dict) else None


def _parsed(text: str) -> Any:
    try:
        return parse_json(text, finite=False, whole_text=False)
    except ValueError:
        return None
