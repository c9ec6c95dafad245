"""The kinds of quantization that this project carries, one in each module."""
