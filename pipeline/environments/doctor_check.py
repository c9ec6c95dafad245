"""Result of one check of `prepare doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Importance of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class DoctorCheck:
    """Result of one check."""

    subject: str  # subject of the check
    severity: Severity  # `problem`: something will fail; `warning`: it may
    message: str  # finding
    hint: str = ""  # remedy; empty if the check passed
