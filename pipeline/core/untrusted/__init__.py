"""Readers of what others wrote, each within limits: files, JSON, YAML, lines, HTTP, text.

A file that is no regular one, too large or unreadable is an OSError (`file.py`). What is damaged,
ambiguous or beyond a limit in it is a ValueError of the reader's own, which names the place.
"""
