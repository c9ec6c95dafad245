"""Finds the choice that a written answer names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

# Bounded, for texts of spaces or marks without an end.
_MARK = r"[\s*_`'\"(\[{$:]{0,20}"
_CLOSING = r"[\s*_`'\"\])}$]{0,20}"
_LATIN = r"[A-Za-z0-9_\u00c0-\u024f]"
_MAX_MENTIONS = 2_000  # of a text that repeats itself
_WINDOW = 100  # characters before or after a mention that tell what it is

# 'A' and 'I' before other words are an article and a pronoun.
_VERBS = (
    "is|was|are|and|or|nor|but|because|since|as|seems|looks|fits|works|would|should|must|has|over|"
    "not|rather|instead|if|then|for|with|ist|und|oder|weil|est|et|ou|es|y|o"
)
_ARTICLE = re.compile(rf"[ ](?!(?:{_VERBS})\b)[a-z0-9]")
_PRONOUN = re.compile(rf"['\u2019][a-z]|[ ](?!(?:{_VERBS})\b)[a-z]|[ ]would\b")

_DISMISSED_BEFORE = re.compile(
    r"(?:\bnot|n['\u2019]t(?: be)?|\bcannot be|\bover|\bthan|\binstead of|\bunlike|\bexcept|"
    r"\bexclud\w+|\bneither|\bnor|\brul\w+ out|\beliminat\w+|\breject\w*|\bdiscard\w*|"
    r"\bprefer\w* \S+ to)"
    r"(?: (?:be|choose|pick|select|say|go with))?(?: (?:option|choice|answer|letter))?"
    rf"{_MARK}\Z",
    re.IGNORECASE,
)
_JUDGED_AFTER = re.compile(
    rf"\A{_CLOSING}(?:\([^()]*\) )?"
    r"(?:(?:is|are|was|were|seems?|looks?)(?: (?:clearly|also|both|all|simply|obviously))? "
    r"(?:wrong|incorrect|false|untrue|not|out|ruled out|excluded|eliminated|impossible|invalid)\b"
    r"|(?:isn|aren|wasn|can|doesn|don|won)['\u2019]?t\b|cannot\b|does not\b)",
    re.IGNORECASE,
)
_AFFIRMED_AFTER = re.compile(
    rf"\A{_CLOSING}(?:is|would be|must be|should be) (?:clearly |probably )?(?:the )?"
    r"(?:correct|right|best|answer)\b",
    re.IGNORECASE,
)
# Words whose letter is a part of a name.
_NAMED_BEFORE = re.compile(
    r"(?:\b(?:hepatitis|vitamins?|influenza|plan|group|type|class|grade|phase|stage|figure|table|"
    r"section|company|firm|team|schedule|appendix|protein|factor|blood|country|patient|party|"
    r"player|person|series|category|exhibit|question|sample|lemma|theorem|(?:mr|mrs|ms|dr)\.?) "
    r"|[A-Za-z]\.)\Z",
    re.IGNORECASE,
)
_NAMED_AFTER = re.compile(r"\A(?:-[a-z]|[+#]|\.[A-Za-z]| cells?\b| (?:major|minor|flat|sharp)\b)")
_ONLY_NAMED = re.compile(r"\W*(?P<word>[^\W\d_]+) [A-Z]\W*\Z")
_CUE = re.compile(
    r"(?:.*ly|.{1,3}|options?|choices?|choos\w+|chose|pick\w*|select\w*|answers?|letter|therefore|"
    r"thus|hence|guess|correct|right|final|response|solution|mark\w*|sure|just|only|choice|with|"
    r"okay|then|here|maybe|perhaps|antwort|lösung|réponse|respuesta|resposta|risposta|opción|opção|"
    r"opzione|ответ|вариант)\Z",
    re.IGNORECASE,
)

_IGNORED_IN_LIST = re.compile(
    r"[\s*_`'\"()\[\]{}$]+|\b(?:options?|choices?|answers?|letters?|also|both|maybe|possibly|"
    r"perhaps|either)\b",
    re.IGNORECASE,
)
_STRONG_JOINS = {
    *("and", "or", "nor", "and/or", "&", "/", "+", "und", "oder", "et", "ou", "y", "o"),
    *(",and", ",or", ",nor", ",&", "aswellas"),
}
_WEAK_JOINS = {",", ";", ""}
_LIST_ENDS = re.compile(rf"\A{_CLOSING}(?:\Z|[.,;:!?&/+]|(?:and|or|nor|are|both|und|oder)\b)")


@dataclass(eq=False)
class _Mention:
    """A choice in the text."""

    start: int
    end: int
    place: int
    is_dismissed: bool = False
    """Whether the text says that it is not this one."""
    is_judged: bool = False
    """Whether the text calls it wrong: the answer to what is wrong, or a dismissed one."""
    is_named: bool = False
    is_listed: bool = False
    """Whether it is one of several that the text does not choose from."""


def find_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return the place of the only choice that a text names.

    It follows the word 'answer', is the first or last word, or is the only one. A single letter
    counts in capitals alone. Letters of full width are the same letters. A letter in a name
    ('vitamin C'), one that is dismissed ('not A', 'over A') and several in a list ('A or B') are no
    choice.
    """
    text = unicodedata.normalize("NFKC", text)
    places = {
        unicodedata.normalize("NFKC", choice).strip(): place for place, choice in enumerate(choices)
    }
    listed = "|".join(re.escape(name) for name in sorted(places, key=len, reverse=True))
    are_letters = all(len(name) == 1 for name in places)
    # Chinese, Japanese and Korean have no spaces around a letter.
    word = _LATIN if are_letters else r"\w"
    one = rf"(?<!{word})(?:{listed})(?!{word})"
    case = 0 if are_letters else re.IGNORECASE
    mentions = list(_mentions(text, re.compile(one, case), places))
    if not 0 < len(mentions) <= _MAX_MENTIONS or _is_list_alone(text, mentions):
        return None
    goes_through = _goes_through_choices(text, one, case, places)
    usable = {
        mention.start: mention.place
        for mention in mentions
        if not (mention.is_dismissed or mention.is_judged or mention.is_named or mention.is_listed)
    }
    for is_in_list, places_named in _named_in_turn(text, one, case, usable, mentions):
        if goes_through and is_in_list:  # the first of those that it goes through
            continue
        distinct = set(places_named)
        if distinct:
            return distinct.pop() if len(distinct) == 1 else None
    others = {m.place for m in mentions if not (m.is_dismissed or m.is_named)}
    return others.pop() if len(others) == 1 and not goes_through else None


