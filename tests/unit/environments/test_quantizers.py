"""Which worker and which environments a recipe's kind of quantization asks for."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from pipeline.environments.definition import RUN_ENVIRONMENTS, EnvironmentName
from pipeline.environments.quantizers import environments_for, quantizer_of
from recipes import catalog


def test_autoawq_has_its_own() -> None:
    quantizer = quantizer_of("autoawq")
    assert quantizer.environment is EnvironmentName.QUANTIZE_AUTOAWQ
    assert quantizer.worker == "quantize_autoawq"


@pytest.mark.parametrize("kind", ["preset", "awq", "gptq"])
def test_the_others_have_llm_compressors(kind: str) -> None:
    assert quantizer_of(kind).environment is EnvironmentName.QUANTIZE
    assert quantizer_of(kind).worker == "quantize"


@pytest.mark.parametrize("name", catalog.recipe_names())
def test_every_recipe_has_a_worker_that_is_there(name: str) -> None:
    worker = quantizer_of(catalog.load_recipe(name).quantization.kind).worker
    assert find_spec(f"pipeline.workers.{worker}") is not None


def test_autoawqs_environment_is_asked_for_by_its_recipe_alone() -> None:
    ours = catalog.load_recipe("awq-w4a16").quantization
    theirs = catalog.load_recipe("autoawq-w4a16").quantization
    assert environments_for([ours]) == RUN_ENVIRONMENTS
    assert environments_for([]) == RUN_ENVIRONMENTS
    assert environments_for([ours, theirs]) == (
        EnvironmentName.QUANTIZE,
        EnvironmentName.QUANTIZE_AUTOAWQ,
        EnvironmentName.SERVE,
        EnvironmentName.EVALUATE,
    )
