"""What a model decides in a turn: whether it calls, which tool, with what; whether it declines.

Calls are the server's, or are read from the text. The first call of a turn counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.decisions.written_call import canonical, find_call
from eval_gates.reply_forms import unescape
from eval_gates.rows import ToolCall

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
    """One turn's decision; `arguments` is a JSON value's text, or the call's own text."""

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
        return TurnDecision(calls[0].name, canonical(calls[0].arguments))
    call = find_call(unescape(text), tools)
    if call is not None:
        return TurnDecision(call.tool, call.arguments)
    return TurnDecision(declines=declines(text))


def declines(text: str) -> bool:
    """Return whether a text declines what it was asked, by its first sentences."""
    begun = text.strip().replace("\u2019", "'")[:_READ]
    said = _DECLINES.search(begun)
    return said is not None and _LACKS.search(begun[max(0, said.start() - 20) :]) is None
