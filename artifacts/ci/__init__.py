"""Reports of a finished run for CI systems."""
