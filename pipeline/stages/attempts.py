"""The attempt ledger: which variants of a baseline were judged, and which gates measured again.

An **attempt** is a set of variants tried together against one baseline under one policy, or a gate
of theirs measured again. It is recorded before the first result is stored. `attempts: N` of a
policy gives each alpha / N, and counts everything that was tried before: attempts under other
policies and screenings show which variants are good, too. Each variant that these showed for the
first time uses up one attempt.

    STORE/attempts/<baseline>/<number>.json    one file an attempt, never changed or collected
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.speed.rules import StartCount
from eval_gates.statistics.multiplicity import gate_level
from prepare.digest import digest_json
from prepare.errors import StoreError, UsageError, raise_as
from prepare.own_command import own_command
from prepare.private_files import create_exclusively, make_folder
from prepare.record import Record
from prepare.store import Store
from prepare.untrusted import read_record
from recipes.policy import Policy

RESTORE = "restore it: without it the number of attempts is not known"
_UNLIKE_CRITERIA = {
    *("assumed_baseline", "concurrency", "noise_floor_questions", "sources", "usual"),
}
_NOT_CRITERIA: Any = {
    **{"name": True, "summary": True, "promotion": True, "engine": True},
    "suites": {"__all__": _UNLIKE_CRITERIA},
}
"""Keys of a policy that decide nothing."""


class Trial(Record):
    """Variants that are judged together; part of the verdict's key, so it has no number."""

    baseline: dict[str, str] = Field(description="which model everything is compared with")
    variants: dict[str, str] = Field(
        min_length=1, description="by recipe, the served model, not what it is asked"
    )
    descent: list[str] = Field(
        [],
        description="the recipes from the largest down, if each is judged only once all before it "
        "have passed; each then has the whole level",
    )
    asked: str = Field("", description="digest of the critical gates' questions and workloads")
    policy: str = Field(description="its name")
    criteria: str = Field(description="digest of the policy's criteria")
    alpha: float = Field(description="the policy's error rate")
    attempts: int | None = Field(None, description="the policy's `attempts`")

    @property
    def level(self) -> float:
        """Error rate of one variant's gate."""
        variants = len(self.variants)
        return gate_level(self.alpha, self.attempts, variants, in_sequence=bool(self.descent))

    def before(self, recipe: str) -> list[str]:
        """Return the recipes that must have passed before this one is judged."""
        return self.descent[: self.descent.index(recipe)] if recipe in self.descent else []

    def is_of(self, other: Trial) -> bool:
        """Return whether variants, their order, questions and criteria are the same."""
        return (self.variants, self.descent, self.asked, self.criteria) == (
            *(other.variants, other.descent),
            *(other.asked, other.criteria),
        )

    @property
    def models(self) -> set[str]:
        """The served models; by name where the model is unknown."""
        return {served or name for name, served in self.variants.items()}


class Attempt(Record):
    """One file of the ledger."""

    schema_version: int = Field(3, description="of this record")
    number: int = Field(ge=1, description="of the attempt against this baseline")
    kind: Literal["gate", "screen"] = Field("gate", description="screen: without gates")
    trial: Trial
    measured: dict[str, int] = Field(
        {}, description="by gate, the number of its measurement, where it is not the first"
    )
    run: str = Field("", description="id of the run that began it")
    when: str = Field("", description="time of recording, UTC")


class History(Record):
    """What was judged against a baseline before a verdict; it changes no verdict."""

    attempt: int = Field(1, description="number of the verdict's attempt")
    variants: int = Field(0, description="variants of earlier attempts")
    measurements: int = Field(0, description="gates that were measured again so far")
    starts: StartCount = Field(
        StartCount(), description="of the variant's server, over all commands"
    )

    @property
    def words(self) -> str:
        """Note on a verdict; '' if nothing was judged before and no start failed."""
        return "; ".join(filter(None, (self._tried, self.starts.words)))

    @property
    def _tried(self) -> str:
        if self.attempt == 1 and not self.measurements:
            return ""
        again = f" and {self.measurements} gates measured again" if self.measurements else ""
        variants = "1 variant was" if self.variants == 1 else f"{self.variants} variants were"
        return f"attempt {self.attempt} against this baseline: {variants} tried before{again}"


class Counted(Record):
    """Trial to record before results."""

    trial: Trial
    gate: str = Field(description="that is measured")
    run: str = Field("", description="id of the run")


def trial_of(
    baseline: dict[str, str],
    variants: dict[str, str],
    policy: Policy,
    asked: str = "",
    descent: Sequence[str] = (),
) -> Trial:
    """Return the trial of these variants; one alone has no order."""
    return Trial(
        baseline=baseline,
        variants=variants,
        descent=list(descent) if len(variants) > 1 else [],
        asked=asked,
        policy=policy.name,
        criteria=digest_json(policy.model_dump(mode="json", exclude=_NOT_CRITERIA)),
        alpha=policy.alpha,
        attempts=policy.attempts,
    )


