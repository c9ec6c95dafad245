"""Findings about a serving command that somebody else wrote."""
