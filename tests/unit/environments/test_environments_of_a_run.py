"""Which environments a run's recipes require."""

from __future__ import annotations

import pytest

from pipeline.core.errors import UsageError
from pipeline.environments.definition import RUN_ENVIRONMENTS, EnvironmentName, environments_for
from recipes import catalog


def test_autoawqs_environment_is_required_by_its_recipe_alone() -> None:
    ours = catalog.load_recipe("awq-w4a16").quantization.environment
    theirs = catalog.load_recipe("autoawq-w4a16").quantization.environment
    assert environments_for([ours]) == RUN_ENVIRONMENTS
    assert environments_for([]) == RUN_ENVIRONMENTS
    assert environments_for([ours, theirs]) == (
        EnvironmentName.QUANTIZE,
        EnvironmentName.QUANTIZE_AUTOAWQ,
        EnvironmentName.SERVE,
        EnvironmentName.EVALUATE,
    )


def test_one_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="quantize-elsewhere"):
        environments_for(["quantize-elsewhere"])
