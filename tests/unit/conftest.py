"""Lies here so that pytest puts this folder on the path: tests below import its stand-ins."""
