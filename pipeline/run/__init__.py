"""Runs: a plan carried out up to its verdicts, or judged again, with its record on disk."""
