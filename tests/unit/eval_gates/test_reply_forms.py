"""Right answers in other forms than OpenAI's, of both APIs: they are read, or are an error."""

from __future__ import annotations

import json
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from http_stand_in import HttpStandIn, SilentHandler

from eval_gates import ask
from eval_gates.answer_validity import check_answers, remarks_on
from eval_gates.ask import Client, seconds_to_wait
from eval_gates.replies import finish, read_chat, read_completion
from eval_gates.reply_forms import (
    AS_OBJECT,
    EMPTY_THOUGHT,
    ENDED,
    ENTITIES,
    FENCED,
    REPEATED,
    begins_with_thought,
    has_call_marks,
    without_added_entities,
)
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply, Score
from eval_gates.suites.code_extraction import extract_code
from eval_gates.suites.structured import find_fault
from prepare.errors import StageError

ARGUMENTS = {"a": 1, "b": "x < y"}
WRITTEN = json.dumps(ARGUMENTS)
USAGE = {"usage": {"completion_tokens": 3}}
LINE = "def small(n):\n    return n < 5 and n > -5\n"
ESCAPED = LINE.replace("<", "&lt;").replace(">", "&gt;")
SPARE: dict[str, Any] = {"prompt_sha256": "s", "score": 0.0, "tokens": (9,)}


# As OpenChat, EXAONE, SmolVLM, Hunyuan, Ling, MiniMax, Nemotron, ERNIE, Grok, TeleChat, Seed, GLM.
OTHER_ENDS = (
    *("<|end_of_turn|>", "[|endofturn|]", "<end_of_utterance>", "<|eos|>", "<|role_end|>", "[e~["),
    *("<extra_id_1>", "<SPECIAL_12>", "<|end_of_sentence|>", "<|separator|>", "<_end>"),
    *("<seed:eos>", "<|observation|>", "<|im_sep|>", "<pad>", "<|END_OF_TEXT|>", "<|eom|>"),
)


def chat_reply(**message: Any) -> Reply:
    body = {"choices": [{"message": {"role": "assistant", **message}}], **USAGE}
    return finish(*read_chat(body), (), None)


def completion_reply(text: str) -> Reply:
    return finish(*read_completion({"choices": [{"text": text}], **USAGE}), (), None)


def both_apis(text: str) -> list[Reply]:
    return [chat_reply(content=text), completion_reply(text)]


def rows_of(texts: list[str], **fields: Any) -> list[Answer]:
    return [
        Answer(id=str(n), answer=text, **{**SPARE, "prompt_sha256": str(n), **fields})
        for n, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (WRITTEN, ""),
        (ARGUMENTS, AS_OBJECT),
        (json.dumps(WRITTEN), REPEATED),
        (json.dumps(json.dumps(WRITTEN)), REPEATED),
        (json.dumps(f"```json\n{WRITTEN}\n```"), REPEATED),
        (f"```json\n{json.dumps(WRITTEN)}\n```", FENCED),
        (WRITTEN.replace('"', "&quot;").replace("<", "&lt;"), ENTITIES),
        (f"```json\n{WRITTEN}\n```", FENCED),
        (f"```\n{WRITTEN}```", FENCED),
    ],
)
@pytest.mark.parametrize("is_legacy", [False, True])
def test_arguments_are_read_in_the_forms_that_servers_write(
    arguments: Any, form: str, is_legacy: bool
) -> None:
    function = {"name": "f", "arguments": arguments}
    message = {"function_call": function} if is_legacy else {"tool_calls": [{"function": function}]}
    reply = chat_reply(content=None, **message)
    ((name, written),) = reply.calls
    assert (name, json.loads(written)) == ("f", ARGUMENTS)
    assert reply.forms == ((form,) if form else ())


@pytest.mark.parametrize("arguments", ["{1", '"a text"', "```json\n{1\n```", "[1]", "", None])
def test_the_models_own_arguments_stay_as_they_are(arguments: str | None) -> None:
    function = {"name": "f", "arguments": arguments}
    reply = chat_reply(tool_calls=[{"function": function}])
    assert (reply.calls[0].arguments, reply.forms) == (arguments or "", ())


