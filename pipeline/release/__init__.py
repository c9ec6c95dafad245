"""Registered versions: promoted, found, copied, served, and compared with what was judged."""
