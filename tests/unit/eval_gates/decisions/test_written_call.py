"""Calls in texts: each form's name and arguments, cut off, damaged, and several in one text."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.decisions.turn_decision import TurnDecision, read_decision
from eval_gates.decisions.written_call import UNREAD_FORM, find_call
from eval_gates.reply_forms import has_call_marks

TOOLS = ("get_weather", "find")
ROME = {"place": "Rome", "days": 2}
OSLO = {"place": "Oslo", "days": 2}


class Form(NamedTuple):
    """A form of calls: NAME and ARGS stand for what a call has."""

    call: str
    style: str
    before: str = ""
    joint: str = "\n"
    after: str = ""
    name_end: str = ""  # what shows that the name is whole
    is_plain: bool = False  # only a name that was offered shows that it is a call


FORMS = {
    "Hermes": Form(
        '<tool_call>\n{"name": "NAME", "arguments": ARGS}\n</tool_call>', "json", name_end='"'
    ),
    "Hermes, arguments first": Form(
        '<tool_call>\n{"arguments": ARGS, "name": "NAME"}\n</tool_call>', "json", name_end='"'
    ),
    "a function in it": Form(
        '<tool_call>{"type": "function", "function": {"name": "NAME", "arguments": ARGS}}'
        "</tool_call>",
        "json",
        name_end='"',
    ),
    "a function in it, arguments first": Form(
        '<tool_call>{"function": {"arguments": ARGS, "name": "NAME"}}</tool_call>',
        "json",
        name_end='"',
    ),
    "Mistral": Form(
        '{"name": "NAME", "arguments": ARGS}', "json", "[TOOL_CALLS] [", ", ", "]", name_end='"'
    ),
    "Mistral 11": Form("[TOOL_CALLS]NAME[ARGS]ARGS", "json", joint=""),
    "Mistral with an id": Form("[TOOL_CALLS]NAME[CALL_ID]a1B[ARGS]ARGS", "json", joint=""),
    "Mistral 13": Form("[TOOL_CALLS]NAMEARGS", "json", joint=""),
    "Llama 3": Form(
        '{"name": "NAME", "parameters": ARGS}', "json", "<|python_tag|>", "; ", name_end='"'
    ),
    "an object": Form(
        '{"name": "NAME", "parameters": ARGS}', "json", joint="; ", name_end='"', is_plain=True
    ),
    "a list": Form(
        '{"name": "NAME", "arguments": ARGS}', "json", "[", ", ", "]", name_end='"', is_plain=True
    ),
    "a fence": Form(
        '```json\n{"name": "NAME", "arguments": ARGS}\n```', "json", name_end='"', is_plain=True
    ),
    "tool_calls": Form(
        '{"name": "NAME", "arguments": ARGS}',
        "json",
        '{"tool_calls": [',
        ", ",
        "]}",
        name_end='"',
        is_plain=True,
    ),
    "Granite": Form(
        '{"name": "NAME", "arguments": ARGS}', "json", "<|tool_call|>[", ", ", "]", name_end='"'
    ),
    "InternLM": Form(
        '<|action_start|><|plugin|>{"name": "NAME", "parameters": ARGS}<|action_end|>',
        "json",
        name_end='"',
    ),
    "Cohere": Form(
        '{"tool_call_id": "0", "tool_name": "NAME", "parameters": ARGS}',
        "json",
        "<|START_ACTION|>[\n    ",
        ",\n    ",
        "\n]<|END_ACTION|>",
        name_end='"',
    ),
    "Apertus": Form(
        '{"NAME": ARGS}', "json", "<|tools_prefix|>[", ", ", "]<|tools_suffix|>", name_end='":'
    ),
    "Nemotron": Form(
        '{"name": "NAME", "arguments": ARGS}',
        "json",
        "<TOOLCALL>[",
        ", ",
        "]</TOOLCALL>",
        name_end='"',
    ),
    "Jamba": Form(
        '{"name": "NAME", "arguments": ARGS}',
        "json",
        "<tool_calls>[\n",
        ",\n",
        "]</tool_calls>",
        name_end='"',
    ),
    "Phi 4": Form(
        '{"name": "NAME", "arguments": ARGS}', "json", "functools[", ", ", "]", name_end='"'
    ),
    "LM Studio": Form(
        '[TOOL_REQUEST]{"name": "NAME", "arguments": ARGS}[END_TOOL_REQUEST]', "json", name_end='"'
    ),
    "GigaChat": Form(
        'function call<|role_sep|>\n{"name": "NAME", "arguments": ARGS}', "json", name_end='"'
    ),
    "Inkling": Form(
        '<|message_model|>NAME<|content_invoke_tool_json|>{"name": "NAME", "args": ARGS}'
        "<|end_message|>",
        "json",
        joint="",
        name_end='<|content_invoke_tool_json|>{"name": "NAME"',
    ),
    "function tags with JSON": Form("<function=NAME>ARGS</function>", "json"),
    "gpt-oss": Form(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGS<|call|>", "json"
    ),
    "Kimi K2": Form(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGS<|tool_call_end|>",
        "json",
        "<|tool_calls_section_begin|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "DeepSeek-V3.1": Form(
        "<\uff5ctool\u2581call\u2581begin\uff5c>NAME<\uff5ctool\u2581sep\uff5c>ARGS"
        "<\uff5ctool\u2581call\u2581end\uff5c>",
        "json",
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
    "DeepSeek-R1": Form(
        "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>NAME\n```json\n"
        "ARGS\n```<\uff5ctool\u2581call\u2581end\uff5c>",
        "json",
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    ),
    "Qwen's flowers": Form("\u273fFUNCTION\u273f: NAME\n\u273fARGS\u273f: ARGS", "json"),
    "PLaMo": Form(
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:msg|>ARGS"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        "json",
        "<|plamo:begin_tool_requests:plamo|>",
    ),
    "ReAct": Form("Action: NAME\nAction Input: ARGS\nObservation: x", "json", is_plain=True),
    "ReAct with text": Form(
        "Action: NAME\nAction Input: ARGS\nObservation: x", "text", is_plain=True
    ),
    "Qwen3-Coder": Form(
        "<tool_call>\n<function=NAME>\nARGS</function>\n</tool_call>",
        "<parameter=KEY>\nVALUE\n</parameter>\n",
    ),
    "GLM": Form(
        "<tool_call>NAME\nARGS</tool_call>",
        "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
    ),
    "LongCat": Form(
        "<longcat_tool_call>NAME\nARGS</longcat_tool_call>",
        "<longcat_arg_key>KEY</longcat_arg_key>\n<longcat_arg_value>VALUE</longcat_arg_value>\n",
    ),
    "MiniMax": Form(
        '<invoke name="NAME">\nARGS</invoke>',
        '<parameter name="KEY">VALUE</parameter>\n',
        "<minimax:tool_call>\n",
        "\n",
        "\n</minimax:tool_call>",
    ),
    "calls with invoke": Form(
        '<invoke name="NAME">\nARGS</invoke>',
        '<parameter name="KEY">VALUE</parameter>\n',
        "<function_calls>\n",
        "\n",
        "\n</function_calls>",
    ),
    "DeepSeek-V3.2": Form(
        '<\uff5cDSML\uff5cinvoke name="NAME">\nARGS</\uff5cDSML\uff5cinvoke>',
        '<\uff5cDSML\uff5cparameter name="KEY" string="IS_TEXT">VALUE'
        "</\uff5cDSML\uff5cparameter>\n",
        "<\uff5cDSML\uff5cfunction_calls>\n",
        "\n",
        "\n</\uff5cDSML\uff5cfunction_calls>",
    ),
    "Step 3": Form(
        "<\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c>"
        '<steptml:invoke name="NAME">ARGS</steptml:invoke><\uff5ctool_call_end\uff5c>',
        '<steptml:parameter name="KEY">VALUE</steptml:parameter>',
        "<\uff5ctool_calls_begin\uff5c>",
    ),
    "FunctionGemma": Form(
        "<start_function_call>call:NAMEARGS<end_function_call>", "<escape>", name_end="{"
    ),
    "Gemma 4": Form("<|tool_call>call:NAMEARGS<tool_call|>", '<|"|>', name_end="{"),
    "Gemma 3": Form("NAME(ARGS)", "python", "```tool_code\n", "\n", "\n```", name_end="("),
    "Gemma 3, printed": Form(
        "print(NAME(ARGS))", "python", "```tool_code\n", "\n", "\n```", name_end="("
    ),
    "OLMo 3": Form(
        "NAME(ARGS)", "python", "<function_calls>\n", "\n", "\n</function_calls>", name_end="("
    ),
    "LFM2": Form(
        "NAME(ARGS)", "python", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", name_end="("
    ),
    "Llama 4": Form(
        "NAME(ARGS)", "python", "<|python_start|>[", ", ", "]<|python_end|>", name_end="("
    ),
    "Llama 3.1": Form("NAME.call(ARGS)", "python", "<|python_tag|>", "; ", name_end=".call("),
    "a list of Python calls": Form(
        "NAME(ARGS)", "python", "[", ", ", "]", name_end="(", is_plain=True
    ),
    "a Python call": Form("NAME(ARGS)", "python", name_end="(", is_plain=True),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
WITH_VALUES = {name: form for name, form in FORMS.items() if form.style != "text"}


def in_gemma(value: Any, quote: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{in_gemma(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(in_gemma(item, quote) for item in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def render_arguments(style: str, arguments: Mapping[str, Any]) -> str:
    if style == "json":
        return json.dumps(arguments, ensure_ascii=False)
    if style == "python":
        return ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    if style == "text":
        return "; ".join(map(str, arguments.values()))
    if "VALUE" not in style:
        return in_gemma(arguments, style)
    return "".join(
        style.replace("IS_TEXT", "true" if isinstance(value, str) else "false")
        .replace("KEY", key)
        .replace("VALUE", value if isinstance(value, str) else json.dumps(value))
        for key, value in arguments.items()
    )


def render_call(form: Form, name: str, arguments: Mapping[str, Any]) -> str:
    before, _, after = form.call.rpartition("ARGS")  # Mistral's [ARGS] comes before
    written = render_arguments(form.style, arguments)
    return before.replace("NAME", name) + written + after.replace("NAME", name)


def render(form: Form, *calls: tuple[str, Mapping[str, Any]]) -> str:
    return form.before + form.joint.join(render_call(form, *call) for call in calls) + form.after


def read(text: str, tools: Sequence[str] = TOOLS) -> TurnDecision:
    return read_decision(text, (), tools)


@each_form
def test_a_forms_call_is_read(form: Form) -> None:
    found = read(render(form, ("get_weather", ROME)))
    written = "Rome; 2" if form.style == "text" else '{"days": 2, "place": "Rome"}'
    assert found == TurnDecision("get_weather", written)


@each_form
def test_another_tool_is_another_decision(form: Form) -> None:
    assert read(render(form, ("find", ROME))).tool == "find"
    invented = read(render(form, ("invented", ROME)))
    assert invented.tool == "invented" or (form.is_plain and not invented.calls)


@each_form
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ROME, OSLO),
        (ROME, {"place": "Rome", "days": 3}),
        ({"text": "Thanks :)", "to": "Ann"}, {"text": "Thanks :)", "to": "Bob"}),
        ({"text": "1) pay 2) leave", "n": 5}, {"text": "1) pay 2) leave", "n": 500}),
        ({"items": ["a", "b"]}, {"items": ["a", "c"]}),
        ({"items": [1, 2]}, {"items": [1, 3]}),
        ({"a": {"x": 1}, "b": {"x": 2}}, {"a": {"x": 3}, "b": {"x": 2}}),
        ({"name": "Ann"}, {"name": "Bob"}),
        ({"arguments": {"a": 1}, "b": 2}, {"arguments": {"a": 1}, "b": 3}),
        ({"is_on": True}, {"is_on": 1}),
        ({"text": "true"}, {"text": "false"}),
        ({"text": "a"}, {"text": "a", "more": "b"}),
        ({}, {"text": "a"}),
    ],
)
def test_another_argument_is_another_decision(
    form: Form, one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = (read(render(form, ("find", arguments))) for arguments in (one, other))
    assert first.tool == second.tool == "find"
    assert first.arguments != second.arguments


@pytest.mark.parametrize("form", WITH_VALUES.values(), ids=WITH_VALUES)
def test_order_and_form_of_equal_values_do_not_count(form: Form) -> None:
    one = {"place": "Rome", "days": 2, "items": [1.0, 2]}
    other = {"items": [1, 2.0], "days": 2.0, "place": "Rome"}
    assert read(render(form, ("find", one))) == read(render(form, ("find", other)))


@each_form
def test_whitespace_outside_of_values_does_not_count(form: Form) -> None:
    text = render(form, ("find", ROME))
    for written in (f"\n  {text}\n", text.replace("\n", "\n\n")):
        assert read(written) == read(text)


@each_form
def test_a_cut_off_call_is_read_as_far_as_it_is_written(form: Form) -> None:
    arguments = {"text": "First, a word (or two).", "place": "Rome"}
    text = render(form, ("get_weather", arguments))
    name_end = form.name_end.replace("NAME", "get_weather")
    begin = text.index(f"get_weather{name_end}") + len("get_weather") + len(name_end)
    for end in range(begin, len(text)):
        assert read(text[:end]).tool == "get_weather", text[:end]
    begin = text.index("a word")
    cuts = [read(text[:end]) for end in (begin, begin + 1, begin + 6, begin + 9)]
    assert len(set(cuts)) == len(cuts)
    if form.call.index("ARGS") < form.call.index("NAME"):
        assert all(cut.tool.startswith(UNREAD_FORM) for cut in cuts)


@each_form
def test_the_first_of_several_calls_counts(form: Form) -> None:
    alone = read(render(form, ("get_weather", ROME)))
    assert alone.tool == "get_weather"
    for second in (("get_weather", OSLO), ("find", {"text": "a"}), ("get_weather", {})):
        assert read(render(form, ("get_weather", ROME), second)) == alone


@pytest.mark.parametrize("form", WITH_VALUES.values(), ids=WITH_VALUES)
def test_a_call_that_is_not_the_texts_start_is_read(form: Form) -> None:
    alone = read(render(form, ("find", ROME)))
    for words in ('For {"name": "Ann"}: ', "I look (at x=1) for it.\n", '```\n{"a": 1}\n```\n'):
        text = f"{words}{render(form, ('find', ROME))}"
        if not form.is_plain:
            assert has_call_marks(text)
            assert read(text) == alone
            assert read(text, ()) == alone


@each_form
def test_the_first_call_counts_even_if_its_tool_is_invented(form: Form) -> None:
    if not form.is_plain:
        found = read(render(form, ("invented", ROME), ("find", ROME)))
        assert found == read(render(form, ("invented", ROME)))
        assert found.tool == "invented"


@each_form
def test_no_name_or_argument_is_read_for_another(form: Form) -> None:
    """Names as the arguments' and texts with the marks of calls are arguments."""
    arguments = {"name": "find", "function": "find", "text": "a call:find{ functions.find:0 b"}
    found = read(render(form, ("get_weather", arguments)))
    assert found.tool == "get_weather"
    assert "functions.find:0 b" in found.arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        # Damaged calls: nothing is dropped
        ("<function=find><parameter=a>1</parameter>b", '{"a": 1} b'),
        ("<function=find><parameter=a>1</parameter></b>c", '{"a": 1} </b>c'),
        ("<function=find><parameter=a>1</parameter><param", '{"a": 1} <param'),
        ("<function=find><parameter=a>1</parameter></func", '{"a": 1}'),
        ("<function=find><parameter=a>1", "<parameter=a>1"),
        ("<function=find><parameter>1</parameter>", "<parameter>1</parameter>"),
        (
            "<function=find><parameter=a>1</parameter><parameter=a>2</parameter></function>",
            "<parameter=a>1</parameter><parameter=a>2</parameter>",
        ),
        ('<function=find><parameter=a>"x"</parameter></function>', '{"a": "\\"x\\""}'),
        ("<function=find><parameter=a>1e999</parameter></function>", '{"a": "1e999"}'),
        ('<invoke name="find"><\uff5cDSML\uff5cparameter>a', "<\uff5cDSML\uff5cparameter>a"),
        ("<tool_call>find</tool_call>", "{}"),
        ("<function=find>\n</function>", "{}"),
        ("<function=find>", ""),
        ("<tool_call>find(a=g(1), b=x, c='d')</tool_call>", "(a=g(1), b=x, c='d')"),
        ('<tool_call>find(c="d", b = x,a=g(1))</tool_call>', "(a=g(1), b=x, c='d')"),
        ("<tool_call>find(a=1, a=2)</tool_call>", "(a=1, a=2)"),
        ("<tool_call>find(a={'b': 1, 'b': 2})</tool_call>", "(a={'b': 1, 'b': 2})"),
        ("<tool_call>find(a=1e999)</tool_call>", "(a=1e309)"),
        ("<tool_call>find(a=b'c')</tool_call>", "(a=b'c')"),
        ("<tool_call>find(a=-1, b=(1, 2.0))</tool_call>", '{"a": -1, "b": [1, 2]}'),
        ("<tool_call>find(1, a=2)</tool_call>", '{"0": 1, "a": 2}'),
        ("<tool_call>find(**{'a': 1})</tool_call>", "(**{'a': 1})"),
        ("<tool_call>find(a=Thanks :), b=1)</tool_call>", "(a=Thanks :), b=1)</tool_call>"),
        ("<tool_call>find(a='\\d')</tool_call>", '{"a": "\\\\d"}'),
        ('<tool_call>{"name": "find", "a": 1}</tool_call>', '{"name": "find", "a": 1}'),
        ('<tool_call>{"name": "find", "id": "1"}</tool_call>', "{}"),
        (
            '<tool_call>{"name": "find", "function": {"a": 1}}</tool_call>',
            '{"name": "find", "function": {"a": 1}}',
        ),
        (
            '<tool_call>{"name": "find", "args": {"a": 1, "a": 2}}</tool_call>',
            '{"a": 1, "a": 2}',
        ),
        (
            '<tool_call>{"name": "find", "args": 1, "arguments": {}}</tool_call>',
            '{"name": "find", "args": 1, "arguments": {}}',
        ),
        ('<tool_call>{"name": "find", "args": {"a": 1e999}}', '{"a": 1e999}'),
        ('<tool_call>{"name": "find", "arguments": "{\\"a\\": 1.0}"}', '{"a": 1}'),
        ("call:find{a:b c,d:[true,<escape>true<escape>]}", '{"a": "b c", "d": [true, "true"]}'),
        ("call:find{a:12:30}", "{a:12:30}"),
        ("call:find{a:1,a:2}", "{a:1,a:2}"),
        ("Action: find\nAction Input: Rome in\n May\nThought: x", "Rome in May"),
        ('Action: find\nAction Input: ```json\n{"a": 1.0}\n```', '{"a": 1}'),
        ("```tool_code\nresult = find(a=1)\nprint(result)\n```", '{"a": 1}'),
        ("```tool_code\nprint(default_api.find(a=1))\n```", '{"a": 1}'),
    ],
)
def test_arguments_of_any_text_are_kept(text: str, arguments: str) -> None:
    assert read(text) == TurnDecision("find", arguments)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nI do not know.",
        '<tool_call>{"name": "get_wea',
        '<tool_call>{"arguments": {"name": "find"}}',
        '<tool_call>{"name": "", "arguments": {}}',
        "<|python_tag|>import os\nprint(os.name)",
        "<\uff5cDSML\uff5cfunction_calls>",
        "<|content_invoke_tool_text|>find",
        "[TOOL_CALLS]",
        "Action: look for it\nAction Input: Rome",
        "<invoke><find>Rome</find></invoke>",
    ],
)
def test_a_call_in_a_form_that_is_not_read_is_a_call(text: str) -> None:
    found = read(text)
    assert found.tool.startswith(UNREAD_FORM)
    assert found.arguments == " ".join(text.split())
    assert read(f"\n{text} ") == found
    assert read(f"{text} x") != found


