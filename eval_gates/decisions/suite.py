"""Decisions in logs of your own: calls, which tool, with what, and what is declined.

At each turn of a log, every arm writes what it would; the log's own answer is not read. The
reference is the baseline's first start, and the baseline is its second one, so its own score shows
what decoding alone changes. Texts stay in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from eval_gates.ask import Client
from eval_gates.decisions.logged_answers import read_logged_answers, read_recorded_answers
from eval_gates.decisions.parts import TOOL, abilities_and_tools, report_turns, tool_label
from eval_gates.decisions.task import (
    ABOUT_CALLS,
    AS_LOGGED,
    DecisionsPolicy,
    DecisionsTask,
    gates_of,
    rung_group,
)
from eval_gates.decisions.turn_decision import TurnDecision, kept_kinds, read_decision
from eval_gates.decisions.written_call import UNREAD_FORM
from eval_gates.decisions.written_turn import (
    WrittenTurn,
    ask_for,
    lead_of,
    tokenized_as,
    without_thoughts,
)
from eval_gates.prompt_scores import tokenize
from eval_gates.quality_result import SAME_DECISION, GroupReport
from eval_gates.rows import FORMS, Answer, Question, Reply, Score
from eval_gates.statistics.parts import Partition
from eval_gates.suites.chat_logs import (
    STEM,
    TEXTS,
    Turn,
    chat_of,
    digest_of,
    open_chats,
    read_turns,
    tell,
    tool_name,
)
from eval_gates.suites.json_lines import FIELDS, read_rows, write_rows
from eval_gates.suites.sources import QuestionSource, SourceLookup, SuiteSource
from eval_gates.suites.suite_kind import (
    ChatNeed,
    LoggedAnswers,
    QuestionOrder,
    Read,
    Render,
    SuiteKind,
)
from prepare.digest import digest_json
from prepare.errors import EvaluationDataError, StageError, UsageError
from prepare.events import Progress
from recipes.policy import Suite

_DATA = Path(__file__).parents[1] / "data"
CARRIED_FILE = _DATA / "tool_requests.jsonl"
CARRIED_TOOLS = _DATA / "tools.jsonl"
TOKENS_PER_TOOL = 110  # of a carried one, in the widest rendering that was measured
FRAME_TOKENS = 1_024  # of the conversation, where tools are many
_UNREAD_CALL = (
    "have a call in a form that is not read, and are compared by its text: 'form: server' takes "
    "the server's own parser"
)


class Decisions(SuiteKind[DecisionsTask]):
    """Decisions at the turns of your own sessions: calls, tools, arguments, refusals."""

    task = DecisionsTask
    decision = DecisionsPolicy
    sources = ("eval-data", "builtin")
    folder_stem = STEM
    carried = CARRIED_FILE
    assumed_baseline = 0.97
    reads_baseline = True
    is_whole_in_bundle = False
    reads_cut_off = True
    asks_baseline_twice = True
    judged_group = AS_LOGGED
    may_repeat = True
    private_keys = ("text", "decision", "reference")

    def __init__(self) -> None:
        self._chats: dict[str, dict[str, Any]] = {}

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        source = super().find_source(name, suite, lookup)
        tools = lookup.digest_of(CARRIED_TOOLS)  # rows have only their names
        return replace(source, identity=source.identity.model_copy(update={"tools": tools}))

    def questions(self, task: DecisionsTask, order: QuestionOrder) -> Read:
        turns, remarks = read_turns(self.read(order.source, order.folder), carried_tools())
        tell(remarks, order.progress)
        _note_left_out(turns, task, order.progress)
        questions = list[Question]()
        chats = list[dict[str, Any]]()
        for turn, group, others in _asked(turns, task):
            name = f"{turn.session}/{turn.number}"
            added = turn.added
            digest = turn.digest
            after = f"{turn.session}/{turn.after}" if turn.after is not None else None
            if group != AS_LOGGED:
                after = name
                name = f"{name}/{group}"
                added = {"tools": others}
                digest = digest_of(added, turn.digest)
            chats.append({"id": name, **({"after": after} if after else {}), **added})
            # Rows go into bundles, so the prompt is a digest.
            data = {FIELDS: turn.fields}
            questions.append(Question(name, digest, group=group, data=data))
        if not questions:
            raise EvaluationDataError(
                "every session has more tools than are asked",
                where=f"policy key max_tools: {task.max_tools}",
                hint="raise it, or give sessions with fewer tools",
            )
        write_rows(order.output / TEXTS, chats)
        return questions, {}

    def known_questions(self, task: DecisionsTask, order: QuestionOrder) -> list[Question]:
        questions, _ = self.questions(task, order)
        about_calls = [kind for kind, _ in gates_of(task) if kind in ABOUT_CALLS]
        turns = self._turns(order.source, order.folder)
        if about_calls and not any(turn.tools for turn in turns):
            raise EvaluationDataError(
                f"no line of the log has tools, so a gate on '{about_calls[0]}' decides nothing",
                where=str(order.folder),
                hint="log the key 'tools' of each request, too; or remove the gate",
            )
        return questions

    def logged_answers(
        self, task: DecisionsTask, questions: Sequence[Question], order: QuestionOrder
    ) -> LoggedAnswers | None:
        """Return what the log decides at its answered turns."""
        turns = self._turns(order.source, order.folder)
        return read_logged_answers(turns, questions, gates_of(task))

    def recorded_answers(self, task: DecisionsTask, rows: Sequence[Answer]) -> LoggedAnswers:
        """Return what the reference decided, as the rows say that were compared with it."""
        return read_recorded_answers(rows, gates_of(task))

    def _turns(self, identity: QuestionSource, folder: Path | None) -> list[Turn]:
        return read_turns(self.read(identity, folder), carried_tools())[0]

    def open(self, task: DecisionsTask, questions: Sequence[Question], folder: Path) -> None:
        carried = carried_tools()
        chats = open_chats(folder, questions)
        self._chats = {name: _with_carried(chat, carried) for name, chat in chats.items()}

    def render(self, task: DecisionsTask, question: Question, template: Render | None) -> Question:
        # Servers render; the chat API is sent this.
        chat = self._chats[question.id]
        tools = {"tools": chat["tools"]} if "tools" in chat else {}
        return replace(question, prompt="", messages=tuple(chat["messages"]), server=tools)

    def settings(self, task: DecisionsTask) -> dict[str, Any]:
        return {"until": [], "max_gen_toks": task.max_tokens}

    def ask(
        self,
        task: DecisionsTask,
        client: Client,
        batch: Sequence[Question],
        baseline: Mapping[str, Answer] | None,
    ) -> list[list[Reply]]:
        """Return one reply per turn, with its decision and the reference's.

        `baseline` is by id; None for the reference. StageError if a turn is too long, or the arm
        renders it otherwise.
        """
        chats = [self._chats[question.id] for question in batch]
        names = [_names(chat) for chat in chats]
        rows: list[Mapping[str, Any]] = [
            baseline[question.id].own if baseline is not None else {} for question in batch
        ]
        if baseline is not None:
            _check_referred(batch, rows)
        firsts = [_reference_of(row).get("first") for row in rows]
        if client.by_chat or task.form == "server":
            written = [WrittenTurn(reply) for (reply,) in client.ask(batch)]
            prompts = [""] * len(batch)
        else:
            bodies = [tokenized_as(client.model, task, chat) for chat in chats]
            ids = client.send(
                [tokenize(body, question.id) for body, question in zip(bodies, batch, strict=True)]
            )
            _check_fit(batch, [len(prompt_ids) for prompt_ids in ids], task, client.max_length)
            prompts = [digest_json(prompt_ids) for prompt_ids in ids]
            _check_same(batch, prompts, rows)
            written = client.send(
                [ask_for(client.model, prompt_ids, task.max_tokens) for prompt_ids in ids]
            )
            client.answered(len(batch))
        replies = []
        for one, tools, prompt, row, first in zip(
            written, names, prompts, rows, firsts, strict=True
        ):
            reply, is_unread = without_thoughts(one.reply)
            decision = read_decision(reply.text, reply.calls, tools).to_row()
            own = {
                "text": reply.text,
                "decision": {**decision, "first": one.first, "is_unread": is_unread},
                "reference": _reference_of(row),
                "read": prompt,
                "margin": lead_of(one, first),
            }
            told = digest_json([reply.text, [call._asdict() for call in reply.calls]])
            replies.append([replace(reply, text=told, calls=(), own=own)])
        return replies

    def score(self, task: DecisionsTask, question: Question, replies: Sequence[Reply]) -> Score:
        """Return 1 if the arm decides as the reference, and what it keeps by kind."""
        (reply,) = replies
        own = dict(reply.own)
        stored = own["decision"]
        decision = TurnDecision.from_row(stored)
        reference = TurnDecision.from_row(own["reference"] or stored)
        read = str(own["read"])
        if (margin := own.pop("margin")) is not None:
            own["margin"] = margin
        own |= kept_kinds(reference, decision)
        own |= {"called": decision.calls, "declined": decision.declines}
        if decision.tool.startswith(UNREAD_FORM):
            own[FORMS] = [_UNREAD_CALL]
        if reference.calls:
            own[TOOL] = tool_label(reference.tool)
        is_unread = bool(stored["is_unread"])
        score = float(decision == reference and not is_unread)
        # An empty answer neither calls nor declines, as the reference may do.
        empty = float(reference == TurnDecision())
        return Score(score, empty=empty, prompt_sha256=read, unread=int(is_unread), own=own)

    def metric(self, task: DecisionsTask, laid_out: str | None) -> str:
        return SAME_DECISION

    def chat_need(self, task: DecisionsTask) -> ChatNeed:
        return ChatNeed.TOOLS if task.form == "server" else ChatNeed.NONE

    def takes_thoughts(self, task: DecisionsTask) -> bool:
        return True

    def example_chat(self, task: DecisionsTask) -> dict[str, Any]:
        function = {"name": "find", "description": "Find.", "parameters": {"type": "object"}}
        return {
            "messages": [{"role": "user", "content": "Hello"}],
            "tools": [{"type": "function", "function": function}],
        }

    def known_cluster(
        self, task: DecisionsTask, identity: QuestionSource, folder: Path | None
    ) -> str | None:
        return task.cluster_by

    def fit(
        self, name: str, task: DecisionsTask, max_length: int, note: Callable[[str], None]
    ) -> DecisionsTask:
        most = (max_length - FRAME_TOKENS - task.max_tokens) // TOKENS_PER_TOOL
        kept = [rung for rung in task.ladder if rung <= most]
        if left := [rung for rung in task.ladder if rung > most]:
            listed = ", ".join(map(str, left))
            note(
                f"{name}: the served model takes {max_length:,} tokens, so the ladder has no step "
                f"at {listed} tools"
            )
        if lost := [gate.tools for _, gate in gates_of(task) if gate.tools in left]:
            raise UsageError(
                f"the suite '{name}' has a gate at {lost[0]} tools, and the served model takes "
                f"{max_length:,} tokens",
                where=f"policy key suites.{name}.ladder",
                hint="raise max-model-len in the profile, or gate fewer tools",
            )
        if most < 1:
            raise UsageError(
                f"the suite '{name}' needs more tokens than the served model takes: {max_length:,}",
                where="profile key engine_arguments.max-model-len",
                hint="raise it, or leave the suite out",
            )
        largest = task.max_tools
        if largest is None and most < 128:
            largest = most
            note(
                f"{name}: the served model takes {max_length:,} tokens, so sessions with more than "
                f"{most} tools are left out, if there are any"
            )
        return task.model_copy(update={"ladder": kept, "max_tools": largest})

    def partitions(
        self, baseline: Sequence[Answer], candidate: Sequence[Answer]
    ) -> Sequence[Partition]:
        return abilities_and_tools(baseline, candidate)

    def groups(self, baseline: Sequence[Answer], candidate: Sequence[Answer]) -> list[GroupReport]:
        return report_turns(baseline, candidate)


@cache
def carried_tools() -> Mapping[str, dict[str, Any]]:
    """Return the tools that prepare carries, by name."""
    rows = [row for _, row in read_rows(CARRIED_TOOLS)]
    return {row["name"]: {"type": "function", "function": row} for row in rows}


def _with_carried(chat: Mapping[str, Any], carried: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a conversation with the carried tools that it names."""
    tools = [carried[tool] if isinstance(tool, str) else tool for tool in chat.get("tools", ())]
    return chat_of(chat.get("messages", []), tools)


