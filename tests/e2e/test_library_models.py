"""The locked libraries have the models whose own code is not asked for."""

from __future__ import annotations

import json
import subprocess

import pytest

from pipeline.checkpoint.library_models import LIBRARY_MODELS
from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings

CODE = """
import json
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as models
print(json.dumps([[name, found] for name, found in models.items() if isinstance(found, str)]))
"""


@pytest.mark.parametrize("name", ["quantize", "serve"])
def test_each_model_is_in_the_library(name: str) -> None:
    python = ensure(name, Accelerator.CPU, load_settings(), NullProgress()).python
    said = subprocess.run([python, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert {tuple(pair) for pair in json.loads(said.splitlines()[-1])} >= LIBRARY_MODELS
