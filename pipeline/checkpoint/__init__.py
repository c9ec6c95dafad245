"""A checkpoint: named, fetched, read and found whole."""
