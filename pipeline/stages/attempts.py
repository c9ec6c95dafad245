"""The attempt ledger: which variants were tried, and which measurements were begun.

An **attempt** is a set of variants that are tried together against one baseline under one policy.
It is counted when the first answer or load of a candidate is about to be stored or used, not
before. That is as valid as counting earlier. Its number and its level are fixed before anything of
the candidate is seen. What was seen until then (that a server did not start, that a run was killed,
the baseline's answers) has nothing of the candidate in it, and the baseline's answers are kept: the
next attempt meets the same ones, so nobody can choose among several. By the union bound the chance
that any attempt passes falsely is at most the sum of their rates, whatever they have in common.

A **measurement** is one log of answers or loads. It is continued from what is kept. Where a log is
lost, the weights in it were made again with another result, or `--remeasure` asks for it, the
measurement that replaces it has the next number and a share of the attempt's rate. Both sides are
measured again then: the n-th measurement of a gate rests on the n-th logs and on no others, so the
union bound holds over n as well. A baseline's log counts by itself, before any candidate's exists:
else its answers could be chosen by throwing them away.

    STORE/attempts/<scope>/<number>.json          one file an attempt, never changed
    STORE/measurements/<measurement>/<number>.json  one file a log that was begun, never changed

`multiplicity.gate_level` computes every level; a plan carries it to all who use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from pydantic import Field

from eval_gates.statistics.multiplicity import attempt_share, bound_over_attempts, gate_level
from eval_gates.suite_criteria import claim_of
from pipeline.core.digest import digest_json
from pipeline.core.errors import AttemptChangedError, StoreError, raise_as
from pipeline.core.key_value_store import KeyValueStore
from pipeline.core.record import Record
from pipeline.core.store import Store
from recipes.policy import Attempts, Policy

RESTORE = "restore it: without it the number of attempts is not known"
_Kind = TypeVar("_Kind", bound=Record)


class AttemptScope(Record):
    """What is counted together."""

    baseline: dict[str, str] = Field(description="which model everything is compared with")
    policy: str = Field(description="name of the policy")

    @property
    def key(self) -> str:
        """The name of its folder."""
        return digest_json(self.model_dump())


class StartSpread(Record):
    """How much starts of one server differ on a machine, as a store has measured it."""

    stddev: float = Field(ge=0, le=1, description="of ln(output tokens/s) between starts")
    starts: int = Field(ge=2, description="that it was estimated from")


class Attempt(Record):
    """Variants that are tried together, and the error rate that they have."""

    schema_version: int = Field(1, description="of this record")
    scope: AttemptScope
    number: int = Field(ge=1, description="of the attempt in its scope")
    variants: dict[str, str] = Field(
        min_length=1, description="by recipe, what is served, and how it is judged"
    )
    alpha: float = Field(description="the policy's error rate")
    spending: Attempts = Field(description="the policy's `attempts`")
    start_spread: StartSpread | None = Field(
        None,
        description="that the store had measured when the attempt began. It is part of what a "
        "ratio is decided by, so later starts do not change it",
    )
    run: str = Field("", description="id of the run that began it")

    @property
    def rate(self) -> float:
        """The error rate of all its variants and measurements together."""
        return self.alpha * attempt_share(self.spending, self.number)

    @property
    def history_rate(self) -> float:
        """The bound on the chance that any attempt so far has passed falsely."""
        return bound_over_attempts(self.alpha, self.spending, self.number)

    def level(self, measurement: int = 1) -> float:
        """The level that one variant's gate is decided at.

        Args:
            measurement: number of the gate's measurement.
        """
        return gate_level(
            self.alpha, self.spending, self.number, len(self.variants), measurement=measurement
        )

    @property
    def without_run(self) -> Attempt:
        """The same attempt, whichever run began it: keys are made of this."""
        return self.model_copy(update={"run": ""})

    def is_same(self, other: Attempt | None) -> bool:
        """Whether the ledger's record is of this attempt, whichever run began it."""
        return other is not None and other.without_run == self.without_run

    @property
    def words(self) -> str:
        """What stands beside a verdict; '' for the first attempt."""
        if self.number == 1:
            return ""
        if self.spending == "spend":
            return (
                f"attempt {self.number} against this baseline, which has {self.rate:.2g} of the "
                f"{self.alpha:g} for all attempts"
            )
        return (
            f"attempt {self.number} against this baseline: {self.alpha:g} is the error rate of "
            f"each, at most {self.history_rate:.2g} that of all {self.number}"
        )


