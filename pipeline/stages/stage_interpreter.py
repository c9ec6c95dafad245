"""A stage's interpreter on its node."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.stage_record import StageSpec
from pipeline.environments.definition import Accelerator
from pipeline.environments.environment import check_planned_environment, ensure
from pipeline.environments.settings import load_settings


def with_interpreter(spec: StageSpec, progress: Progress) -> StageSpec:
    """Return the stage with an interpreter of this node; build its environment if necessary.

    Raises:
        EnvironmentBuildError: it cannot be built here, or differs from the one of the stage's key.
    """
    name = spec.runtime.get("environment")
    if not name or Path(spec.runtime.get("python") or "").is_file():
        return spec
    accelerator = Accelerator(spec.runtime["accelerator"])
    settings = load_settings()
    check_planned_environment(name, accelerator, settings, spec.parameters.get("environment", ""))
    python = ensure(name, accelerator, settings, progress).python
    return spec.model_copy(update={"runtime": {**spec.runtime, "python": str(python)}})