def count_used(attempts: Sequence[Attempt]) -> int:
    """Return how many attempts these use up.

    One under `attempts: N` shares its level among its variants, and is one. Others are as many as
    they have new variants, and at least one: the best of them may be tried next.
    """
    seen = set[str]()
    used = 0
    for attempt in attempts:
        new = attempt.trial.models - seen
        used += 1 if attempt.trial.attempts is not None else max(1, len(new))
        seen |= new
    return used


class AttemptLedger:
    """A store's ledger; StoreError if a record is damaged or gone."""

    def __init__(self, store: Store) -> None:
        self._root = store.root
        self._attempts = store.root / "attempts"

    def check_allowed(self, trial: Trial) -> None:
        """Raise UsageError if the trial is new and no attempt is left."""
        earlier = self.attempts(trial.baseline)
        if not any(trial.is_of(attempt.trial) for attempt in earlier):
            self._refuse_more(trial, earlier)

    def begin(
        self, counted: Counted, number: int = 1, kind: Literal["gate", "screen"] = "gate"
    ) -> None:
        """Record an attempt, or a gate's measurement with this number, durably.

        UsageError: no attempt is left. StoreError: it cannot be recorded.
        """
        trial = counted.trial
        gate = counted.gate
        folder = self._folder(trial.baseline)
        while True:
            earlier = self.attempts(trial.baseline)
            same = [other for other in earlier if trial.is_of(other.trial)]
            if same and max(other.measured.get(gate, 1) for other in same) >= number:
                return
            self._refuse_more(trial, earlier)
            measured = dict(same[-1].measured) if same else {}
            attempt = Attempt(
                number=len(earlier) + 1,
                kind=kind,
                trial=trial,
                measured={**measured, gate: number} if number > 1 else measured,
                run=counted.run,
                when=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            content = attempt.model_dump_json(indent=1).encode()
            with raise_as(StoreError, "the attempt cannot be recorded", self._attempts):
                for place in (self._root, self._attempts, folder):
                    make_folder(place)
                # If two runs begin at the same time, one gets the number.
                if create_exclusively(folder / f"{attempt.number:06d}.json", content):
                    return

    def attempts(self, baseline: dict[str, str]) -> list[Attempt]:
        attempts: list[Attempt] = []
        for path in sorted(self._folder(baseline).glob("[!.]*.json")):
            message = "a record of the attempt ledger cannot be read"
            kinds = (OSError, ValueError)
            with raise_as(StoreError, message, path, RESTORE, errors=kinds):
                attempts.append(read_record(path, Attempt))
                if attempts[-1].number != len(attempts):
                    raise ValueError(f"the record of attempt {len(attempts)} is gone")
        return attempts

    def history(self, trial: Trial) -> History:
        """Return what was judged before this trial, and its number."""
        earlier = self.attempts(trial.baseline)
        own = [attempt.number for attempt in earlier if trial.is_of(attempt.trial)]
        number = own[0] if own else len(earlier) + 1
        before = [attempt.trial.models for attempt in earlier if attempt.number < number]
        variants = set[str]().union(*before) - trial.models
        latest = [
            attempt.measured
            for place, attempt in enumerate(earlier, start=1)
            if not any(attempt.trial.is_of(later.trial) for later in earlier[place:])
        ]
        return History(
            attempt=number,
            variants=len(variants),
            measurements=sum(n - 1 for measured in latest for n in measured.values()),
        )

    def latest_measurement(self, trial: Trial, gate: str) -> tuple[int, set[str]]:
        """Return the number of a gate's latest measurement, and the run ids that began it."""
        same = [attempt for attempt in self.attempts(trial.baseline) if trial.is_of(attempt.trial)]
        begun = [(attempt.measured.get(gate, 1), attempt.run) for attempt in same]
        latest = max((number for number, _ in begun), default=1)
        return latest, {run for number, run in begun if number == latest}

    def _refuse_more(self, trial: Trial, earlier: list[Attempt]) -> None:
        allowed = trial.attempts
        if allowed is None:
            return
        first = next((e.trial.attempts for e in earlier if e.trial.attempts is not None), allowed)
        if first != allowed:
            raise UsageError(
                f"the first attempt against this baseline fixed 'attempts: {first}', and the "
                f"policy '{trial.policy}' has {allowed}",
                where=str(self._folder(trial.baseline)),
                hint=f"write 'attempts: {first}', or change the baseline",
            )
        if (used := count_used(earlier)) >= allowed:
            raise UsageError(
                f"the policy '{trial.policy}' allows {allowed} attempts against one baseline, and "
                f"{used} were made: each variant that any policy tried or screened counts",
                where=str(self._folder(trial.baseline)),
                hint=f"`{own_command('runs', earlier[-1].run)}` says how the last one continues; "
                "judge the same variants again, change the baseline, or use another policy",
            )

    def _folder(self, baseline: dict[str, str]) -> Path:
        return self._attempts / digest_json(baseline)
