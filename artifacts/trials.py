"""Counts what was tried against a baseline under a policy, over all runs of a store.

Each run that tries something new is a trial: one more chance of a lucky pass. How many there will
be is not known beforehand, so each gets a share of the policy's error rate, in the order in which
they begin: nine tenths for the first, and of the rest a half, a sixth, a twelfth... (1 / k (k + 1),
which sums to 1). By the union bound the chance that any trial ever passes a variant that is worse
than allowed is at most the whole rate, whatever the answers have in common. That needs no list made
beforehand where what is tried next hangs on no more than that nothing has passed so far. Within a
trial Holm's procedure shares out its part.

The same variants judged again by the same rule on the answers that are kept, or on more of them,
are no new trial: an anytime-valid gate may be looked at as often as one likes.

`STORE/trials/<count>/<number>.json`, one file a trial, written once and never changed. A count
belongs to a baseline and a policy of one name, and is not reset: another baseline, or a policy
under another name, begins one of its own, and says so in its verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from eval_gates.suite_claims import claim_of
from pipeline.core.digest import digest_json
from pipeline.core.errors import StoreError, raise_as
from pipeline.core.record import Record
from pipeline.core.store import Store
from recipes.policy import Policy


class Count(Record):
    """What is counted together."""

    baseline: dict[str, str] = Field(description="which model everything is compared with")
    policy: str = Field(description="name of the policy")

    @property
    def key(self) -> str:
        """Names its folder."""
        return digest_json(self.model_dump())


class Trial(Record):
    """Variants that were tried together, and what came before."""

    schema_version: int = Field(1, description="of this record")
    count: Count
    number: int = Field(ge=1, description="how many trials of this count there were, with it")
    variants: dict[str, str] = Field(description="by recipe, what is served, and how it is judged")
    earlier: tuple[dict[str, str], ...] = Field(description="variants of each trial before")
    run: str = Field(description="id of the run that began it")


def variant_key(served: str, policy: Policy, family: str, asked: Mapping[str, str]) -> str:
    """What makes a try another one: who is served and how, what is asked, and what decides.

    `served` is the key of the variant's stage `coherence`, made of its weights, the serving and the
    machine; of an endpoint, of the session. `asked` are the questions and what asks them, as
    `EvaluationPlanner.asked` has them: other questions are another chance.
    """
    claim = claim_of(policy, family)
    return digest_json({"served": served, "claim": claim, "asked": dict(asked)})


class Trials:
    """The trials of a store, whose root this is given."""

    def __init__(self, store: Path) -> None:
        self._root = store / "trials"
        self._shelf = Store(store).shelf("trials")

    def foresee(self, count: Count, variants: Mapping[str, str]) -> Trial:
        """The trial that a run of these variants would be; nothing is written.

        Raises:
            StoreError: a record is damaged or gone.
        """
        earlier = self._list(count.key)
        return _find(variants, earlier) or _next(count, variants, earlier, "")

    def begin(self, count: Count, variants: Mapping[str, str], run: str) -> Trial:
        """The trial that these variants are part of, or a new one, on disk when this returns.

        Raises:
            StoreError: a record is damaged or gone, or cannot be written.
        """
        with raise_as(StoreError, "the trial cannot be counted", self._root / count.key):
            while True:
                earlier = self._list(count.key)
                if found := _find(variants, earlier):
                    return found
                trial = _next(count, variants, earlier, run)
                content = trial.model_dump_json(indent=1).encode()
                # Of two who begin at the same time one gets the number, and the other the next.
                if self._shelf.create(f"{count.key}/{_name(trial.number)}", content):
                    return trial

    def find(self, count: Count, number: int) -> Trial | None:
        """That trial; raises StoreError where its record is damaged."""
        return self._read(f"{count.key}/{_name(number)}")

    def latest(self) -> Iterator[Trial]:
        """The last trial of every count; raises StoreError where a record is damaged."""
        for key in sorted({name.partition("/")[0] for name in self._shelf.names("")}):
            if trials := self._list(key):
                yield trials[-1]

    def _list(self, key: str) -> list[Trial]:
        names = [name for name in self._shelf.names(key) if name.endswith(".json")]
        read = (self._read(f"{key}/{name}") for name in names)
        trials = [trial for trial in read if trial is not None]
        for number, trial in enumerate(trials, start=1):
            if trial.number != number:
                raise StoreError(
                    f"the record of trial {number} is gone, and {trial.number} is there",
                    where=str(self._root / key / _name(number)),
                    cure="restore it: without it the number of trials is not known",
                )
        return trials

    def _read(self, name: str) -> Trial | None:
        with raise_as(
            StoreError,
            "the record of a trial cannot be read",
            self._root / name,
            "restore it: without it the number of trials is not known",
            errors=(OSError, ValueError),
        ):
            content = self._shelf.get(name)
            return Trial.model_validate_json(content) if content is not None else None


def _find(variants: Mapping[str, str], earlier: Sequence[Trial]) -> Trial | None:
    """The trial that these variants are part of."""
    return next((each for each in earlier if variants.items() <= each.variants.items()), None)


def _next(count: Count, variants: Mapping[str, str], earlier: Sequence[Trial], run: str) -> Trial:
    return Trial(
        count=count,
        number=len(earlier) + 1,
        variants=dict(variants),
        earlier=tuple(trial.variants for trial in earlier),
        run=run,
    )


def _name(number: int) -> str:
    return f"{number:06d}.json"
