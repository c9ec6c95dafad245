"""Managed Python environments, and the settings of this machine."""
