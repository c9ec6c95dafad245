"""Lies here so that pytest puts this folder on the path: tests below import its stand-ins."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A machine that others use too is slow for a moment now and then; that is no fault of ours.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests themselves run in CI, no test writes into that job's summary and outputs."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
