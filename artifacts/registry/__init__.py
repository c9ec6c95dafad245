"""Model registries that a promotion is written to; one file a backend."""