@pytest.mark.parametrize(
    "text",
    [
        'The answer is {"name": "find", "arguments": {}}.',
        '{"name": "Ada", "age": 36}',
        '```json\n{"name": "Ada"}\n```',
        "Action: find\nthe book that you want.",
        "I use find(place='Rome') for it.",
        "To call: find {it}",
        "The name functions.find:0 is Kimi's",
        "f(x) = 2 x",
        "invented('Rome')",
    ],
)
def test_a_text_that_tells_of_calls_is_none(text: str) -> None:
    assert not read(text).calls


# --- Any name and any arguments

FRAGMENTS = (
    *"abZ9é\\'\"()[]{},:=#;`_- ",
    "\n",
    "</tool_call>",
    "<tool_call>",
    '{"name": "find", "arguments": {}}',
    "[find(a=1)]",
    "true",
    "find",
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,30}", fullmatch=True).filter(
    lambda name: name != "function"  # DeepSeek-R1 writes it before each name
)
KEYS = st.sampled_from(["name", "arguments", "parameters", "path", "content", "a", "b_1"])
WORDS = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    WORDS | NUMBERS | st.booleans(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=6,
)
# Tags tell no text from a value that is written alike; a ReAct text has no structure.
TEXTS = WORDS.map(lambda text: f"x{text}".strip())
ONE_LINE = TEXTS.map(lambda text: " ".join(text.split()))


