"""Data-free FP8 as a stream from disk to disk: read, cast, write; no model is built."""
