"""Changed answers of a variant: counts by subject, and examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from artifacts.report.figure import Figure, Table, UniqueIds, axis, label
from artifacts.report.prompts import answer_of, expected_of, is_same_answer, prompt_of
from artifacts.report.run_evidence import PairedAnswers, RunEvidence

EXAMPLES = 10
"""Flips of one suite and variant."""
ROW_HEIGHT = 22


@dataclass(frozen=True)
class FlippedAnswer:
    """A question with a changed answer."""

    question: str  # its id
    # both scores, 0 to 1
    before: float
    after: float
    prompt: str | None  # None where it is not kept as text
    expected: str | None  # the right answer, where it is a text
    # both answers
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
    """Some changed answers of one variant in one suite."""

    recipe: str
    suite: str
    asked: int
    changed: int
    shown: list[FlippedAnswer]


def changed_answers(evidence: RunEvidence) -> list[FlippedAnswers]:
    """Return examples of every variant and suite with kept answers."""
    return [
        _examples(variant.recipe, gate.suite, answered)
        for variant in evidence.report.variants
        for gate in variant.gates
        if (answered := evidence.find_answers(variant.recipe, gate.suite)) is not None
    ]


def _examples(recipe: str, suite: str, answered: PairedAnswers) -> FlippedAnswers:
    changed = [
        (after["score"] - before["score"], before, after)
        for before, after in zip(answered.baseline, answered.candidate, strict=True)
        if not is_same_answer(answered.suite, answered.questions.get(before["id"]), before, after)
    ]
    losses = sorted((each for each in changed if each[0] <= 0), key=lambda each: each[0])
    gains = sorted((each for each in changed if each[0] > 0), key=lambda each: -each[0])
    few_gains = gains[: max(EXAMPLES // 2, EXAMPLES - len(losses))]
    shown = [*losses[: EXAMPLES - len(few_gains)], *few_gains]
    return FlippedAnswers(
        recipe,
        suite,
        asked=len(answered.candidate),
        changed=len(changed),
        shown=[
            FlippedAnswer(
                question=str(before["id"]),
                before=float(before["score"]),
                after=float(after["score"]),
                prompt=prompt_of(question),
                expected=expected_of(question),
                baseline=answer_of(answered.suite, question, before),
                variant=answer_of(answered.suite, question, after),
            )
            for _, before, after in shown
            for question in (answered.questions.get(before["id"]),)
        ],
    )


def flip_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return flips by subject, one figure per variant and suite with subjects."""
    figures = []
    for variant in evidence.report.variants:
        for gate in variant.gates:
            answered = evidence.find_answers(variant.recipe, gate.suite)
            if answered is not None and gate.groups:
                figures.append(_flips(variant.recipe, gate.suite, answered, names))
    return figures


def _flips(recipe: str, suite: str, answered: PairedAnswers, names: UniqueIds) -> Figure:
    asked: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    gained: Counter[str] = Counter()
    for before, after in zip(answered.baseline, answered.candidate, strict=True):
        subject = str(before["subject"])
        asked[subject] += 1
        lost[subject] += after["score"] < before["score"]
        gained[subject] += after["score"] > before["score"]
    flipped = [subject for subject in asked if lost[subject] or gained[subject]]
    flipped.sort(key=lambda subject: (lost[subject] - gained[subject], lost[subject], subject))
    subjects = [label(subject.replace("_", " ")) for subject in flipped]
    return Figure(
        name=names.of("flips", suite, recipe),
        title=f"{suite}, {recipe}: flips by subject",
        says=(
            f"{lost.total()} of {len(answered.candidate)} questions went from right to wrong and "
            f"{gained.total()} from wrong to right, in {len(asked)} subjects."
        ),
        data=[
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": subjects,
                "x": [sign * count[subject] for subject in flipped],
                "customdata": [count[subject] for subject in flipped],
                "marker": {"color": colour},
                "hovertemplate": "%{y}: %{customdata}<extra>%{fullData.name}</extra>",
            }
            for name, count, sign, colour in (
                ("right to wrong", lost, -1, "var(--fail)"),
                ("wrong to right", gained, 1, "var(--pass)"),
            )
        ],
        layout={
            "barmode": "relative",
            "xaxis": axis("questions (lost to the left, gained to the right)", dtick=1)
            if max([*lost.values(), *gained.values(), 0]) <= 8
            else axis("questions (lost to the left, gained to the right)"),
            "yaxis": {"automargin": True},
            "hovermode": "closest",
        },
        table=Table(
            ("subject", "questions", "right to wrong", "wrong to right"),
            [
                (subject, str(asked[subject]), str(lost[subject]), str(gained[subject]))
                for subject in sorted(asked, key=lambda s: (-lost[s] - gained[s], s))
            ],
        ),
        height=150 + ROW_HEIGHT * len(flipped),
    )
