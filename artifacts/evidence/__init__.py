"""The evidence of a verdict: collected in a bundle, checked, and judged again."""
