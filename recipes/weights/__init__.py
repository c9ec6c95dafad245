"""Verification of a variant's weights: complete, in range, and close to the source."""
