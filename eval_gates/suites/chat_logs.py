"""Logs of conversations in OpenAI's form: their lines, and what of them an arm's server renders."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from eval_gates.prompt_scores import first_difference
from eval_gates.reply_forms import has_call_marks, read_content
from eval_gates.rows import Question
from eval_gates.suites.json_lines import id_of, read_rows
from prepare.digest import digest_json
from prepare.errors import EvaluationDataError, StageError
from prepare.events import Progress
from prepare.untrusted import parse_json

STEM = "conversations"
CARRIED_FILE = Path(__file__).parents[1] / "data" / "conversations.jsonl"
TEXTS = "conversations.jsonl"  # next to the questions; never in a bundle
TOLD = "Summarize the following text in one paragraph.\n\n"
SESSION = "session"
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?|\d{10,}")
_SHOWN_PLACES = 3  # of equal remarks
_ROLES = ("system", "user", "assistant", "tool")
_OTHER_ROLES = {"developer": "system", "function": "tool"}
# Templates read these, too.
_TEXTS_OF = {
    "tool": ("tool_call_id", "name"),
    "assistant": ("reasoning", "reasoning_content"),
}
_HINT = "each line needs messages (as of OpenAI's chat API; tools, too) or prompt (a text)"
_TURNS_HINT = "each line needs messages, as of OpenAI's chat API: texts, and calls of tools"


def read_conversation(row: Mapping[str, Any], place: str, remarks: list[Remark]) -> dict[str, Any]:
    """Return what comes before a line's last answer, with its `tools`; or its `prompt`.

    A line with a `document` alone is a text to summarize. What is read otherwise is added to
    `remarks`, with its place. EvaluationDataError: the line is no conversation.
    """
    prompt = row.get("prompt")
    if not row.get("messages"):
        if isinstance(prompt, str) and prompt:
            return {"prompt": prompt}
        if isinstance(row.get("document"), str):
            told = TOLD + row["document"]
            return chat_of([{"role": "user", "content": told}], [])
        raise EvaluationDataError("the line has no conversation", where=place, hint=_HINT)
    messages, ends = _places_to_write(row, place, remarks)
    tools = _read_tools(row, place, ())
    remarks += _remarks_on_calls(row, messages, tools, place)
    return chat_of(messages[: ends[-1]], tools)


def chat_of(messages: list[dict[str, Any]], tools: list[Any]) -> dict[str, Any]:
    """Return messages and tools as a request has them."""
    return {"messages": messages, **({"tools": tools} if tools else {})}


class LaidOut(NamedTuple):
    """A conversation as it was laid out."""

    content: dict[str, Any]  # `messages` and `tools`, or `prompt`
    digest: str


def digest_of(added: Mapping[str, Any], before: str = "") -> str:
    """Return a conversation's digest: of what it adds to the one of the digest `before`."""
    return digest_json([before, added]) if before else digest_json(added)


def read_chats(file: Path) -> dict[str, LaidOut]:
    """Return the laid-out conversations by id; raises as :func:`read_rows`.

    A row has what it adds to the one that it is `after`: a long session is written once.
    """
    chats = dict[str, LaidOut]()
    for _, row in read_rows(file):
        name = str(row.pop("id", ""))
        before = chats.get(str(row.pop("after", "")), LaidOut({}, ""))
        content = dict(row)
        for key, earlier in before.content.items():
            content[key] = [*earlier, *row.get(key, ())]
        chats[name] = LaidOut(content, digest_of(row, before.digest))
    return chats


def open_chats(folder: Path, questions: Sequence[Question]) -> dict[str, dict[str, Any]]:
    """Return the content of laid-out conversations by id.

    EvaluationDataError: they are not those of the questions. Raises as :func:`read_rows`, too.
    """
    chats = read_chats(folder / TEXTS)
    if any(
        question.id not in chats or chats[question.id].digest != question.prompt
        for question in questions
    ):
        raise EvaluationDataError(
            "the conversations are not those that were laid out",
            where=str(folder / TEXTS),
            hint=f"delete the folder {folder} and run the same command again",
        )
    return {name: chat.content for name, chat in chats.items()}


class Remark(NamedTuple):
    """What is read otherwise than a log has it. Reports have these, so they name nothing of it."""

    place: str
    what: str


def tell(remarks: Sequence[Remark], progress: Progress) -> None:
    """Note what was read otherwise, with how often, and the first places."""
    places = defaultdict[str, list[str]](list)
    for remark in remarks:
        places[remark.what].append(remark.place)
    for what, all_places in places.items():
        shown = "; ".join(all_places[:_SHOWN_PLACES])
        if (more := len(all_places) - _SHOWN_PLACES) > 0:
            shown += f"; and at {more:,} further places"
        progress.note(f"{shown}: {what}")


