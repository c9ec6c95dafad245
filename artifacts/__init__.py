"""Outputs of the pipeline: registry entries and reports."""
