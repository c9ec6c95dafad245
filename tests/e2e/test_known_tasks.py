"""Whether the locked lm-eval has every task whose facts are listed."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from eval_gates.suites.lm_eval_suite import known_tasks
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator

pytestmark = pytest.mark.e2e
SCRIPT = """
import json, sys
from lm_eval.tasks import TaskManager
tasks = set(TaskManager().all_tasks)
print(json.dumps([name for name in json.loads(sys.argv[1]) if name not in tasks]))
"""


@pytest.mark.timeout(600)
def test_every_listed_task_is_one_of_lm_evals() -> None:
    evaluate = ensure("evaluate", Accelerator.CPU, load_settings(), NullProgress())
    found = subprocess.run(
        [str(evaluate.python), "-I", "-c", SCRIPT, json.dumps(sorted(known_tasks()))],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-1000:]
    assert json.loads(found.stdout.splitlines()[-1]) == []
