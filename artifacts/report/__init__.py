"""The HTML report of a run: one file, no network, verdict first."""
