"""Runs: plans carried out, or judged again."""
