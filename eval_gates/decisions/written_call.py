"""The first call that a text has, in the forms of servers' parsers.

A form is a pattern up to a call's name or object, and the style of what follows. Only the first
call's own text is read. Nothing in it is dropped: what has no structure is compared as text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import warnings
from collections.abc import Collection, Iterator
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from eval_gates.reply_forms import CALL_STARTS, has_call_marks, read_arguments
from prepare.untrusted import json_end, parse_json, parse_json_at

UNREAD_FORM = "a call in a form that is not read"
"""How the tool begins of a text with call marks that names none; its arguments are the text."""


class WrittenCall(NamedTuple):
    """A call; `arguments` is a JSON value's text, or the call's own where it has another form."""

    tool: str
    arguments: str


class _Style(Enum):
    OBJECT = "a JSON object with the name and the arguments"
    PYTHON = "arguments of a Python call"
    GEMMA = "an object with bare keys and its own quotes"
    TAGS = "a JSON object, or tags of parameters"
    TEXT = "a JSON object, or text up to the form's end"


class _Names(IntEnum):
    """Names that a form takes: prose has some of the forms, too."""

    ALL = 0
    ALL_IF_ALONE = 1  # one that was not offered, only if no other form has a call
    OFFERED = 2


class _Form(NamedTuple):
    begins: re.Pattern[str]  # group 1 is the name, except for OBJECT; ends where the style begins
    style: _Style = _Style.TAGS
    names: _Names = _Names.ALL
    text_end: str = r"\Z"  # a pattern


# --- Forms

_NAME = r"\w[\w.\-/]{0,127}"
_PYTHON_NAME = r"[^\W\d][\w.\-]{0,127}?"
_TAG_NAME = r"[^\s<>\"'=(){},]{1,256}"
_PREFIX = r"(?:\w{1,20}[:_]|[|\uff5c]DSML[|\uff5c])?"  # of a family's tags
_START = f"(?:{'|'.join(CALL_STARTS)})"
_SPECIAL = r"<[|\uff5c](?!call\|)(?![^<>]{0,60}(?i:end))[^<>|\uff5c\s]{1,60}[|\uff5c]>"
_FENCE = r"```\w{0,20}"
_TO_CALL = rf"(?:\s*+(?:{_SPECIAL}|{_FENCE}|\[|json(?=\s*+[\[{{]))){{0,8}}+\s*+"
_TO_ARGUMENTS = (
    rf"(?:\s*+(?:{_SPECIAL}|{_FENCE}|(?:json|code|commentary)(?=\s*+[<{{`]))){{0,8}}+\s*+"
)
_TO_FENCED = rf"\s*+(?:{_FENCE}\s*+(?=\{{))?+"
_BEGIN = r"<[|\uff5c]tool[\u2581_]calls?[\u2581_](?:section_)?begin[|\uff5c]>"
_SEPARATOR = r"<[|\uff5c]tool[\u2581_]sep[|\uff5c]>"


def _begins(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _prefixes(word: str) -> str:
    """Return the pattern of a word that is cut off, or is not there."""
    return "".join(f"(?:{letter}" for letter in word) + ")?" * len(word)


_FORMS = (
    _Form(_begins(rf"{_START}{_TO_CALL}(?=\{{)"), _Style.OBJECT),
    # OLMo 3, LFM2, Llama, Gemma 3
    _Form(
        _begins(
            rf"{_START}{_TO_CALL}(?:\w{{1,64}}\s*+=\s*+)?(?:print\(\s*+)?({_PYTHON_NAME})"
            r"(?:\.call)?(?=\()"
        ),
        _Style.PYTHON,
    ),
    # Qwen3-Coder, Llama 3's function tags
    _Form(_begins(rf"<(?:\w{{1,20}}_)?function=\s*+[\"']?({_TAG_NAME})[\"']?\s*+>?")),
    # MiniMax, DeepSeek-V3.2, Step 3
    _Form(_begins(rf"<{_PREFIX}invoke\s++name=\s*+[\"']?({_TAG_NAME})[\"']?[^<>]{{0,200}}+>?")),
    _Form(
        _begins(rf"<invoke>\s*+<tool_name>\s*+({_TAG_NAME})\s*+</tool_name>"),
        _Style.TEXT,
        text_end="</invoke>",
    ),
    # GLM, LongCat
    _Form(_begins(rf"<{_PREFIX}tool_call>\s*+({_NAME})(?=\s*+[<{{])")),
    _Form(_begins(rf"<{_PREFIX}tool_call>\s*+({_NAME})(?=[ \t]*+(?:\n|\Z))"), names=_Names.OFFERED),
    _Form(_begins(rf"to=functions\.({_NAME}){_TO_ARGUMENTS}")),
    # DeepSeek, Kimi
    _Form(
        _begins(
            rf"{_BEGIN}\s*+(?:function{_SEPARATOR}\s*+|(?!function{_SEPARATOR}))(?:functions\.)?"
            rf"({_NAME})(?=:|[ \t]*+(?:<(?:[|\uff5c]|\Z)|\n|\{{|\Z))(?::\d{{0,9}})?{_TO_ARGUMENTS}"
        )
    ),
    _Form(
        re.compile(rf"\A\s*+functions\.({_NAME}):\d{{1,9}}{_TO_ARGUMENTS}"), names=_Names.OFFERED
    ),
    # Mistral
    _Form(
        _begins(
            rf"\[TOOL_CALLS\]\s*+({_NAME})(?=\s*+(?:\[|\{{|\Z))\s*+(?:\[CALL_ID\]\w{{0,64}})?"
            r"(?:\[ARGS\])?"
        )
    ),
    # FunctionGemma, Gemma 4
    _Form(
        _begins(
            rf"(?:<start_function_call>|<\|tool_call>)\s*+call:\s*+({_NAME})(?=\s*+(?:\{{|\Z))\s*+"
        ),
        _Style.GEMMA,
    ),
    _Form(re.compile(rf"\A\s*+call:\s*+({_NAME})\s*+(?=\{{)"), _Style.GEMMA, _Names.OFFERED),
    # ReAct
    _Form(
        _begins(rf"^[ \t]*+Action:[ \t]*+({_NAME})[ \t]*+\n\s*+Action Input:{_TO_FENCED}"),
        _Style.TEXT,
        text_end=r"^[ \t]*+(?:Observation|Thought|Action|Final Answer):",
    ),
    _Form(
        _begins(rf"^[ \t]*+Action:[ \t]*+({_NAME})\s*+{_prefixes('Action Input')}\Z"),
        names=_Names.OFFERED,
    ),
    # Qwen
    _Form(
        _begins(rf"\u273fFUNCTION\u273f:?\s*+({_NAME})(?:\s*+\u273fARGS\u273f:?)?+{_TO_FENCED}"),
        _Style.TEXT,
        text_end="\u273f(?:RESULT|RETURN|FUNCTION)\u273f",
    ),
    # PLaMo
    _Form(
        _begins(
            rf"<\|plamo:begin_tool_name:plamo\|>\s*+({_NAME})\s*+"
            rf"(?:<\|plamo:end_tool_name:plamo\|>)?{_TO_ARGUMENTS}"
        )
    ),
    # Apertus: the only key is the name
    _Form(_begins(r"<\|tools_prefix\|>\s*+\[?+\s*+\{\s*+\"([^\"\\]{1,256})\"\s*+:\s*+")),
    # A text's own object, or one in a fence
    _Form(
        re.compile(r"(?:\A|```(?:json)?)\s*+(?:```\w{0,20}\s*+)?\[?+\s*+(?=\{)"),
        _Style.OBJECT,
        _Names.ALL_IF_ALONE,
    ),
    # A text that is a Python call, or a list of these
    _Form(
        re.compile(rf"\A\s*+(?:{_FENCE}\s*+)?\[?+\s*+({_PYTHON_NAME})(?=\()"),
        _Style.PYTHON,
        _Names.OFFERED,
    ),
    _Form(
        re.compile(rf"\A\s*+\[?+\s*+({_PYTHON_NAME})(?=\(\s*+(?:\)|\w{{1,64}}\s*+=))"),
        _Style.PYTHON,
        _Names.ALL_IF_ALONE,
    ),
)


# --- The first call


class _Begun(NamedTuple):
    """A call that begins in a text."""

    form: _Form
    place: int  # of the name, or of the object that has it
    name: str
    begin: int  # of the arguments, or of that object


def find_call(text: str, tools: Collection[str]) -> WrittenCall | None:
    """Return the first call of a text, if it has one; `tools` are the names that were offered."""
    first = _find_first(text, tools, is_alone=False)
    if first is None and not has_call_marks(text):
        return None
    first = first or _find_first(text, tools, is_alone=True)
    if first is None:
        return WrittenCall(_unread_tool(text), _as_text(text))
    return WrittenCall(first.name, _read_arguments(text, first))


def _unread_tool(text: str) -> str:
    """Return a tool that only an equal text has: which one it calls is not known."""
    digest = hashlib.sha256(_as_text(text).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{UNREAD_FORM}, {digest[:12]}"


def _find_first(text: str, tools: Collection[str], *, is_alone: bool) -> _Begun | None:
    calls = [_first_of(form, text, tools, is_alone=is_alone) for form in _FORMS]
    # At one place, the first form's.
    return min(filter(None, calls), key=lambda call: call.place, default=None)


def _first_of(form: _Form, text: str, tools: Collection[str], *, is_alone: bool) -> _Begun | None:
    takes_all = form.names is _Names.ALL or (is_alone and form.names is _Names.ALL_IF_ALONE)
    for match in form.begins.finditer(text):
        if form.style is _Style.OBJECT:
            named = _object_with_name(text, match.end())
            if named is None:
                continue
            call = _Begun(form, match.end(), named.name, match.end())
            is_taken = takes_all and (form.names is _Names.ALL or named.has_arguments)
        else:
            call = _Begun(form, match.start(1), _plain_name(match[1], tools), match.end())
            is_taken = takes_all
        if is_taken or call.name in tools:
            return call
    return None


def _plain_name(name: str, tools: Collection[str]) -> str:
    return name if name in tools else name.removeprefix("functions.").removeprefix("default_api.")


def _read_arguments(text: str, call: _Begun) -> str:
    form = call.form
    begin = call.begin
    if form.style is _Style.OBJECT:
        return _arguments_of_object(text, begin)
    if form.style is _Style.PYTHON:
        return _read_python(text, begin)
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    if text.startswith("{", begin):
        return _read_gemma(text, begin) if form.style is _Style.GEMMA else _json_at(text, begin)
    if form.style is _Style.TAGS:
        return _read_tagged(text, begin)
    end = re.compile(form.text_end, re.MULTILINE).search(text, begin)
    return _as_text(text[begin : None if end is None else end.start()])


# --- JSON

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_OUTER_KEYS = ("function", "function_call", "tool_call", "tool_calls")
_OTHER_KEYS = ("id", "index", "tool_call_id", "type")  # tell nothing of what is called
_KEY = re.compile(r"\s*+,?+\s*+\"((?:[^\"\\]|\\.)*+)\"\s*+:\s*+", re.DOTALL)
_LIST_OF_OBJECTS = re.compile(r"(?:\[\s*+)?\{")
_BRACE = re.compile(r"\s*+,?+\s*+\}")
_MAX_OUTER_OBJECTS = 3


class _NamedObject(NamedTuple):
    """An object that names a tool, as far as it is written."""

    name: str
    spans: dict[str, tuple[int, int | None]]  # of the values by key; None where one is cut off
    is_repeated: bool  # a key
    begin: int
    end: int | None

    @property
    def argument_keys(self) -> list[str]:
        return [key for key in _ARGUMENT_KEYS if key in self.spans]

    @property
    def has_arguments(self) -> bool:
        return bool(self.argument_keys)


def _object_with_name(text: str, begin: int, outer: int = 0) -> _NamedObject | None:
    """Return the object that begins there, or the one in it that names a tool."""
    spans = dict[str, tuple[int, int | None]]()
    is_repeated = False
    end: int | None = begin + 1
    for key, first, last in _members(text, begin):
        is_repeated = is_repeated or key in spans
        spans.setdefault(key, (first, last))
        end = last
    for key in _NAME_KEYS:
        if name := _string_at(text, spans.get(key)):
            closed = None if end is None else _BRACE.match(text, end)
            ends = None if closed is None else closed.end()
            return _NamedObject(name, spans, is_repeated, begin, ends)
    for key in _OUTER_KEYS:
        if key in spans and outer < _MAX_OUTER_OBJECTS:
            inner = _LIST_OF_OBJECTS.match(text, spans[key][0])
            if inner is not None:
                return _object_with_name(text, inner.end() - 1, outer + 1)
    return None


def _arguments_of_object(text: str, begin: int) -> str:
    named = _object_with_name(text, begin)
    assert named is not None
    if named.is_repeated or len(named.argument_keys) > 1:
        return _as_text(text[named.begin : named.end])
    if not named.has_arguments:
        is_empty = named.end is not None and len(named.spans.keys() - {*_OTHER_KEYS}) == 1
        return "{}" if is_empty else _as_text(text[named.begin : named.end])
    first, last = named.spans[named.argument_keys[0]]
    try:
        return canonical(parse_json_at(text, first))
    except ValueError:  # it is cut off, or has a key twice
        return _as_text(text[first:last])


def _members(text: str, begin: int) -> Iterator[tuple[str, int, int | None]]:
    """Yield the key of every member, and where its value begins and ends; None if it is cut off."""
    end = begin + 1
    while (key := _KEY.match(text, end)) is not None:
        try:
            end = json_end(text, key.end())
        except ValueError:
            yield key[1], key.end(), None
            return
        yield key[1], key.end(), end


def _string_at(text: str, span: tuple[int, int | None] | None) -> str | None:
    if span is None or span[1] is None or text[span[0]] != '"':
        return None
    try:
        return str(parse_json_at(text, span[0]))
    except ValueError:
        return None


def _json_at(text: str, begin: int) -> str:
    try:
        return canonical(parse_json_at(text, begin))
    except ValueError:  # cut off, or damaged: where it would end is unknown
        return _as_text(text[begin:])


# --- Tags

_TAG = re.compile(
    rf"\s*+(?:<{_PREFIX}arg_key>\s*+([^<>]{{1,256}})</{_PREFIX}arg_key>\s*+<{_PREFIX}arg_value>|"
    rf"<{_PREFIX}parameter(?:\s*+=|\s++name\s*+=)\s*+[\"']?([^<>\"']{{1,256}})[\"']?"
    r"([^<>]{0,200})>)"
)
_TAG_ENDS = re.compile(rf"</{_PREFIX}arg_value>"), re.compile(rf"</{_PREFIX}parameter>")
_CALL_END = re.compile(
    rf"\s*+(?:</?{_PREFIX}(?:tool_call|function_call|function|invoke)s?\b|</[^<>]{{0,40}}\Z|"
    r"<[|\uff5c](?!DSML)[^<>]{1,60}[|\uff5c]>|\Z)"
)
_IS_TEXT = re.compile(r"\s+string=[\"']?(true|false)[\"']?")


def _read_tagged(text: str, begin: int) -> str:
    """Return the values of a call's tags as JSON, and behind it what is cut off or is no tag."""
    pairs = list[tuple[str, Any]]()
    place = begin
    while (tag := _TAG.match(text, place)) is not None:
        end = _TAG_ENDS[tag[1] is None].search(text, tag.end())
        if end is None:
            break
        pairs.append(_tag_value(tag, text[tag.end() : end.start()]))
        place = end.end()
    rest = ""
    if tag is not None:
        rest = re.sub(r">\s+<", "><", " ".join(tag[0].split())) + text[tag.end() :].strip()
    elif _CALL_END.match(text, place) is None:
        rest = _as_text(text[place:])
    if place == len(text) and not pairs:  # the name is the last that is written
        return ""
    values = dict(pairs)
    if len(values) < len(pairs):
        return _as_text(text[begin:] if rest else text[begin:place])
    return f"{_dump(values)} {rest}" if values and rest else rest or _dump(values)


