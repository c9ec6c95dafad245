"""Model registries for promotions; one file per backend."""
