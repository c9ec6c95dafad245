"""What a recheck answers: is the variant what it was, and does it keep up with its source?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from eval_gates.gate_result import Verdict
from prepare.record import Record

Cell = Literal["neither", "engine", "quantization", "both", "undecided"]
CELL_WORDS: dict[Cell, str] = {
    "neither": "it is what was promoted",
    "engine": "the engine: it is worse than it was, and keeps up with its source here",
    "quantization": "quantization: it is what was promoted, and worse than its source here",
    "both": "both: it is worse than it was, and worse than its source here; the engine harms what "
    "is quantized more",
    "undecided": "undecided: the questions that were asked do not name a cause",
}


class RecheckAnswer(Record):
    """The answer to one question of a recheck."""

    run: str = Field(description="id of the run that has the evidence")
    judge: str = Field(description="key of its verdict; '' of a model that is broken")
    verdict: Verdict
    reason: str = Field(description="why, in words")

    @property
    def is_broken(self) -> bool:
        """Whether the model was found broken before it was asked anything."""
        return self.verdict == "fail" and not self.judge


class RecheckReport(Record):
    """A recheck's answers so far.

    None: not asked. The first is not asked where nothing of the tuple changed.
    """

    engine: RecheckAnswer | None = Field(
        None, description="of the variant here, against its own recorded answers"
    )
    source: RecheckAnswer | None = Field(
        None, description="of the variant against its source, both here"
    )
    cell: Cell = Field("undecided", description="what changed the model")

    @classmethod
    def of(cls, engine: RecheckAnswer | None, source: RecheckAnswer | None) -> RecheckReport:
        """Return the report of these answers."""
        verdicts = [None if asked is None else asked.verdict for asked in (engine, source)]
        return cls(engine=engine, source=source, cell=cell_of(*verdicts))

    @property
    def verdict(self) -> Verdict:
        """The worst of the answers."""
        verdicts = [asked.verdict for asked in (self.engine, self.source) if asked is not None]
        return next((one for one in ("fail", "undecided") if one in verdicts), "pass")

    @property
    def words(self) -> str:
        return CELL_WORDS[self.cell]


def cell_of(engine: Verdict | None, source: Verdict | None) -> Cell:
    """Return what the verdicts of a recheck's questions say; None: not asked."""
    if "undecided" in (engine, source) or (engine == "fail" and source is None):
        return "undecided"
    if engine == "fail":
        return "both" if source == "fail" else "engine"
    return "quantization" if source == "fail" else "neither"