def _tag_value(tag: re.Match[str], written: str) -> tuple[str, Any]:
    """Return a tag's key, with attributes that are not known, and its value."""
    attributes = tag[3] or ""
    is_text = _IS_TEXT.search(attributes)
    key = (tag[1] or tag[2] + _IS_TEXT.sub("", attributes)).strip()
    # A form's own lines around a value; what a value of several lines begins with is its own.
    text = written.strip("\n")
    if "\n" not in text:
        text = text.strip()
    if is_text is not None and is_text[1] == "true":
        return key, text
    try:
        value = parse_json(text.strip(), whole_text=False)
    except ValueError:
        return key, text
    return key, text if isinstance(value, str) else value  # quotes are a text's own here


# --- Gemma

_GEMMA = re.compile(
    r"\s*+(?:<escape>(?P<old>.*?)<escape>|<\|\"\|>(?P<new>.*?)<\|\"\|>|"
    r"(?P<json>\"(?:[^\"\\]|\\.)*+\")|(?P<mark>[{}\[\],:])|(?P<bare>[^\s{}\[\],:<\"][^{}\[\],:<\"]*+))",
    re.DOTALL,
)


def _read_gemma(text: str, begin: int) -> str:
    parts = []
    depth = 0
    place = begin
    while (part := _GEMMA.match(text, place)) is not None:
        place = part.end()
        kind = str(part.lastgroup)
        written = part[kind]
        if kind in ("old", "new"):
            parts.append(_dump(written))
        elif kind == "bare":
            is_key = text.startswith(":", place)
            parts.append(_dump(written.strip()) if is_key else _bare_value(written.strip()))
        else:
            parts.append(written)
        if kind == "mark":
            depth += (written in "{[") - (written in "}]")
            if depth == 0:
                try:
                    return canonical(parse_json("".join(parts), whole_text=False))
                except ValueError:
                    break
    return _as_text(text[begin:])


