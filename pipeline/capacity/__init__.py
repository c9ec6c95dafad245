"""Whether variants of a checkpoint fit on GPUs, and what they hold there; arithmetic only."""
