"""Run plans: stages with their keys."""
