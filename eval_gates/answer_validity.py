"""Checks whether one arm's answers can be judged.

Faulty answers show the server's configuration, not its model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from eval_gates.reply_forms import ENTITIES, begins_with_thought, has_call_marks
from eval_gates.rows import CALLS, FORMS, Answer
from prepare.errors import StageError

_MOST = 0.5
_NEARLY_ALL = 0.9
_FIRST_ANSWERS = 16  # suffice before all questions are asked
_SAME = 4  # so few equal answers may be chance
_COUNT_TOLERANCE = 0.9  # servers differ by some tokens in what they count
_FEW = 0.1
_SHOWN = 60  # characters

_THINKING = (
    "turn thoughts off (policy key generation.chat_template_kwargs: {enable_thinking: false}), "
    "or raise max_tokens of the suite"
)

_THOUGHTS = (
    "set the policy key generation.thinking to remove, or to the model's own marks, and max_tokens "
    "to model; or start the server with the model's reasoning parser (vLLM: --reasoning-parser)"
)
_PARSER = (
    "start the server with the model's tool-call parser (vLLM: --enable-auto-tool-choice "
    "--tool-call-parser NAME; llama.cpp: --jinja), or write 'form: prompt' into the suite"
)


class _Fault(NamedTuple):
    name: str
    has: Callable[[Answer], bool]
    cure: str


def check_answers(
    suite: str,
    rows: Sequence[Answer],
    *,
    max_tokens: Any,
    is_complete: bool,
    takes_thoughts: bool = False,
) -> None:
    """Raise StageError, with cause and cure, if most answers are faulty.

    Unless `is_complete`, nearly all must be. `takes_thoughts`: the suite reads what follows a
    thought, or the thought too.
    """
    if not rows or (not is_complete and len(rows) < _FIRST_ANSWERS):
        return
    _check_calls(suite, rows)
    counts: Counter[int] = Counter()
    examples: dict[int, Answer] = {}
    faults = _faults(rows, max_tokens, takes_thoughts=takes_thoughts)
    for row in rows:
        for number, fault in enumerate(faults):
            if fault.has(row):
                counts[number] += 1
                examples.setdefault(number, row)
                break
    share = counts.total() / len(rows)
    if share <= (_MOST if is_complete else _NEARLY_ALL):
        return
    worst = max(counts, key=lambda number: (counts[number], -number))
    listed = "; ".join(f"{counts[number]} {faults[number].name}" for number in sorted(counts))
    raise StageError(
        f"the answers cannot be judged: of {len(rows)}, {listed}; "
        f"the first is {_shown(examples[worst])}",
        where=f"suite {suite}",
        hint=faults[worst].cure,
    )


def remarks_on(rows: Sequence[Answer], *, takes_thoughts: bool) -> list[str]:
    """Return what a few answers' form shows, which is too little for an error."""
    counts = Counter(form for row in rows for form in row.own.get(FORMS, ()))
    if counts[ENTITIES] <= _FEW * len(rows):
        del counts[ENTITIES]  # some tasks need them in an answer
    if not takes_thoughts:
        counts[f"begin with a thought: {_THOUGHTS}"] = sum(map(_has_thought, rows))
    counts[f"have call marks in their text and no call: {_PARSER}"] = sum(map(_hides_call, rows))
    return [f"{n:,} of {len(rows):,} answers {what}" for what, n in counts.items() if n]


def _check_calls(suite: str, rows: Sequence[Answer]) -> None:
    """Raise StageError if the server parses no call that the model writes."""
    hidden = [row for row in rows if _hides_call(row)]
    if len(hidden) < _SAME or any(map(_calls, rows)):
        return
    raise StageError(
        f"the answers cannot be judged: none of {len(rows)} has a call, and {len(hidden)} have "
        f"call marks in their text; the first is {_shown(hidden[0])}",
        where=f"suite {suite}",
        hint=_PARSER,
    )


def _faults(rows: Sequence[Answer], max_tokens: Any, *, takes_thoughts: bool) -> list[_Fault]:
    most_common = _most_common(rows)
    return [
        _Fault(
            "were withheld by the endpoint (content filter, refusal)",
            lambda row: _is_all(row, row.refused),
            "turn off the filter or guard in front of the model, or leave the suite out",
        ),
        _Fault(
            "begin with a thought, which is scored as part of the answer",
            lambda row: not takes_thoughts and row.score < 1 and _has_thought(row),
            _THOUGHTS,
        ),
        _Fault(
            "have call marks in their text and no call",
            _hides_call,
            _PARSER,
        ),
        _Fault(
            f"were cut off by the server before the {max_tokens} tokens asked for",
            lambda row: (
                max_tokens is not None
                and row.score < 1  # a right answer is whole
                and _is_all(row, row.truncated)
                and max(row.tokens) < _COUNT_TOLERANCE * max_tokens
            ),
            "raise the server's own limit of an answer, or lower max_tokens of the suite to it",
        ),
        _Fault(
            "were cut off before they could be read",
            lambda row: _is_all(row, row.unread) and bool(row.truncated or row.unclosed),
            f"raise max_tokens of the suite, or {_THINKING}",
        ),
        _Fault(
            "have all their text in the field of thoughts (reasoning_content) and none in content",
            lambda row: _is_all(row, row.thoughts_only) and not row.score,
            "start the server without its reasoning parser (vLLM: --reasoning-parser), or with "
            f"the model's own; if the model does think: {_THINKING}",
        ),
        _Fault(
            "are empty",
            lambda row: _is_empty(row) and not row.score,
            "send one question by hand and read the server's log: the chat template, a stop string "
            "or the end-of-text token may end each answer at its start",
        ),
        _Fault(
            "name no choice, or have no code, that can be read",
            lambda row: _is_all(row, row.unread),
            "if the answers are right, their form is unknown to prepare: report it; else the "
            "server has another model, another chat template or broken weights",
        ),
        _Fault(
            "are identical",
            lambda row: most_common is not None and _identity(row) == most_common,
            "send two questions by hand: a proxy or cache may answer, or the server's kernels or "
            "weights are broken",
        ),
    ]


def _is_all(row: Answer, count: int) -> bool:
    return 0 < len(row.tokens) <= count


def _is_empty(row: Answer) -> bool:
    return bool(row.tokens) and not any(text.strip() for text in _texts(row)) and not _calls(row)


def _texts(row: Answer) -> list[str]:
    """Return the samples' texts; none of log-probabilities."""
    texts = row.answer if isinstance(row.answer, list) else [row.answer]
    return [text for text in texts if isinstance(text, str)]


def _has_thought(row: Answer) -> bool:
    return any(map(begins_with_thought, _texts(row)))


def _hides_call(row: Answer) -> bool:
    return CALLS in row.own and not _calls(row) and any(map(has_call_marks, _texts(row)))


def _calls(row: Answer) -> list[Any]:
    return [call for calls in row.own.get(CALLS, ()) for call in calls]


def _identity(row: Answer) -> str | None:
    """Return what identical answers share, unless right ones may be equal."""
    if row.tokens and (row.score or _calls(row)):
        return None
    return json.dumps(row.answer)


def _most_common(rows: Sequence[Answer]) -> str | None:
    by_prompt = {row.prompt_sha256: _identity(row) for row in rows}
    counts = Counter(answer for answer in by_prompt.values() if answer is not None)
    (text, number), *_ = counts.most_common(1) or [("", 0)]
    return text if number >= _SAME and number > len(by_prompt) * _MOST else None


def _shown(row: Answer) -> str:
    text = json.dumps(row.answer, ensure_ascii=False)
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text
