"""Runs: plans finished, or judged again."""