def _bare_value(text: str) -> str:
    try:
        return _dump(parse_json(text, whole_text=False))
    except ValueError:
        return _dump(text)


# --- Python

_PYTHON_PART = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?+|\'\'\'(?:[^\'\\]|\\.|\'(?!\'\'))*+(?:\'\'\')?+|'
    r'"(?:[^"\\]|\\.)*+"?+|\'(?:[^\'\\]|\\.)*+\'?+|[()\[\]{}]',
    re.DOTALL,
)


def _read_python(text: str, begin: int) -> str:
    """Return the arguments in the parentheses that begin there, as JSON where they are literals."""
    depth = 0
    for part in _PYTHON_PART.finditer(text, begin):
        depth += (part[0] in "([{") - (part[0] in ")]}")
        if depth == 0:
            try:
                return _python_arguments(text[begin : part.end()])
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                break
    return _as_text(text[begin:])


def _python_arguments(written: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the model's escapes
        call = ast.parse(f"f{written}", mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("it is no call")
    named = {str(argument.arg): argument.value for argument in call.keywords}
    if all(argument.arg for argument in call.keywords) and len(named) == len(call.keywords):
        call.keywords.sort(key=lambda argument: str(argument.arg))
        numbered = {str(number): argument for number, argument in enumerate(call.args)}
        try:
            return _dump({key: _literal(node) for key, node in (numbered | named).items()})
        except ValueError:
            pass  # its arguments are expressions
    return ast.unparse(call).removeprefix("f")


def _literal(node: ast.expr) -> Any:
    """Return a literal that JSON has, too; else ValueError."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        texts = [key for key in keys if isinstance(key, str)]
        if len(set(texts)) == len(node.keys):
            return dict(zip(texts, map(_literal, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand)
        if type(number) in (int, float):
            return -number
    if isinstance(node, ast.Constant):
        value = node.value
        if value is None or isinstance(value, str | int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
    raise ValueError("it is no literal of JSON")


# --- Equal texts for equal values


def canonical(arguments: Any) -> str:
    """Return equal JSON values as equal texts; a text that is none as it is."""
    if not isinstance(arguments, str):
        return _dump(arguments)
    text, _ = read_arguments(arguments)
    try:
        return _dump(parse_json(text or "{}", finite=False, whole_text=False))
    except ValueError:
        return _as_text(text)


def _as_text(text: str) -> str:
    return " ".join(text.split())


def _dump(value: Any) -> str:
    # Texts of numbers that are too large would be equal: a ValueError.
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return the value with whole floats as integers: 2.0 equals 2 in JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