class Measurement(Record):
    """One log of answers or loads that was begun."""

    schema_version: int = Field(1, description="of this record")
    number: int = Field(ge=1)
    log: str = Field(description="digest that names the answer log, or seed of the load log")
    run: str = Field("", description="id of the run that began it")


@dataclass(frozen=True)
class Remeasured:
    """What is measured again though it is over.

    Args:
        gates: names of suites, and of gates on speed.
        runs: ids of the runs that ask for it. What they have begun is continued.
        least: number of the first measurement that any gate may have: 2 for weights that were
            measured elsewhere before.
    """

    gates: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    least: int = 1


NOTHING = Remeasured()


class Counted(Record):
    """What a stage counts when it is about to store or use what it measures."""

    attempt: Attempt | None = Field(None, description="None of the baseline's answers")
    measurement: str = Field(description="key of the measurement")
    run: str = Field("", description="id of the run")


def variant_key(served: str, policy: Policy, family: str, asked: Mapping[str, str]) -> str:
    """What makes a try another one: who is served and how, what is asked, and what decides.

    `served` is the key of the variant's stage `coherence`, made of its weights, the serving and the
    machine; of an endpoint, of the deployment id. `asked` are the questions and what asks them, as
    `EvaluationPlanner.asked` has them: other questions are another chance.
    """
    claim = claim_of(policy, family)
    return digest_json({"served": served, "claim": claim, "asked": dict(asked)})