class Turn(NamedTuple):
    """A place of a session at which the model writes."""

    session: str
    number: int
    messages: list[dict[str, Any]]  # before it
    added: dict[str, Any]  # messages since the turn `after`; or all, and the tools
    after: int | None  # number of the turn before it
    digest: str
    tools: list[Any]  # in OpenAI's form; a text names one that prepare carries
    fields: dict[str, Any]  # other keys of the line
    answer: dict[str, Any] | None = None  # of the log itself, which no arm is sent


class _EndedError(Exception):
    """What follows in a session cannot be rendered."""


class NamedSession(NamedTuple):
    """A line's session, and why it is an earlier line's without having its name."""

    name: str
    why: str = ""


class Said(NamedTuple):
    """A line's messages, and how many there are before each place at which an assistant writes."""

    messages: Sequence[Mapping[str, Any]]
    ends: Sequence[int]

    def digests(self) -> list[str]:
        """Return digests of what was said up to each of these places; '' if a user said nothing."""
        digests = list[str]()
        roles = set[str]()
        system = list[str]()
        said = ""
        for begin, end in pairwise([0, *self.ends]):
            added = self.messages[begin:end]
            roles.update(message["role"] for message in added)
            spoken = [message for message in added if message["role"] != "system"]
            said = digest_of({"messages": spoken}, said)
            system += [_TIME.sub("", one["content"]) for one in added if one["role"] == "system"]
            if "user" not in roles:
                digests.append("")
            elif "assistant" not in roles:
                digests.append(digest_of({"system": system}, said))
            else:
                digests.append(said)
        return digests


class Sessions:
    """The sessions of a log's lines.

    Lines with equal `session` are one, and so is a line without it with the one that it continues:
    servers log each request with all that was said before. What was said decides, without tools:
    one that is added begins no other session. Until an assistant has answered, the system prompt
    counts, too, but for a date or a time in it: many conversations begin with one greeting.
    """

    def __init__(self) -> None:
        self._ended: dict[str, str] = {}  # session by the last turn of a line without a name of it
        self._named = set[str]()

    def of_line(self, line: int, place: str, row: Mapping[str, Any], said: Said) -> NamedSession:
        """Return the session of a line; EvaluationDataError for one without a name."""
        if row.get(SESSION) is not None:
            name = str(row[SESSION])
            self._named.add(name)
            if not name.strip():
                raise EvaluationDataError(
                    "the line's session has no name, so it would be one with all others of none",
                    where=place,
                    hint=f"leave the key '{SESSION}' out, or give each session its name",
                )
            return NamedSession(name)
        name = id_of(row, f"session/{line}")
        digests = said.digests()
        earlier = (self._ended[turn] for turn in digests[-2::-1] if turn in self._ended)
        session = next(earlier, name)
        if digests[-1]:
            self._ended.setdefault(digests[-1], session)
        why = ""
        if session != name:
            why = "it continues the session of an earlier line"
        elif name in self._named:
            why = "its id is that of an earlier line, so both are read as one session"
        self._named.add(name)
        return NamedSession(session, why)


