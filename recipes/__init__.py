"""Recipes, profiles, policies and engines."""