class AttemptLedger:
    """The ledger of a store."""

    def __init__(self, store: Store) -> None:
        self._root = store.root
        self._attempts = store.key_value_store("attempts")
        self._measurements = store.key_value_store("measurements")

    # --- attempts -----------------------------------------------------------------------------

    def foresee(
        self,
        scope: AttemptScope,
        variants: Mapping[str, str],
        policy: Policy,
        run: str = "",
        start_spread: StartSpread | None = None,
    ) -> Attempt:
        """The attempt that these variants are part of, or would be; nothing is written.

        Args:
            scope: what is counted together.
            variants: as of `Attempt`.
            policy: that decides.
            run: id of the run.
            start_spread: as measured so far; an attempt that has begun keeps its own.

        Raises:
            StoreError: a record is damaged or gone.
        """
        earlier = self.attempts(scope)
        return _find(variants, earlier) or Attempt(
            scope=scope,
            number=len(earlier) + 1,
            variants=dict(variants),
            alpha=policy.alpha,
            spending=policy.attempts,
            start_spread=start_spread,
            run=run,
        )

    def begin(self, counted: Counted, number: int, log: str, *, is_kept: bool) -> None:
        """Count what a stage is about to store or use; it is on disk when this returns.

        Args:
            counted: the attempt and the measurement.
            number: of the measurement.
            log: the log that is written.
            is_kept: whether what was stored in that log is there.

        Raises:
            AttemptChangedError: the ledger is not as the run was planned by.
            StoreError: a record is damaged or gone, or cannot be written.
        """
        if counted.attempt is not None:
            self.begin_attempt(counted.attempt)
        wanted = Measurement(number=number, log=log, run=counted.run)
        self._begin_measurement(counted.measurement, wanted, is_kept=is_kept)

    def begin_attempt(self, attempt: Attempt) -> None:
        """Count the attempt, unless it is counted; raises errors as `begin`."""
        known = _find(attempt.variants, self.attempts(attempt.scope))
        if known is not None and known.number == attempt.number:
            return
        where = self._root / "attempts" / attempt.scope.key
        with raise_as(StoreError, "the attempt cannot be counted", where):
            # Where two runs begin at the same time, one gets the number.
            if known is None and _create(self._attempts, attempt.scope.key, attempt):
                return
        raise AttemptChangedError(
            f"another run began attempt {attempt.number} against this baseline",
            where=str(where),
            hint="run the same command again: what is stored is used",
        )

    def find(self, scope: AttemptScope, number: int) -> Attempt | None:
        """That attempt; raises StoreError where its record is damaged."""
        return self._read(self._attempts, "attempts", Attempt, scope.key, number)

    def attempts(self, scope: AttemptScope) -> list[Attempt]:
        """All attempts of a scope, in order; raises StoreError as `foresee`."""
        return list(self._list(scope.key))

    def all(self) -> Iterator[Attempt]:
        """All attempts of all scopes; raises StoreError as `foresee`."""
        for key in sorted({name.partition("/")[0] for name in self._attempts.names("")}):
            yield from self._list(key)

    def _list(self, key: str) -> Iterator[Attempt]:
        names = sorted(name for name in self._attempts.names(key) if name.endswith(".json"))
        for number, name in enumerate(names, start=1):
            attempt = self._read(self._attempts, "attempts", Attempt, key, number)
            if attempt is None or attempt.number != number:
                raise StoreError(
                    f"the record of attempt {number} is gone, and {name} is there",
                    where=str(self._root / "attempts" / key / _name(number)),
                    hint=RESTORE,
                )
            yield attempt

    # --- measurements -------------------------------------------------------------------------

    def measurement(self, key: str, number: int) -> Measurement | None:
        """What was begun under that number; raises StoreError where the record is damaged."""
        return self._read(self._measurements, "measurements", Measurement, key, number)

    def latest(self, key: str) -> int:
        """The number of the measurement that was begun last; 0 where none was."""
        names = [name for name in self._measurements.names(key) if name.endswith(".json")]
        return max((int(name.removesuffix(".json")) for name in names), default=0)

    def next_number(
        self,
        candidates: Iterable[str],
        is_lost: Callable[[int], bool],
        is_over: Callable[[int], bool],
        gate: str,
        remeasured: Remeasured = NOTHING,
    ) -> int:
        """The number of the measurement of a gate that is to be continued or begun.

        Args:
            candidates: keys of the candidates' measurements: the latest number of theirs counts.
            is_lost: whether a log of that number was begun and is gone, of either side.
            is_over: whether nothing is left to measure under that number.
            gate: its name.
            remeasured: gates that are measured again though they are over.
        """
        keys = list(candidates)

        def is_replaced(number: int) -> bool:
            begun = [self.measurement(key, number) for key in keys]
            runs = {each.run for each in begun if each is not None}
            if gate not in remeasured.gates or not runs or runs & remeasured.runs:
                return False
            return is_over(number)

        first = max([remeasured.least, *(self.latest(key) for key in keys)])
        return next(n for n in count(first) if not (is_lost(n) or is_replaced(n)))

    def _begin_measurement(self, key: str, wanted: Measurement, *, is_kept: bool) -> None:
        where = self._root / "measurements" / key
        with raise_as(StoreError, "the measurement cannot be counted", where):
            if _create(self._measurements, key, wanted):
                return
        begun = self.measurement(key, wanted.number)
        if not is_kept or begun is None or begun.log != wanted.log:
            raise AttemptChangedError(
                f"what was kept of measurement {wanted.number} is gone, or is of other weights",
                where=str(where / _name(wanted.number)),
                hint="run the same command again: it measures under the next number",
            )

    def _read(
        self, records: KeyValueStore, folder: str, record: type[_Kind], key: str, number: int
    ) -> _Kind | None:
        name = f"{key}/{_name(number)}"
        with raise_as(
            StoreError,
            "a record of the attempt ledger cannot be read",
            self._root / folder / name,
            RESTORE,
            errors=(OSError, ValueError),
        ):
            content = records.get(name)
            return record.model_validate_json(content) if content is not None else None


def _create(records: KeyValueStore, key: str, record: Attempt | Measurement) -> bool:
    content = record.model_dump_json(indent=1).encode()
    return records.put_if_absent(f"{key}/{_name(record.number)}", content)


def _find(variants: Mapping[str, str], earlier: Iterable[Attempt]) -> Attempt | None:
    """The attempt that these variants are part of."""
    return next((each for each in earlier if variants.items() <= each.variants.items()), None)


def _name(number: int) -> str:
    return f"{number:06d}.json"
