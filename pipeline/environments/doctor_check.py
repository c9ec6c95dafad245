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
class DoctorCheck:
    """One thing that was looked at."""

    subject: str  # what was looked at
    severity: Severity  # `problem` where something will fail, `warning` where it may
    message: str  # what was found
    hint: str = ""  # what to do about it; empty where all is well
