"""Findings about a serving command that another process wrote."""
