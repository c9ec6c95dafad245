"""What leaves the pipeline: registry entries and reports."""
