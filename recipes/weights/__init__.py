"""Verification of a variant's weights: complete, in range, and close to the source.

VerificationError is a defect; CheckpointError a missing or damaged file.
"""
