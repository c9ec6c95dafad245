"""The gates: suites that ask, statistics that weigh, and verdicts with reasons."""
