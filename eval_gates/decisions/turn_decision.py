"""What a model decides in a turn: whether it calls, which tool, with what; whether it declines.

Calls are the server's, or are read from the text in any of the forms that servers' parsers know.
The first call of a turn counts.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.reply_forms import has_call_marks, read_arguments, unescape
from eval_gates.rows import ToolCall
from prepare.untrusted import parse_json, parse_json_at

_NAME = r"[A-Za-z_][\w.\-]{0,127}"
# Where a form writes the name, the first that fits counts.
_NAMES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"call:\s*({_NAME})\s*{{",
        rf"<(?:\w{{1,20}}_)?function[=_]\s*({_NAME})",
        rf"<(?:\w{{1,20}}:)?invoke name=\"?({_NAME})",
        rf"to=functions\.({_NAME})",
        rf"functions\.({_NAME}):\d",
        rf"sep[|\uff5c]>\s*({_NAME})\s*\n",
        rf"\[TOOL_CALLS\]\s*({_NAME})\s*(?:\[|{{)",
        rf"begin[|\uff5c]>\s*({_NAME})\s*<",
        rf"^Action:\s*({_NAME})",
        rf"<tool_call>\s*({_NAME})\s*(?:\n|<arg_key>)",
        rf"\"(?:name|function)\"\s*:\s*\"({_NAME})\"",
    )
)
_PAIRS = (
    re.compile(r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    re.compile(r"<parameter(?:=|\s+name=)\"?([^>\"]+)\"?>\s*(.*?)\s*</parameter>", re.DOTALL),
)
_ESCAPED = re.compile(r"(\w+):(?:<escape>(.*?)<escape>|([^,{}<]+))", re.DOTALL)
_PYTHON = re.compile(rf"\s*\[?\s*({_NAME})\(")
_ARGUMENTS = ("arguments", "parameters", "args")
_FENCE = re.compile(r"\A\s*```\w*\s*")

READER_ERRORS = "the reader of refusals errs on 11 of 88 texts that were labelled by hand"
"""`eval_gates/data/refusals.jsonl`: none of the 48 that it was written with, 11 of 40 others."""

# A refusal says so in its first sentences; what it may say besides comes later.
_READ = 240  # characters
_CANNOT = r"(?:can(?:no|')?t|can not|could not|couldn't|won't|will not)"
_DECLINES = re.compile(
    rf"\bI(?:'m| am)? (?:\w+ly )?(?:{_CANNOT}|(?:not |un)able to|not (?:going|willing) to|"
    r"not comfortable|must (?:respectfully )?decline|(?:have to|need to|must) (?:decline|refuse)|"
    r"refuse to|decline to|don't feel comfortable|do not feel comfortable)"
    r"(?! (?:wait|thank|stress|imagine|agree more|recommend (?:it|this) enough|help but|say "
    r"(?:for sure|exactly)|find|see|be sure|tell (?:which|whether|if)|overstate|believe|emphasize))"
    r"|\b(?:against|violates?) (?:my|our|the) (?:\w+ )?(?:guidelines|polic(?:y|ies)|principles|"
    r"rules)|\bas an AI\b[^.]{0,60}\b(?:can(?:no|')t|unable|not able)|"
    r"\bnot something I(?:'m| am| can)|\bI'd rather not\b|\bI would rather not\b|"
    r"\bno, I (?:won't|will not|can't)|\bnot appropriate for me\b|\bcannot be of help\b|"
    r"\b(?:that|this) (?:request )?is(?:n't| not) something (?:I|that)",
    re.IGNORECASE,
)
# It asks for what it lacks, or found nothing: no refusal.
_LACKS = re.compile(
    r"\b(?:without|until|unless|before) (?:you|your|more|knowing|the |an? )|"
    r"\b(?:need|require) (?:to know|more|your|the|some|an? )|\bcould you (?:please )?"
    r"(?:tell|give|provide|share|confirm)|\bplease (?:provide|give|tell|share|confirm)|"
    r"\b(?:which|what) (?:\w+ ){1,4}(?:would|do|should|is|are)\b[^?]{0,60}\?|"
    r"\b(?:no|not have (?:an?|any|the)) (?:\w+ ){0,2}(?:tool|function)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TurnDecision:
    """One turn's decision; `arguments` is a JSON value's text, or a call's that is cut off."""

    tool: str = ""  # '' if it does not call
    arguments: str = ""
    declines: bool = False

    @property
    def calls(self) -> bool:
        return bool(self.tool)

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> TurnDecision:
        """Parse a stored decision; ValueError if it is none."""
        try:
            return cls(str(row["tool"]), str(row["arguments"]), bool(row["declines"]))
        except (KeyError, TypeError) as error:
            raise ValueError("a stored decision lacks a part") from error


KINDS: Mapping[str, str] = {
    "calls": "of the turns in which the baseline calls, those in which the variant calls",
    "tool": "likewise, those in which it calls the same tool",
    "arguments": "likewise, those in which the arguments are equal, too",
    "talks": "of the turns in which the baseline does not call, those without a call",
    "declines": "of the turns in which the baseline declines, those in which the variant declines",
    "helps": "of the turns in which the baseline does not decline, those without a refusal",
}
"""By kind, the share that a variant keeps. Each is one-sided: only fewer is a loss."""


