"""Checks that predict whether a run would fail."""
