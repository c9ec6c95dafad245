"""Rule of a suite's gate: whether it is decided, and the next questions.

Asking and judging look at answers by :func:`look_at` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby

from pydantic import Field, TypeAdapter

from eval_gates.clusters import group_by_cluster, means, whole_end
from eval_gates.rows import Answer, of_group
from eval_gates.statistics.assay_sensitivity import own_gains
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Finding, findings, first_decided, planned_looks
from eval_gates.statistics.lost_groups import find_lost_groups
from eval_gates.statistics.parts import split_by_group, split_by_part
from prepare.record import Record
from recipes.config_model import Tier
from recipes.policy import Margin

Answers = Sequence[Answer]
BATCH = 64
"""Questions that a kill can lose: answers are stored after each batch."""


class GateRule(Record):
    """Settings that decide a gate."""

    tier: Tier
    margin: Margin
    alpha: float = Field(description="level: the policy's alpha over the variants")
    group: str | None = Field(None, description="of questions that it counts; None: all")
    takes_all: bool = Field(
        False, description="a pass takes all questions: parts of them are judged by themselves"
    )

    @property
    def comparison(self) -> Comparison:
        return comparison_of(self.margin)

    def counted(self, rows: Answers) -> Answers:
        """Return the answers that the gate counts: others are of a suite's further gates."""
        return of_group(rows, self.group)


def look_at(
    rule: GateRule, baseline: Sequence[float], rows: Answers, planned: int, *, can_pass: bool
) -> Finding:
    """Do the looks that a variant's answers allow, up to the first that decides.

    `baseline` has its score of each of these answers that the rule counts. `planned` is the last
    look's number of values: questions, or clusters. An insensitive gate may not pass, nor may one
    at a look at which a group is lost, or large clusters are: more answers may tell. ValueError
    before the first look.
    """
    after = rule.counted(rows)
    before = [
        replace(row, score=score) for row, score in zip(after, baseline[: len(after)], strict=True)
    ]
    looks = findings(
        means(before, "score"),
        means(after, "score"),
        rule.comparison,
        rule.alpha,
        planned,
        own_gains(after),
        can_pass=can_pass,
    )
    return first_decided(_without_withheld(rule, before, after, looks))


def _without_withheld(
    rule: GateRule, before: Answers, after: Answers, looks: Iterable[Finding]
) -> Iterator[Finding]:
    """Yield the findings; a pass is open where a part loses too much, or all are to be asked."""
    for finding in looks:
        is_early = rule.takes_all and finding.n < finding.planned
        if finding.state == "pass" and (is_early or _is_withheld(rule, before, after, finding.n)):
            yield replace(finding, state="open", is_withheld=True)
        else:
            yield finding


def _is_withheld(rule: GateRule, before: Answers, after: Answers, values: int) -> bool:
    """Return whether the mean of so many values hides that a part of them is lost."""
    end = sum(map(len, group_by_cluster(after)[:values]))
    old = before[:end]
    new = after[:end]
    scores = [[row.score for row in side] for side in (old, new)]
    if rule.comparison.is_lost_by_question(*scores):
        return True
    partitions = [*split_by_group(old, new), *split_by_part(old, new)]
    return bool(find_lost_groups(rule.comparison, rule.alpha, partitions))


@dataclass(frozen=True)
class StoppingPlan:
    """Questions of one stage."""

    max_questions: int
    batch: int = BATCH
    rule: GateRule | None = None  # None to ask all
    # The baseline's score of each question that the rule counts.
    baseline: Sequence[float] = ()
    # Each question's cluster; looks and batches end where a cluster ends.
    clusters: Sequence[str] | None = None
    can_pass: bool = True  # false for an insensitive gate, which may only fail
    min_values: int = 0  # questions, or clusters, that another gate needs of a decided one

    @property
    def end(self) -> int:
        return whole_end(self.clusters, self.max_questions) if self.clusters else self.max_questions

    def look_ends(self) -> list[int]:
        """Return each planned look's number of questions."""
        if self.rule is None:
            return [self.end]
        ends = self._value_ends
        looks = planned_looks(len(ends), self.rule.comparison.margin)
        return [ends[look.n - 1] for look in looks]

    def decided(self, rows: Answers) -> Finding | None:
        """Return the last allowed look's finding; None before the first."""
        ends = self.look_ends()
        if self.rule is None or len(rows) < ends[0]:
            return None
        reached = max(end for end in ends if end <= len(rows))
        if reached not in self._findings:
            self._findings[reached] = look_at(
                self.rule,
                self.baseline,
                rows[:reached],
                len(self._value_ends),
                can_pass=self.can_pass,
            )
        return self._findings[reached]

    @cached_property
    def _findings(self) -> dict[int, Finding]:
        """Findings by number of answers; a graded score's bound takes a second."""
        return {}

    def counted(self, rows: Answers) -> int:
        """Return the number of answers up to the deciding look, and to `min_values`."""
        look = self.decided(rows)
        if look is None or look.state == "open":
            return min(len(rows), self.end)
        return max(self.look_ends()[look.number - 1], min(len(rows), self._least()))

    def _least(self) -> int:
        ends = self._value_ends
        return ends[min(self.min_values, len(ends)) - 1] if self.min_values else 0

    def next_batch(self, rows: Answers) -> range:
        """Return the next questions' positions, if any."""
        done = len(rows)
        decided = self.decided(rows)
        is_decided = decided is not None and decided.state != "open"
        if done >= self.end or (is_decided and done >= self._least()):
            return range(0)
        look = next(end for end in self.look_ends() if end > done)
        end = min(done + self.batch, look)
        return range(done, whole_end(self.clusters, end) if self.clusters else end)

    @cached_property
    def _value_ends(self) -> Sequence[int]:
        """By value, the number of questions after which it is complete."""
        if not self.clusters:
            return range(1, self.end + 1)
        clusters = groupby(self.clusters[: self.end])
        return list(accumulate(len(list(questions)) for _, questions in clusters))


PLAN = TypeAdapter(StoppingPlan)
"""As a worker gets it."""


def comparison_of(margin: Margin) -> Comparison:
    """Return a margin as a comparison."""
    if margin.recovery is not None:
        return Comparison.recovery(margin.recovery)
    assert margin.points is not None
    return Comparison.points(margin.points)
