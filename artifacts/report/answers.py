"""Examples of a variant's changed answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from artifacts.report.reported_run import PairedAnswers, ReportedRun
from eval_gates.rows import Answer, Question, choose
from eval_gates.suites.suite_kind import kind_of
from recipes.policy import AnySuite

LONGEST = 4000
"""Characters of a prompt or an answer in the report."""
_DIGEST = re.compile("[0-9a-f]{64}")
EXAMPLES = 10
"""Flips of one suite and variant."""


@dataclass(frozen=True)
class FlippedAnswer:
    """A question with a changed answer."""

    question: str
    # 0 to 1
    before: float
    after: float
    prompt: str | None  # None if it is not recorded as text
    expected: str | None
    baseline: str
    variant: str

    @property
    def words(self) -> str:
        if self.before == self.after:
            return f"same score, {self.before:.2g}"
        if {self.before, self.after} == {0.0, 1.0}:
            return "right to wrong" if self.before else "wrong to right"
        return f"score {self.before:.3f} to {self.after:.3f}"


@dataclass(frozen=True)
class FlippedAnswers:
    """Some changed answers of one variant and suite."""

    recipe: str
    suite: str
    asked: int
    changed: int
    # Some wrong choices may have changed to other wrong ones, which their records do not tell.
    is_least: bool
    shown: list[FlippedAnswer]

    @property
    def words(self) -> str:
        least = "at least " if self.is_least else ""
        return f"{least}{self.changed} of {self.asked} answers changed"


def changed_answers(evidence: ReportedRun) -> list[FlippedAnswers]:
    """Return examples by variant and suite."""
    return [
        examples_of(variant.recipe, gate.name, answered, gate.metric)
        for variant in evidence.report.variants
        for gate in variant.quality
        if (answered := evidence.find_answers(variant.recipe, gate.name)) is not None
    ]


def examples_of(
    recipe: str, suite: str, answered: PairedAnswers, metric: str = ""
) -> FlippedAnswers:
    """Return the largest losses, and gains in up to half of the room."""
    changed = []
    is_least = False
    for before, after in zip(answered.baseline, answered.candidate, strict=True):
        question = answered.questions.get(before.id)
        is_same = is_same_answer(answered.suite, question, before, after, metric)
        is_least |= is_same is None
        if is_same is False:
            changed.append((after.score - before.score, before, after))
    losses = sorted((change for change in changed if change[0] <= 0), key=lambda change: change[0])
    gains = sorted((change for change in changed if change[0] > 0), key=lambda change: -change[0])
    few_gains = gains[: max(EXAMPLES // 2, EXAMPLES - len(losses))]
    if any(row.nats is not None for row in answered.candidate):  # of conversations the worst alone
        few_gains = []
    shown = [*losses[: EXAMPLES - len(few_gains)], *few_gains]
    return FlippedAnswers(
        recipe,
        suite,
        asked=len(answered.candidate),
        changed=len(changed),
        is_least=is_least,
        shown=[
            FlippedAnswer(
                question=before.id,
                before=before.score,
                after=after.score,
                prompt=prompt_of(question),
                expected=shorten(question.expected) if question and question.expected else None,
                baseline=answer_of(answered.suite, question, before, metric)
                # Where a variant reads its baseline's text, its row has what differs.
                + marked(after if "flip" in after.own else before, "token"),
                variant=answer_of(answered.suite, question, after, metric)
                + marked(after, "choice"),
            )
            for _, before, after in shown
            for question in (answered.questions.get(before.id),)
        ],
    )


def prompt_of(question: Question | None) -> str | None:
    """Return the prompt without a chat template, or None if it is not text or private."""
    if question is None or (not question.messages and _DIGEST.fullmatch(question.prompt)):
        return None
    lines = [f"{message['role']}: {message.get('content') or ''}" for message in question.messages]
    return shorten("\n\n".join(lines) or question.prompt) or None


def answer_of(suite: AnySuite, question: Question | None, row: Answer, metric: str = "") -> str:
    """Return a choice, a text, or a conversation's figures; `metric` is the gate's."""
    answer = row.answer
    if row.nats is not None:
        kept = f"{100 * row.score:.1f} % of tokens kept, {row.nats:.3f} nats a token"
        if "first_flip" not in row.own:
            return kept
        place = row.own["first_flip"] + 1
        margin = f"{row.own['margin']:.3f} nats"
        return f"{kept}\nthe first other token is number {place}, by {margin}"
    if _is_chosen(row):
        number = find_choice(suite, question, answer, metric)
        words = f"log-likelihoods {_listed(answer)}"
        if number is None:
            return f"({words}; {metric} counts the choices' lengths too, which are not recorded)"
        values = _values(suite, question, answer)
        if values != answer:
            words += f"; divided by the choices' lengths {_listed(values)}: the largest is chosen"
        name = _choice(question, number) or f"choice {number + 1}"
        return f"{name}\n({words})"
    texts = answer if isinstance(answer, list) else [answer]
    words = "\n--- another sample ---\n".join(str(text) for text in texts)
    return shorten(words) + _outcome(row)


def marked(row: Answer, key: str) -> str:
    """Return a conversation's answer with the first different token in brackets.

    `key` is `token` for the baseline, `choice` for the variant.
    """
    text = row.own.get("text")
    flip = row.own.get("flip")
    if not isinstance(text, str):
        return ""
    if flip is None:
        return f"\n\n{shorten(text)}"
    start = flip["start"]
    token = flip["token"]
    if not token or text[start : start + len(token)] != token:
        return f"\n\n{shorten(text)}\n(the server tells no text of single tokens)"
    rest = text[start + len(token) :] if key == "token" else ""
    shown = shorten(f"{text[:start]}\u27e6{flip[key]}\u27e7{rest}")
    return f"\n\n{shown}"


def find_choice(
    suite: AnySuite, question: Question | None, likelihoods: list[float], metric: str
) -> int | None:
    """Return the chosen one; None if the metric counts lengths that are not recorded."""
    values = _values(suite, question, likelihoods)
    is_plain = metric == "acc_norm" and {len(text) for text in _choices(question)} == {1}
    if metric.startswith("acc_") and values == likelihoods and not is_plain:
        return None
    return choose(values)


def is_same_answer(
    suite: AnySuite, question: Question | None, before: Answer, after: Answer, metric: str
) -> bool | None:
    """Return whether both answers are the same, with any likelihood; None if it is not recorded."""
    if before.score != after.score:
        return False
    if _is_chosen(before) and _is_chosen(after):
        chosen = [find_choice(suite, question, row.answer, metric) for row in (before, after)]
        if None not in chosen:
            return chosen[0] == chosen[1]
        return True if before.score == 1.0 else None
    return bool(before.answer == after.answer)


def _values(
    suite: AnySuite, question: Question | None, likelihoods: Sequence[float]
) -> list[float]:
    return kind_of(suite).choice_values(suite, likelihoods, _choices(question))


def _is_chosen(row: Answer) -> bool:
    values = row.answer
    return isinstance(values, list) and bool(values) and isinstance(values[0], float | int)


def shorten(text: str) -> str:
    """Return at most :data:`LONGEST` characters."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n[{len(text) - LONGEST:,} more characters are left out]"


def _choices(question: Question | None) -> list[str]:
    return list(question.data.get("choices") or []) if question is not None else []


def _choice(question: Question | None, number: int) -> str | None:
    choices = _choices(question)
    return f"{ascii_uppercase[number]}. {choices[number]}" if number < len(choices) else None


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _outcome(row: Answer) -> str:
    outcome = row.own.get("outcome")
    if outcome is None:
        return ""
    return f"\n(tests: {', '.join(outcome) if isinstance(outcome, list) else outcome})"
