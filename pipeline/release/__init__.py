"""Registered versions: promotion, lookup, copies, serving, and comparison with the verdict."""
