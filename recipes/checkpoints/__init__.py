"""Checkpoints: references, downloads, reading and completeness checks.

A missing, damaged or unsupported checkpoint raises CheckpointError; HubError is its subclass.
"""