def arguments_of(style: str) -> st.SearchStrategy[dict[str, Any]]:
    if style == "text":
        return st.dictionaries(st.just("a"), ONE_LINE, min_size=1)
    values = TEXTS | st.integers() if "VALUE" in style else VALUES
    return st.dictionaries(KEYS, values, max_size=4)


@each_form
@settings(max_examples=20)
@given(data=st.data())
def test_any_call_is_read_and_equals_only_its_equals(form: Form, data: st.DataObject) -> None:
    name = data.draw(NAMES)
    one, other = data.draw(arguments_of(form.style)), data.draw(arguments_of(form.style))
    text = render(form, (name, one))
    tools = (name,) if form.is_plain or data.draw(st.booleans()) else ()
    first, second = read(text, tools), read(render(form, (name, other)), tools)
    assert (first.tool, second.tool) == (name, name)
    assert (first.arguments == second.arguments) is (as_read(one) == as_read(other))
    assert read(render(form, (name, one), (name, other)), tools) == first
    read(text[: data.draw(st.integers(0, len(text)))], tools)  # no error


def as_read(value: Any) -> str:
    """Return a JSON text in which 1, 1.0 and True differ as they do in JSON."""
    if isinstance(value, dict):
        return f"{{{sorted((key, as_read(item)) for key, item in value.items())}}}"
    if isinstance(value, list):
        return str([as_read(item) for item in value])
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return repr(value)


