"""Evaluation suites, one module each."""
