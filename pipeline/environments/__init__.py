"""Managed Python environments and machine settings."""