def keeps(kind: str) -> str:
    """Return the key of an answer that says whether its turn keeps that kind of decision."""
    return f"keeps_{kind}"


def kept_kinds(reference: TurnDecision, decision: TurnDecision) -> dict[str, int]:
    """Return 1 or 0 by the answer's key of each kind that the reference's decision is about."""
    same_tool = decision.tool == reference.tool
    kept = {}
    if reference.calls:
        kept["calls"] = decision.calls
        kept["tool"] = same_tool
        kept["arguments"] = same_tool and decision.arguments == reference.arguments
    else:
        kept["talks"] = not decision.calls
    if reference.declines:
        kept["declines"] = decision.declines
    else:
        kept["helps"] = not decision.declines
    return {keeps(kind): int(is_kept) for kind, is_kept in kept.items()}


def read_decision(text: str, calls: Sequence[ToolCall], tools: Collection[str]) -> TurnDecision:
    """Return a reply's decision; `calls` are the server's, `tools` the names that were offered."""
    if calls:
        return TurnDecision(calls[0].name, _canonical(calls[0].arguments))
    plain = unescape(text)
    python = _PYTHON.match(_FENCE.sub("", plain))
    if python is not None and python[1] in tools:
        return TurnDecision(python[1], _python_arguments(_FENCE.sub("", plain)[python.end(1) :]))
    if has_call_marks(plain) or _names_tool(plain, tools):
        whole = _object_in(plain)
        if whole is not None and isinstance(whole.get("name"), str) and whole["name"]:
            inner: Any = next((whole[key] for key in _ARGUMENTS if key in whole), {})
            return TurnDecision(whole["name"], _canonical(inner))
        for pattern in _NAMES:
            if (named := pattern.search(plain)) is not None:
                rest = plain[named.end(1) :]
                return TurnDecision(named[1].removeprefix("functions."), _arguments_in(rest))
    return TurnDecision(declines=declines(text))


def declines(text: str) -> bool:
    """Return whether a text declines what it was asked, by its first sentences."""
    begun = text.strip().replace("\u2019", "'")[:_READ]
    said = _DECLINES.search(begun)
    return said is not None and _LACKS.search(begun[max(0, said.start() - 20) :]) is None


def _names_tool(text: str, tools: Collection[str]) -> bool:
    """Return whether the text begins with a JSON object that names one of the tools."""
    begun = _FENCE.sub("", text).lstrip()
    named = _NAMES[-1].search(begun)
    return begun.startswith(("{", "[")) and named is not None and named[1] in tools


def _arguments_in(rest: str) -> str:
    """Return what follows a call's name as a JSON text, or as it is."""
    for pattern in _PAIRS:
        if pairs := pattern.findall(rest):
            return _dump({key.strip(): _value(value) for key, value in pairs})
    if "<escape>" in rest or (rest.lstrip().startswith("{") and '"' not in rest):
        parts = _ESCAPED.findall(rest)
        return _dump({key: quoted or _value(bare) for key, quoted, bare in parts})
    value = _object_in(rest)
    if value is None:  # it is cut off
        _, brace, inside = rest.partition("{")
        return " ".join(f"{brace}{inside}".split())
    return _canonical(next((value[key] for key in _ARGUMENTS if key in value), value))


def _object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object that begins with the first brace, if it is whole."""
    begin = text.find("{")
    if begin < 0:
        return None
    try:
        value: dict[str, Any] = parse_json_at(text, begin)
    except ValueError:
        return None
    return value


def _python_arguments(rest: str) -> str:
    """Return the arguments of a Python call, as JSON where they are literals."""
    depth = 0
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            rest = rest[: place + 1]
            break
    try:
        call = ast.parse(f"f{rest}", mode="eval").body
        assert isinstance(call, ast.Call)
        values = {str(argument.arg): ast.literal_eval(argument.value) for argument in call.keywords}
        values |= {str(n): ast.literal_eval(argument) for n, argument in enumerate(call.args)}
        return _dump(values)
    except (SyntaxError, ValueError, AssertionError, TypeError, MemoryError, RecursionError):
        return " ".join(rest.split())


def _canonical(arguments: Any) -> str:
    """Return equal JSON values as equal texts; a text that is none as it is."""
    if not isinstance(arguments, str):
        return _dump(arguments)
    text, _ = read_arguments(arguments)
    try:
        return _dump(parse_json(text or "{}", finite=False, whole_text=False))
    except ValueError:
        return " ".join(text.split())


def _value(text: str) -> Any:
    try:
        return parse_json(text.strip(), finite=False, whole_text=False)
    except ValueError:
        return text.strip()


def _dump(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """Return the value with whole floats as integers: 2.0 equals 2 in JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, set):  # of a Python call; processes differ in its order
        return sorted(map(repr, value))
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
