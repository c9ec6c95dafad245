"""Servers of a model: ours, and those of somebody else."""