def sessions_of(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return each line's session; a line without messages is separate.

    EvaluationDataError: a line is no conversation.
    """
    sessions = Sessions()
    names = []
    for line, (place, row) in enumerate(rows):
        said = Said([{"role": "user", "content": f"line {line}"}], [1])
        if row.get("messages"):
            said = Said(*_places_to_write(row, place, []))
        names.append(sessions.of_line(line, place, row, said).name)
    return names


def _parts_of(
    messages: list[dict[str, Any]], ends: Sequence[int], tools: list[Any]
) -> list[dict[str, Any]]:
    """Return what is before the first turn, and what each further one adds to it."""
    first = chat_of(messages[: ends[0]], tools)
    return [first, *({"messages": messages[begin:end]} for begin, end in pairwise(ends))]


def _digests_along(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the digest of a conversation up to the end of each part."""
    digests = accumulate(parts, lambda before, added: digest_of(added, before), initial="")
    return [*digests][1:]


def read_turns(
    rows: Sequence[tuple[str, Mapping[str, Any]]], carried: Collection[str] = ()
) -> tuple[list[Turn], list[Remark]]:
    """Return each place at which an assistant writes, and what was read otherwise, with its line.

    The first of a session's equal turns counts. `rows` have their places, and `carried` the names
    of tools that a line may name. EvaluationDataError: a line is no conversation.
    """
    turns = list[Turn]()
    remarks = list[Remark]()
    known = dict[tuple[str, str], Turn]()
    answers = dict[tuple[str, str], dict[str, Any]]()
    counts = Counter[str]()
    sessions = Sessions()
    for line, (place, row) in enumerate(rows):
        tools = _read_tools(row, place, carried)
        fields = {key: row[key] for key in row.keys() - {"messages", "tools", "functions"}}
        messages, ends = _places_to_write(row, place, remarks)
        remarks += _remarks_on_calls(row, messages, tools, place)
        parts = _parts_of(messages, ends, tools)
        digests = _digests_along(parts)
        session, why = sessions.of_line(line, place, row, Said(messages, ends))
        if why:
            remarks.append(Remark(place, why))
        fields[SESSION] = session
        before: Turn | None = None
        for end, added, digest in zip(ends, parts, digests, strict=True):
            if end < len(messages):
                answers.setdefault((session, digest), messages[end])
            turn = known.get((session, digest))
            if turn is None:
                turn = Turn(
                    session=session,
                    number=counts[session],
                    messages=messages[:end],
                    added=added,
                    after=before.number if before is not None else None,
                    digest=digest,
                    tools=tools,
                    fields=fields,
                )
                known[session, digest] = turn
                turns.append(turn)
                counts[session] += 1
            before = turn
    answered = [turn._replace(answer=answers.get((turn.session, turn.digest))) for turn in turns]
    return answered, remarks


def _places_to_write(
    row: Mapping[str, Any], place: str, remarks: list[Remark]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the messages, and how many there are before each turn of the assistant.

    What comes after the end is a turn, too.
    """
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise EvaluationDataError("the line has no messages", where=place, hint=_TURNS_HINT)
    read = list[dict[str, Any]]()
    ends = list[int]()
    for number, message in enumerate(messages, start=1):
        where = f"{place}, message {number}"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EvaluationDataError("a message has no role", where=where, hint=_TURNS_HINT)
        is_answer = message["role"] == "assistant"
        if is_answer and read and read[-1]["role"] != "assistant":
            ends.append(len(read))
        try:
            read.append(_read_message(message, where, remarks))
            if is_answer and len(read) > 1 and read[-2]["role"] == "assistant":
                raise _EndedError("the assistant writes twice in a row")
        except _EndedError as error:
            remarks.append(Remark(where, f"{error}; the session is read up to there"))
            break
    else:
        if read[-1]["role"] != "assistant":
            ends.append(len(read))
    if not ends:
        raise EvaluationDataError(
            "the conversation has no place at which an assistant writes",
            where=place,
            hint=_TURNS_HINT,
        )
    return read, ends


def _read_message(message: Mapping[str, Any], where: str, remarks: list[Remark]) -> dict[str, Any]:
    """Return a message in the form that every server takes; _EndedError for a damaged answer."""
    role = message["role"]
    if role in _OTHER_ROLES:
        remarks.append(Remark(where, f"the role {role} is read as {_OTHER_ROLES[role]}"))
    if role == "function":  # OpenAI's first API of functions, which has one call a message
        message = {"tool_call_id": _call_id(0), **message}
    role = _OTHER_ROLES.get(role, role)
    if role not in _ROLES:
        raise EvaluationDataError(
            f"the role {str(role)[:40]!r} is unknown",
            where=where,
            hint=f"roles are {', '.join([*_ROLES, *_OTHER_ROLES])}",
        )
    written = message.get("content")
    if role == "assistant" and not written:
        written = message.get("refusal")  # where OpenAI's API has it
    try:
        text, _, _ = read_content(written)
    except ValueError as error:
        raise EvaluationDataError(
            "the message is not a text", where=where, hint=_TURNS_HINT
        ) from error
    read: dict[str, Any] = {"role": role, "content": text}
    kept = _TEXTS_OF.get(role, ())
    read |= {key: str(message[key]) for key in kept if isinstance(message.get(key), str | int)}
    if role != "assistant":
        if role == "user" and not text.strip():
            remarks.append(Remark(where, "the user writes nothing, and is read so"))
        return read
    calls = message.get("tool_calls") or []
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]  # OpenAI's first API of functions
    if not isinstance(calls, list):
        raise EvaluationDataError("'tool_calls' is no list", where=where, hint=_TURNS_HINT)
    if not calls and not text.strip():
        raise _EndedError("the assistant writes nothing")
    if has_call_marks(text):
        remarks.append(Remark(where, "a call is in the text, and is read as a text"))
    if calls:
        read["tool_calls"] = [_read_call(call, number) for number, call in enumerate(calls)]
    return read


def _call_id(number: int) -> str:
    """Return the id of a call that the log gives none."""
    return f"call_{number}"


def _read_call(call: Any, number: int) -> dict[str, Any]:
    """Return a call of the log, its arguments as a JSON text."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _EndedError("a call has no name")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str | None):
        raise _EndedError("a call's arguments are no object")
    try:
        if not isinstance(parse_json(arguments or "{}", whole_text=False), dict):
            raise _EndedError("a call's arguments are no object")
    except ValueError as error:
        raise _EndedError("a call is cut off: its arguments are no JSON") from error
    id_ = str(call.get("id") or _call_id(number))
    named = {"name": function["name"], "arguments": arguments or "{}"}
    return {"id": id_, "type": "function", "function": named}


def _read_tools(row: Mapping[str, Any], place: str, carried: Collection[str]) -> list[Any]:
    """Return a line's tools in OpenAI's form; EvaluationDataError for others."""
    listed = row.get("tools") or row.get("functions") or []
    if not isinstance(listed, list):
        raise EvaluationDataError("'tools' is no list", where=place, hint=_TURNS_HINT)
    tools = list[Any]()
    names = set[str]()
    for tool in listed:
        name = tool
        if isinstance(tool, dict):
            function = tool.get("function", tool)
            name = function.get("name") if isinstance(function, dict) else None
            tool = {"type": "function", "function": function}
        if isinstance(tool, str) and tool not in carried:
            raise EvaluationDataError(
                f"no carried tool has the name '{tool[:80]}'",
                where=place,
                hint="write the tool itself, in OpenAI's form",
            )
        if not isinstance(name, str) or not name:
            raise EvaluationDataError("a tool has no name", where=place, hint=_TURNS_HINT)
        if isinstance(tool, dict) and not _has_parameters(tool["function"]):
            raise EvaluationDataError(
                f"the parameters of the tool '{name[:80]}' are not in OpenAI's form",
                where=place,
                hint="'parameters' is a JSON schema; other APIs call it 'input_schema'",
            )
        if name in names:
            raise EvaluationDataError(
                f"several tools have the name '{name[:80]}', so a call of it says nothing",
                where=place,
                hint="give each tool of a request a separate name",
            )
        names.add(name)
        tools.append(tool)
    return tools


def tool_name(tool: Any) -> str:
    """Return a tool's name; a text is the name of a carried one."""
    return tool if isinstance(tool, str) else str(tool["function"]["name"])


def _remarks_on_calls(
    row: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any],
    place: str,
) -> Iterator[Remark]:
    """Yield where tools are called that the line does not offer, and results of no call."""
    if row.get("tool_choice") not in (None, "auto"):
        yield Remark(place, "its tool_choice is not sent: each arm is free to call")
    offered = set(map(tool_name, tools))
    called = set[str]()
    for number, message in enumerate(messages, start=1):
        where = f"{place}, message {number}"
        for call in message.get("tool_calls", ()):
            called.add(call["id"])
            name = call["function"]["name"]
            if name not in offered:
                offered.add(name)  # once a line
                yield Remark(where, "it calls a tool that is not among the line's tools")
        answered = message.get("tool_call_id")
        if answered is not None and answered not in called:
            yield Remark(where, "it is the result of no call before it")


def _has_parameters(function: Mapping[str, Any]) -> bool:
    """Return whether a tool's parameters, if any, are where OpenAI's API reads them."""
    is_schema = isinstance(function.get("parameters"), dict | None)
    return is_schema and not function.keys() & {"input_schema", "inputSchema"}


def tokenized(
    model: str, chat: Mapping[str, Any], form: str, template_arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a request of `/tokenize`, which takes prompts of any length.

    `form` is the suite's `prompt_format`.
    """
    body = {"model": model}
    if "messages" not in chat:
        return {**body, **chat}
    if form != "chat":
        lines = [
            f"{message['role']}: {message.get('content') or ''}" for message in chat["messages"]
        ]
        return {**body, "prompt": "\n\n".join([*lines, "assistant:"])}
    return {**body, **chat, "chat_template_kwargs": dict(template_arguments)}


def other_rendering(name: str, here: Sequence[int], there: Sequence[int]) -> StageError:
    """Return the error of an arm whose template or tokenizer is not the baseline's."""
    at = first_difference(here, there)
    return StageError(
        f"the arm renders the conversation '{name}' otherwise than the baseline: {len(here)} and "
        f"{len(there)} tokens, the first that differs is number {at}",
        where="tokenizer and chat template of the served model",
        hint="the variant must have the tokenizer and the chat template of its baseline",
    )
