"""The evidence of a verdict: gathered into a bundle, checked, and the verdict computed from it."""
