"""Capabilities that are found by their entry points alone."""
