"""Registered versions: lookup, copies, serving, export, and comparison with the verdict."""
