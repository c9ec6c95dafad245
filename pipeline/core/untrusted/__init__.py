"""Bounded readers of untrusted files, JSON, YAML and text.

A file that is not regular, too large or unreadable raises an OSError (`file.py`). Damaged,
ambiguous or oversized content raises the reader's own ValueError, which includes the location.
"""
