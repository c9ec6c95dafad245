"""Managed Python environments, and the settings of this machine.

An unusable environment or interpreter raises EnvironmentBuildError; an unknown name or setting
raises UsageError.
"""
