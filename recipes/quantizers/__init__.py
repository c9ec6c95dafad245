"""Built-in quantization kinds, one per module."""