def _note_left_out(turns: Sequence[Turn], task: DecisionsTask, progress: Progress) -> None:
    """Note how many sessions lose turns because their tools are too many."""
    sessions = {turn.session for turn in turns}
    too_many = {
        turn.session
        for turn in turns
        if task.max_tools is not None and len(turn.tools) > task.max_tools
    }
    if too_many:
        progress.note(
            f"{len(too_many):,} of {len(sessions):,} sessions have turns with more than "
            f"{task.max_tools} tools, which are left out"
        )


def _asked(turns: Sequence[Turn], task: DecisionsTask) -> list[tuple[Turn, str, list[str]]]:
    """Return each turn with its group and added tools: as logged, then along the ladder.

    A session's last turn with tools is on the ladder, from the step that has room for its own.
    """
    most = task.max_tools
    kept = [turn for turn in turns if most is None or len(turn.tools) <= most]
    last = {turn.session: turn for turn in kept if turn.tools}
    asked = list[tuple[Turn, str, list[str]]]()
    for turn in kept:
        asked.append((turn, AS_LOGGED, []))
        if last.get(turn.session) is turn:
            own = [tool_name(tool) for tool in turn.tools]
            others = [name for name in carried_tools() if name not in own]
            for rung in sorted(task.ladder):
                if rung >= len(own):
                    asked.append((turn, rung_group(rung), others[: rung - len(own)]))
    return asked


