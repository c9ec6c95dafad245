"""Fixtures of the tests of what is asked of a run."""

from __future__ import annotations

from asked_run import checkpoints, programs, settings

__all__ = ["checkpoints", "programs", "settings"]
