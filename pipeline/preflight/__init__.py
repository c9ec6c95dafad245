"""Checks that predict, before a run begins, whether it would fail."""