def _named_in_turn(
    text: str, one: str, case: int, usable: dict[int, int], mentions: Sequence[_Mention]
) -> Iterator[tuple[bool, list[int]]]:
    """Return what each way to name a choice finds, the clearest first.

    With each is whether a choice that the text only goes through is named so, too.
    """

    def found(pattern: str) -> list[int]:
        matches = re.finditer(pattern, text, case)
        return [usable[match.start(1)] for match in matches if match.start(1) in usable]

    answer = rf"(?i:answer)\w{{0,9}}{_MARK}"
    yield (
        False,
        found(
            rf"\b(?i:wait|actually|correction|sorry)[\s,.:!-]{{0,9}}(?i:no[\s,.]{{0,9}})?"
            rf"(?:(?i:it is|it's|I mean)\s*)?{_MARK}({one}){_CLOSING}[.!]?\Z"
        ),
    )
    yield False, found(rf"{answer}(?i:is|would be|should be|must be){_MARK}({one})")
    yield False, found(rf"(?i:answer)\w{{0,9}}[\s*_`'\"]*:{_MARK}({one})")
    yield False, found(rf"{answer}({one})")[:1]
    yield (
        True,
        found(
            rf"\A{_MARK}(?:(?i:option|choice|letter)\s{_MARK})?({one})"
            rf"(?:\s*(?:[\])}}.,:;*_`'\"$]|\n|\Z)|\s+[-\u2013\u2014(])"
        ),
    )
    judged = [mention.start for mention in mentions if mention.is_judged]
    affirmed = [
        mention.place
        for mention in mentions
        if mention.start in usable
        and (not judged or mention.start < judged[0])
        and _AFFIRMED_AFTER.match(text[mention.end : mention.end + _WINDOW])
    ]
    yield False, affirmed
    yield False, found(rf"({one})[\s*_`'\"\])}}.$!]{{0,50}}\Z")
    yield (
        True,
        found(
            r"\b(?i:it['\u2019]?s|is|be|choos\w*|chose\w*|pick\w*|select\w*|prefer\w*|go with"
            rf"|going with|go for|vote for|option|choice)\s{_MARK}({one})"
        ),
    )