def _reference_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference's decision, of a row of the reference itself or of the baseline."""
    reference: Mapping[str, Any] = row.get("reference") or row.get("decision") or {}
    return reference


def _check_fit(
    batch: Sequence[Question], lengths: Sequence[int], task: DecisionsTask, most: int
) -> None:
    for question, length in zip(batch, lengths, strict=True):
        if length + task.max_tokens > most:
            raise StageError(
                f"the turn '{question.id}' is too long: with its answer it has "
                f"{length + task.max_tokens:,} tokens, and {most:,} fit",
                hint="raise max-model-len in the profile; or set max_tools or a shorter ladder in "
                "the suite; or leave the session out",
            )


def _check_same(
    batch: Sequence[Question], prompts: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    for question, prompt, row in zip(batch, prompts, rows, strict=True):
        if row and row.get("read", prompt) != prompt:
            raise StageError(
                f"the arm renders the turn '{question.id}' otherwise than the baseline",
                where="tokenizer and chat template of the served model",
                hint="the variant must have the tokenizer and the chat template of its baseline",
            )


def _check_referred(batch: Sequence[Question], rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows without a reference: an arm would be compared with itself."""
    for question, row in zip(batch, rows, strict=True):
        if not _reference_of(row):
            raise StageError(
                f"the baseline's decision on the turn '{question.id}' is gone from this store",
                where="its private texts, texts.jsonl",
                hint="they were deleted or cut: measure the suite again with --remeasure",
            )


def _names(chat: Mapping[str, Any]) -> set[str]:
    return {tool_name(tool) for tool in chat.get("tools", ())}
