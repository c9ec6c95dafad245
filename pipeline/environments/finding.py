"""One thing that `prepare env doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what was looked at.
        severity: `problem` where something will fail, `warning` where it may.
        message: what was found.
        cure: what to do about it; empty where all is well.
    """

    subject: str
    severity: Severity
    message: str
    cure: str = ""
