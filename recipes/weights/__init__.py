"""Verification of a variant's weights."""
