"""Quality and performance gates: suites, statistics and verdicts."""