@pytest.mark.parametrize("arguments", [[1], 3, True])
def test_arguments_that_are_no_text_and_no_object_are_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match="arguments"):
        chat_reply(tool_calls=[{"function": {"name": "f", "arguments": arguments}}])


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": "yes"}],
        [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}],
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "no, B"}]},
            {"type": "text", "text": "yes"},
        ],
        [{"type": "thinking", "thinking": "no, B"}, {"type": "text", "text": "yes"}],
        [{"type": "reasoning", "text": "no, B"}, {"type": "output_text", "text": "yes"}],
    ],
)
def test_a_messages_parts_are_read_without_its_thoughts(parts: list[Any]) -> None:
    assert chat_reply(content=parts).text == "yes"


def test_other_parts_are_refused_and_refusals_are_seen() -> None:
    with pytest.raises(ValueError, match="image_url"):
        chat_reply(content=[{"type": "image_url", "image_url": {}}])
    assert chat_reply(content=[{"type": "refusal", "refusal": "No."}]).is_refused
    only = chat_reply(content=[{"type": "thinking", "thinking": "why"}])
    assert only.is_thought


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("yes<|im_end|>", "yes"),
        ("yes</s>", "yes"),
        ("yes<|im_end|>\n<|endoftext|>", "yes"),
        ("yes<\uff5cend\u2581of\u2581sentence\uff5c>", "yes"),
        *((f"yes{token}", "yes") for token in OTHER_ENDS),
        ("yes<|tool_call_end|>", "yes<|tool_call_end|>"),
        ("a <|im_end|> in a text", "a <|im_end|> in a text"),
        ("write <b>", "write <b>"),
        ("<S>no</S>", "<S>no</S>"),
        ("<s>no</s>", "<s>no</s>"),
        ("</s> closes it", "</s> closes it"),
    ],
)
def test_a_trailing_end_token_is_removed(text: str, left: str) -> None:
    for reply in both_apis(text):
        assert reply.text == left
        assert reply.forms == (() if text == left else (ENDED,))


def test_an_empty_thought_is_removed() -> None:
    for reply in both_apis("<think>\n\n</think>\n\nyes"):
        assert (reply.text, reply.forms) == ("yes", (EMPTY_THOUGHT,))


@pytest.mark.parametrize(
    ("text", "is_thought"),
    [
        ("<think>\nwhy\n</think>\n\nyes", True),
        ("  <think>\nwhy, without an end", True),
        ("why\n</think>\n\nyes", True),
        ("\u25c1think\u25b7why\u25c1/think\u25b7yes", True),
        ("<|channel|>analysis<|message|>why", True),
        ("analysisWe need x.assistantfinalyes", True),
        ("<reasoning>why</reasoning>yes", True),
        ("<|begin_of_thought|>why<|end_of_thought|>yes", True),
        ("<unused94>thought\nwhy<unused95>yes", True),
        ("<longcat_think>\nwhy</longcat_think>yes", True),
        ("why</longcat_think>yes", True),
        ("<THINK>why</THINK>yes", True),
        ("&lt;think&gt;why&lt;/think&gt;yes", True),
        ("Here is my thought process:\nwhy\nHere is my response:\nyes", True),
        ("why\n[BEGIN FINAL RESPONSE]\nyes", True),
        ("<answer>yes</answer>", False),
        ("Put it in <thought> and </thought>", False),
        ("yes", False),
        ("analysis of it", False),
        ("Write <think> and </think> around it", False),
    ],
)
def test_thoughts_at_the_start_of_an_answer_are_seen(text: str, is_thought: bool) -> None:
    assert begins_with_thought(text) is is_thought
    rows = rows_of([f"{text} {n}" for n in range(20)])
    if is_thought:
        with pytest.raises(StageError, match="20 begin with a thought") as caught:
            check_answers("ifeval", rows, max_tokens=64, is_complete=False)
        assert "thinking" in caught.value.hint
    check_answers("code", rows, max_tokens=64, is_complete=True, takes_thoughts=True)


def test_equal_thoughts_that_a_stop_string_cut_are_named_as_thoughts() -> None:
    rows = rows_of(["<think>\nFirst, a guess."] * 20, score=0.1)
    with pytest.raises(StageError, match="begin with a thought"):
        check_answers("rouge", rows, max_tokens=96, is_complete=True)


