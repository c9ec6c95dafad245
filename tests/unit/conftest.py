"""Lies here so that pytest puts this folder on the path: tests below import its stand-ins."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests themselves run in CI, no test writes into that job's summary and outputs."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
