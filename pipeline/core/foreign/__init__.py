"""Readers of what others wrote, each within limits: files, JSON, YAML, lines, HTTP, text."""