def test_a_few_thoughts_are_a_remark() -> None:
    rows = rows_of(["yes"] * 17 + ["<think>why</think>no"] * 3)
    (remark,) = remarks_on(rows, takes_thoughts=False)
    assert remark.startswith("3 of 20 answers begin with a thought")
    assert remarks_on(rows, takes_thoughts=True) == []


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        'Let me.\n<tool_call>{"name": "f"}</tool_call>',
        '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
        '{"name": "f", "parameters": {"a": 1}}',
        '```json\n[{"name": "f", "arguments": {"a": 1}}]\n```',
        "<function=f>{}</function>",
        "<|tool_calls_section_begin|>",
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        '<|python_tag|>{"name": "f"}',
        "[f(a=1)]",
        "[get_weather(city='Rome'),\n f(a=1)]",
        "f(a=1)",
        "<|python_start|>[f()]<|python_end|>",
        "```tool_code\nf(a=1)\n```",
        "<start_function_call>call:f{a:1}<end_function_call>",
        '{"type": "function", "name": "f", "parameters": {}}',
        '{"arguments": {}, "name": "f"}',
        '{"tool_calls": [{"name": "f", "arguments": {}}]}',
        'Sure!\n```json\n{"name": "f", "arguments": {}}\n```',
        '[TOOL_REQUEST]{"name": "f", "arguments": {}}[END_TOOL_REQUEST]',
        '<\uff5cDSML\uff5cinvoke name="f">',
        "<longcat_tool_call>f</longcat_tool_call>",
        'Action: f\nAction Input: {"a": 1}',
        '&lt;tool_call&gt;{"name": "f"}&lt;/tool_call&gt;',
    ],
)
def test_a_server_that_parses_no_call_is_an_error(text: str) -> None:
    assert has_call_marks(text)
    refusing = rows_of(["I cannot."] * 16, own={"calls": [[]]}, score=1.0)
    rows = [*rows_of([text] * 4, own={"calls": [[]]}), *refusing]
    for is_complete in (True, False):
        with pytest.raises(StageError, match="none of 20 has a call, and 4") as caught:
            check_answers("tools", rows, max_tokens=64, is_complete=is_complete)
        assert "--tool-call-parser" in caught.value.hint
    called = replace(rows[-1], own={"calls": [[{"name": "f", "arguments": "{}"}]]})
    mixed = [*rows[:-1], called]
    check_answers("tools", mixed, max_tokens=64, is_complete=True, takes_thoughts=True)
    assert remarks_on(mixed, takes_thoughts=True)[0].startswith("4 of 20 answers have call marks")


@pytest.mark.parametrize(
    "text",
    [
        "I cannot call it.",
        '{"answer": 3}',
        '{"name": "Ada"}',
        "It is f(x) = 3.",
        "[1, 2]",
        "print(1) shows it",
    ],
)
def test_other_texts_are_no_calls(text: str) -> None:
    assert not has_call_marks(text)


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{ESCAPED}```",
        ESCAPED,
        "```python\ndef small(n):\n    return n &lt; 5\n```",
        "```python\ndef small(n):\n    note = &#39;it&#39;\n    return n &lt; 5\n```",
    ],
)
def test_escaped_code_is_read(answer: str) -> None:
    names: dict[str, Any] = {}
    exec(extract_code(answer, "def small(n):\n", "small", "chat").code, names)
    assert (names["small"](2), names["small"](9)) == (True, False)


def test_entities_that_a_program_needs_stay() -> None:
    code = 'def safe(text):\n    return text.replace("<", "&lt;").replace(">", "&gt;")\n'
    found = extract_code(f"```python\n{code}```", "def safe(text):\n", "safe", "chat")
    assert found.code == code


def test_escaped_json_is_read_and_its_own_entities_stay() -> None:
    assert find_fault("{&quot;a&quot;: 1}", {"required": ["a"]}) == ""
    for needed in ("&lt;", "<"):
        assert find_fault('{"a": "&lt;"}', {"properties": {"a": {"const": needed}}}) == ""
    assert find_fault('{"a": "&lt;"}', {"properties": {"a": {"const": ">"}}})


def test_a_text_that_is_compared_has_no_entities_that_the_question_lacks() -> None:
    assert without_added_entities("it&#39;s &lt;5", "Summarize.") == "it's <5"
    assert without_added_entities("it&#39;s &lt;5", "Write &lt; for <.") == "it&#39;s &lt;5"


def test_an_answers_row_has_its_forms() -> None:
    question = Question("q", "Write.")
    asked = AnsweredQuestion(question, [Reply(ESCAPED, 5, forms=(ENDED,))], question)
    rows = [Answer.of(asked, Score(1.0), thinks=False)] * 20
    assert rows[0].own["forms"] == sorted((ENDED, ENTITIES))
    assert [each[:8] for each in remarks_on(rows, takes_thoughts=False)] == ["20 of 20"] * 2
    shown = Question("q", "Write &lt; for <.")
    row = Answer.of(asked._replace(question=shown), Score(1.0), thinks=False)
    assert row.own["forms"] == [ENDED]


