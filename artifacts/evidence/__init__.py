"""The evidence of a verdict."""