def _mentions(text: str, one: re.Pattern[str], places: dict[str, int]) -> Iterator[_Mention]:
    folded = {name if len(name) == 1 else name.casefold(): n for name, n in places.items()}
    mentions = []
    for match in islice(one.finditer(text), _MAX_MENTIONS + 1):
        name = match[0]
        after = text[match.end() : match.end() + _WINDOW]
        before = text[max(0, match.start() - _WINDOW) : match.start()]
        if (name == "A" and _ARTICLE.match(after)) or (name == "I" and _PRONOUN.match(after)):
            continue
        mention = _Mention(*match.span(), folded[name if len(name) == 1 else name.casefold()])
        mention.is_dismissed = _DISMISSED_BEFORE.search(before) is not None
        mention.is_judged = _JUDGED_AFTER.match(after) is not None
        if len(name) == 1:
            is_part = _NAMED_BEFORE.search(before) or _NAMED_AFTER.match(after)
            mention.is_named = bool(is_part) or _is_only_name(text)
        mentions.append(mention)
    for run, is_strong in _runs(text, mentions):
        _mark_run(run, is_strong)
    return iter(mentions)


def _is_only_name(text: str) -> bool:
    """Return whether the text is a word and a letter, such as 'Hepatitis B'."""
    match = _ONLY_NAMED.match(text)
    return match is not None and not _CUE.match(match["word"])


def _runs(text: str, mentions: Sequence[_Mention]) -> Iterator[tuple[list[_Mention], bool]]:
    """Return lists of choices, and whether a word such as 'or' joins them."""
    run = list(mentions[:1])
    is_strong = False
    for before, mention in pairwise(mentions):
        gap = text[before.end : mention.start]
        join = _IGNORED_IN_LIST.sub("", gap[:_WINDOW]).casefold()
        ends = _LIST_ENDS.match(text[mention.end : mention.end + _WINDOW])
        is_weak = join in _WEAK_JOINS and (join != "" or _is_between_marks(gap))
        if join in _STRONG_JOINS or (is_weak and ends):
            run.append(mention)
            is_strong = is_strong or join in _STRONG_JOINS
            continue
        yield run, is_strong
        run = [mention]
        is_strong = False
    yield run, is_strong


def _is_between_marks(gap: str) -> bool:
    """Return whether two choices have only spaces and closed brackets between them."""
    is_balanced = gap.count("(") == gap.count(")") and gap.count("[") == gap.count("]")
    return is_balanced and not re.search(r"[\w\n]", gap)


def _mark_run(run: Sequence[_Mention], is_strong: bool) -> None:
    """Mark a list: what is said of its first or last choice is said of all."""
    if is_strong and run[0].is_dismissed:
        for mention in run:
            mention.is_dismissed = True
    if len(run) > 1 and run[-1].is_judged:
        for mention in run:
            mention.is_judged = True
    left = [mention for mention in run if not mention.is_dismissed]
    if len({mention.place for mention in left}) > 1:
        for mention in left:
            mention.is_listed = True


def _is_list_alone(text: str, mentions: Sequence[_Mention]) -> bool:
    """Return whether the text is several choices and nothing else.

    'D. A & C' is D with its text.
    """
    if len(mentions) > 2 and re.match(r"[.):]\s", text[mentions[0].end :]):
        return False
    ends = [0, *(mention.end for mention in mentions)]
    begins = [*(mention.start for mention in mentions), len(text)]
    rest = "".join(text[end:begin] for end, begin in zip(ends, begins, strict=True))
    return not re.search(r"\w", rest) and len({mention.place for mention in mentions}) > 1


def _goes_through_choices(text: str, one: str, case: int, places: dict[str, int]) -> bool:
    """Return whether sentences begin with the first choices in their order, as in the question."""
    label = rf"[ \t*_(\[\-]{{0,9}}(?:(?i:option|choice)\s)?({one})(?:[)\].:*]|\s[-\u2013\u2014])"
    labels = re.findall(rf"(?:^|[.;!?]\s){label}", text, case | re.MULTILINE)
    return len(labels) > 1 and labels[:2] == list(places)[:2]
