"""Checkpoints: references, downloads, reading and checks.

A missing, damaged or unsupported one raises CheckpointError.
"""
