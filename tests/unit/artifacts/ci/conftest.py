"""Lies here so that pytest puts this folder on the path: the tests share their runs."""
