"""Stages that publish a judged variant: its evidence, and its version in a registry."""
