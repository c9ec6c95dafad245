"""Verification of a variant's weights: complete, in range, and close to the source.

A defect raises VerificationError with the file, tensor or layer. A missing, truncated or damaged
file raises CheckpointError.
"""
