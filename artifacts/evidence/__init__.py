"""The evidence of a verdict: bundled, checked, and judged again."""
