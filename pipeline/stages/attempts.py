"""The attempt ledger: variants that were tried, and measurements that were begun.

An **attempt** is a set of variants tried together against one baseline under one policy. It counts
when the first answer or load of a candidate is about to be stored or used. Its number and level are
fixed before that, and the next attempt meets the same baseline answers. By the union bound, the
chance that any attempt passes falsely is at most the sum of their rates.

A **measurement** is one log of answers or loads. If a log is lost, the weights change, or
`--remeasure` asks for it, the next measurement has the next number and a share of the attempt's
rate. It uses the n-th logs of both sides only, so the union bound holds over n too. A baseline's
log counts by itself: otherwise its answers could be chosen by deleting them.

    STORE/attempts/<scope>/<number>.json            one file an attempt, never changed
    STORE/measurements/<measurement>/<number>.json  one file a begun log, never changed
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
from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.record import Record
from pipeline.core.store import Store
from recipes.policy import Attempts, Policy

RESTORE = "restore it: without it the number of attempts is not known"
_Kind = TypeVar("_Kind", bound=Record)


class AttemptScope(Record):
    """Attempts that share one error budget."""

    baseline: dict[str, str] = Field(description="which model everything is compared with")
    policy: str = Field(description="name of the policy")

    @property
    def key(self) -> str:
        """Name of its folder."""
        return digest_json(self.model_dump())


class StartSpread(Record):
    """Spread of throughput between starts of one server on a machine."""

    stddev: float = Field(ge=0, le=1, description="of ln(output tokens/s) between starts")
    starts: int = Field(ge=2, description="that it was estimated from")


class Attempt(Record):
    """Variants that are tried together, and their error rate."""

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
        """Error rate of all its variants and measurements together."""
        return self.alpha * attempt_share(self.spending, self.number)

    @property
    def history_rate(self) -> float:
        """Upper bound on the chance that any attempt so far has passed falsely."""
        return bound_over_attempts(self.alpha, self.spending, self.number)

    def level(self, measurement: int = 1) -> float:
        """Compute the level of one variant's gate for its n-th measurement."""
        return gate_level(
            self.alpha, self.spending, self.number, len(self.variants), measurement=measurement
        )

    @property
    def without_run(self) -> Attempt:
        """The attempt as keys contain it."""
        return self.model_copy(update={"run": ""})

    def is_same(self, other: Attempt | None) -> bool:
        """Return whether the ledger's record is of this attempt, begun by any run."""
        return other is not None and other.without_run == self.without_run

    @property
    def words(self) -> str:
        """Note on a verdict; '' for the first attempt."""
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
    """One begun log of answers or loads."""

    schema_version: int = Field(1, description="of this record")
    number: int = Field(ge=1)
    log: str = Field(description="digest that names the answer log, or seed of the load log")
    run: str = Field("", description="id of the run that began it")


@dataclass(frozen=True)
class Remeasured:
    """Gates to measure again although they are finished.

    Args:
        gates: names of suites and speed gates.
        runs: ids of the runs that request it; measurements that they began are continued.
        least: first allowed measurement number; 2 for weights that were measured elsewhere.
    """

    gates: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    least: int = 1


NOTHING = Remeasured()


class Counted(Record):
    """Attempt and measurement that a stage counts before it stores or uses results."""

    attempt: Attempt | None = Field(None, description="None of the baseline's answers")
    measurement: str = Field(description="key of the measurement")
    run: str = Field("", description="id of the run")


def variant_key(served: str, policy: Policy, family: str, asked: Mapping[str, str]) -> str:
    """Digest all that makes a variant a new one: its serving, the questions and the criteria.

    Args:
        served: key of its stage `coherence`, which covers weights, serving and machine; an
            endpoint's covers the deployment id.
        policy: with the criteria.
        family: selects the margins.
        asked: as `EvaluationPlanner.asked`; other questions are another chance.
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
        """Return the attempt with these variants, or the one that they would begin.

        A begun attempt has its own `start_spread`. Nothing is written.

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
        """Record an attempt and its measurement durably, before a stage stores or uses results.

        Args:
            counted: the attempt and the measurement.
            number: of the measurement.
            log: of the measurement.
            is_kept: whether the earlier content of that log is available.

        Raises:
            AttemptChangedError: the ledger has changed since the run was planned.
            StoreError: a record is damaged or gone, or cannot be written.
        """
        if counted.attempt is not None:
            self.begin_attempt(counted.attempt)
        wanted = Measurement(number=number, log=log, run=counted.run)
        self._begin_measurement(counted.measurement, wanted, is_kept=is_kept)

    def begin_attempt(self, attempt: Attempt) -> None:
        """Count the attempt, unless it is counted already; raises errors as `begin`."""
        known = _find(attempt.variants, self.attempts(attempt.scope))
        if known is not None and known.number == attempt.number:
            return
        where = self._root / "attempts" / attempt.scope.key
        with raise_as(StoreError, "the attempt cannot be counted", where):
            # If two runs begin at the same time, one gets the number.
            if known is None and _create(self._attempts, attempt.scope.key, attempt):
                return
        raise AttemptChangedError(
            f"another run began attempt {attempt.number} against this baseline",
            where=str(where),
            hint="run the same command again: what is stored is used",
        )

    def find(self, scope: AttemptScope, number: int) -> Attempt | None:
        """Return that attempt, if any; raises StoreError if its record is damaged."""
        return self._read(self._attempts, "attempts", Attempt, scope.key, number)

    def attempts(self, scope: AttemptScope) -> list[Attempt]:
        """List all attempts of a scope, in order; raises StoreError as `foresee`."""
        return list(self._list(scope.key))

    def all(self) -> Iterator[Attempt]:
        """Yield all attempts of all scopes; raises StoreError as `foresee`."""
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
        """Return that measurement, if begun; raises StoreError if its record is damaged."""
        return self._read(self._measurements, "measurements", Measurement, key, number)

    def latest(self, key: str) -> int:
        """Return the number of the last begun measurement; 0 if there is none."""
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
        """Return the number of a gate's measurement to continue or begin.

        Args:
            candidates: keys of the candidates' measurements.
            is_lost: whether a log of that number was begun and is gone, for either side.
            is_over: whether the measurement of that number is finished.
            gate: its name.
            remeasured: gates to measure again.
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
        self, records: FileKeyValueStore, folder: str, record: type[_Kind], key: str, number: int
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


def _create(records: FileKeyValueStore, key: str, record: Attempt | Measurement) -> bool:
    content = record.model_dump_json(indent=1).encode()
    return records.put_if_absent(f"{key}/{_name(record.number)}", content)


def _find(variants: Mapping[str, str], earlier: Iterable[Attempt]) -> Attempt | None:
    return next((each for each in earlier if variants.items() <= each.variants.items()), None)


def _name(number: int) -> str:
    return f"{number:06d}.json"
