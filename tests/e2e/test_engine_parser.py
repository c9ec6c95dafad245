"""vLLM's own parser, without a server: whole names and their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.argument_check import check_engine_arguments
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import UsageError
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def check(folder: Path, arguments: ServingArguments) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    check_engine_arguments([("serve", arguments)], lambda name: python, folder)


def test_the_profiles_arguments_are_accepted(tmp_path: Path, cpu_profile: ServingProfile) -> None:
    check(tmp_path, ServingArguments.of(cpu_profile, is_baseline=False))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"max-num-seq": 4}, {"dtype": "bfloat17"}, {"no-such-option": True}, {"max-model-len": "x"}],
    ids=str,
)
def test_slips_are_refused(tmp_path: Path, arguments: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        check(tmp_path, ServingArguments(arguments, {}))
    assert list(tmp_path.iterdir()) == []
