"""Refusals before a run: what options, files and this machine show."""