PARTS = (
    *("<tool_call>", '<tool_call>{"name": "f", "a": ', "<tool_call>f ", "<function=f>", "[", "{"),
    *("<parameter=a>", "<arg_key>a</arg_key><arg_value>", "call:f{a:", "f(a='", '\\"', '"', "("),
    *("Action: f\n\n", "\n", " ", "<|python_tag|><|a|>", "```json\n{", "a", "a.", "\\", "1+"),
    *('{"a":', "{1:", "[TOOL_CALLS] ", "-", ") ", "<\uff5cDSML\uff5c", "functions.f:0"),
)
BEGINNINGS = (
    "",
    "f(x=1)",
    "[find(a=",
    '<tool_call>{"name": "find", "arguments": {"a": "',
    "call:f{",
)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_long_texts_are_read_in_time(beginning: str) -> None:
    began = time.process_time()
    for part in PARTS:
        read(beginning + part * (30_000 // len(part)))
    assert time.process_time() - began < 20  # it takes about one; a quadratic search, minutes


def test_two_calls_in_a_form_that_is_not_read_are_two_tools() -> None:
    """Which tool each calls is not known, so only equal texts keep it."""
    first, again, other = (
        find_call(f"<tool_call>\n??? {name} ???\n</tool_call>", {"refund", "close"})
        for name in ("refund", "refund ", "close")
    )
    assert first is not None
    assert first.tool.startswith(UNREAD_FORM)
    assert (first == again, first == other) == (True, False)
    assert other is not None
    assert first.tool != other.tool


def test_the_indentation_of_a_value_of_several_lines_is_its_own() -> None:
    """Tools that edit code are given it."""
    texts = [
        f"<tool_call>\n<function=edit>\n<parameter=old>\n{blank}return x\n{blank}y\n</parameter>\n"
        "</function>\n</tool_call>"
        for blank in ("", "    ")
    ]
    first, other = (read_decision(text, (), ("edit",)) for text in texts)
    assert first.tool == other.tool == "edit"
    assert first.arguments != other.arguments
