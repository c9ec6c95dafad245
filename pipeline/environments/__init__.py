"""Managed Python environments, and the settings of this machine.

One that cannot be built or used, and an interpreter that does not answer, is an
EnvironmentBuildError; a name or a setting that is not known, a UsageError.
"""
