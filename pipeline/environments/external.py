"""A site's interpreter in place of a managed environment."""

from __future__ import annotations

import hashlib
import json

from pipeline.core.errors import EnvironmentBuildError
from pipeline.environments.definition import EnvironmentDefinition, normalize
from pipeline.environments.health import torch_fault
from pipeline.environments.interpreter import describe, missing_modules
from pipeline.environments.settings import EnvironmentOverride


def external_identity(override: EnvironmentOverride) -> tuple[str, dict[str, str]]:
    """Return the digest of path, version and packages, and versions by package name."""
    try:
        version, found = describe(override.python)
    except EnvironmentBuildError as error:
        error.hint = "correct `environments` in the settings file"
        raise
    versions = {normalize(name): version for name, version in found.items()}
    described = [str(override.python), version, sorted(versions.items())]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest(), versions


def require_modules(definition: EnvironmentDefinition, override: EnvironmentOverride) -> None:
    """Check that the interpreter has the modules that the environment's work imports."""
    missing = missing_modules(override.python, definition.modules)
    if not missing and (fault := torch_fault(definition, override.python)):
        raise EnvironmentBuildError(
            f"the interpreter named for '{definition.name}' is not for CUDA: {fault}",
            where=str(override.python),
            hint="install a CUDA build of torch there, or remove it from `environments` in the "
            "settings file",
        )
    if missing:
        raise EnvironmentBuildError(
            f"the interpreter named for '{definition.name}' lacks: {', '.join(missing)}",
            where=str(override.python),
            hint="install them there, or remove it from `environments` in the settings file",
        )
