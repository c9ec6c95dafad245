"""Registered versions: promoted, found, copied, served, and held against what was judged."""