@pytest.mark.parametrize(
    ("texts", "stored"), [(["one"], "one"), (["one", "two", ""], ["one", "two", ""])]
)
def test_every_sample_of_a_question_is_stored(texts: list[str], stored: object) -> None:
    question = Question("q", "Write.")
    asked = AnsweredQuestion(question, [Reply(text, 5) for text in texts], question)
    answer = Answer.of(asked, Score(1.0), thinks=False)
    assert answer.to_row()["answer"] == stored
    assert Answer.from_row(answer.to_row()) == answer


class Endpoint(HttpStandIn):
    """Gives these answers in turn, the last one again: status, headers, body."""

    def __init__(self, *answers: tuple[int, dict[str, str], Any]) -> None:
        self.answers = list(answers)
        self.requests = 0
        endpoint = self

        class Handler(SilentHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, body = endpoint.answers[0]
                if len(endpoint.answers) > 1:
                    endpoint.answers.pop(0)
                endpoint.requests += 1
                content = json.dumps(body).encode()
                self.send_response(status)
                for key, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

        super().__init__(Handler)

    def ask(self, notes: list[str] | None = None) -> Reply:
        client = Client(
            self.url,
            "m",
            {"max_gen_toks": 8},
            by_chat=True,
            note=(notes if notes is not None else []).append,
        )
        ((reply,),) = client.ask([Question("q", "Say.")])
        return reply


RIGHT = (200, {}, {"choices": [{"message": {"content": "yes"}}], **USAGE})
LIMITED = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []

    async def sleep(seconds: float) -> None:
        times.append(seconds)

    monkeypatch.setattr(ask.asyncio, "sleep", sleep)
    return times


def test_the_time_that_a_server_asks_for_is_waited_as_often_as_it_asks(
    slept: list[float],
) -> None:
    notes: list[str] = []
    with Endpoint(*[(429, {"Retry-After": "20"}, LIMITED)] * 5, RIGHT) as server:
        assert server.ask(notes).text == "yes"
    assert sum(slept) == pytest.approx(100, abs=5)
    assert len(notes) == 1
    assert "Rate limit reached" in notes[0]


def test_no_server_is_waited_for_without_an_end(slept: list[float]) -> None:
    with Endpoint((429, {"Retry-After": "250"}, LIMITED)) as server:
        with pytest.raises(ask.RateLimitError, match=r"250 s.*Rate limit reached"):
            server.ask()
        assert server.requests == 3
    with Endpoint((503, {"Retry-After": "86400"}, {})) as server:
        with pytest.raises(StageError, match="86,400 s"):
            server.ask()
        assert server.requests == 1
    assert sum(slept) <= ask.PATIENCE_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("1.5", 1.5), ("0", 1), ("", None), (None, None), ("soon", None), ("-3", None)],
)
def test_the_forms_of_retry_after(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    found = seconds_to_wait(formatdate(usegmt=True))
    assert found == 1
    assert seconds_to_wait("Fri, 31 Dec 2100 23:59:59 GMT") > 1e9  # type: ignore[operator]


ERRORS = [
    {"error": {"message": "Provider returned error", "code": 502}},
    {"error": "Provider returned error"},
    {"object": "error", "message": "Provider returned error", "code": 500},
    {"choices": [{"error": {"message": "Provider returned error"}, "message": {}}], **USAGE},
]


@pytest.mark.parametrize("body", ERRORS)
def test_an_error_of_status_200_is_tried_again_and_shown(body: Any, slept: list[float]) -> None:
    with Endpoint((200, {}, body), RIGHT) as server:
        assert server.ask().text == "yes"
    with Endpoint((200, {}, body)) as server:
        with pytest.raises(StageError, match="Provider returned error"):
            server.ask()
        assert server.requests == ask.TRIES


def test_an_error_of_status_200_may_refuse_the_request() -> None:
    refused = (200, {}, {"error": {"message": "no such model", "code": 404}})
    with Endpoint(refused) as server, pytest.raises(StageError, match="no such model"):
        server.ask()
    with Endpoint((200, {}, {**RIGHT[2], "error": None})) as server:
        assert server.ask().text == "yes"
