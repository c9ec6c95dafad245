"""Registered versions: copies, serving, export, and comparison with the verdict."""
