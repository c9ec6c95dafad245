"""Ratios of throughput that were measured before, by GPU and recipe family."""

from __future__ import annotations

from pathlib import Path

from prepare.record import Record
from prepare.untrusted import read_record

FOLDER = Path(__file__).parent / "gpus"


class MeasuredRatios(Record):
    """Output tokens/s over BF16's, on one GPU."""

    what: str
    source: str
    ratios: dict[str, dict[str, list[float]]]
    """By family and concurrent requests: the smallest and largest mean."""

    def words(self, family: str) -> str:
        """Return one family's ratios; '' if none was measured."""
        shown = []
        for requests, (least, most) in self.ratios.get(family, {}).items():
            span = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
            shown.append(f"{span} at {requests}")
        return f"{family} {', '.join(shown)}" if shown else ""


def find_measured(profile: str) -> MeasuredRatios | None:
    """Return what was measured on a profile's GPU, or None."""
    file = FOLDER / f"{profile.partition('-')[0]}-ratios.json"
    return read_record(file, MeasuredRatios) if file.is_file() else None
