"""The walks of docs/dev/design.md, against what a traced run executes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from fake_run import equal
from pretend_stages import PretendModels
from whole_run import run_of

ROOT = Path(__file__).parents[3]
PRODUCT = ("prepare/", "pipeline/", "recipes/", "eval_gates/", "artifacts/")
# What only a real worker, server or terminal executes.
PRETENDED = {
    *("pipeline/cli/main.py", "pipeline/cli/model.py", "pipeline/cli/options.py"),
    *("pipeline/cli/ci.py", "pipeline/serving/server.py", "prepare/worker_protocol.py"),
    *("pipeline/stages/quantize.py", "pipeline/stages/check_weights.py"),
    *("pipeline/stages/sanity.py", "pipeline/stages/questions.py"),
    *("recipes/quantizers/model_free_worker.py", "recipes/weights/stored_formats.py"),
    *("recipes/weights/accounting.py", "recipes/weights/layouts.py"),
    *("recipes/weights/check_weights_worker.py", "eval_gates/questions_worker.py"),
    *("eval_gates/question_set.py", "eval_gates/ask.py"),
    *("eval_gates/replies.py", "eval_gates/model_tokenizer.py"),
}
# Where the plan is made, a stage is carried out, a server starts, and the alias moves.
MILESTONES = {
    *(("prepare/stage.py", "spec"), ("tests/unit/pretend_stages.py", "run_stage")),
    *(
        ("tests/unit/pretend_stages.py", "start_process"),
        ("artifacts/mlflow_store.py", "set_alias"),
    ),
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Return the files that a promoted run executes, and those that call its milestones."""
    executed: set[str] = set()
    callers: set[str] = set()

    noted: set[CodeType] = set()

    def name_of(frame: FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(f"{ROOT}/")

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in noted:
            return
        name = name_of(frame)
        if name.startswith(PRODUCT) and code.co_name != "<module>":
            executed.add(name)
        if (name, code.co_name) not in MILESTONES:
            noted.add(code)
        else:
            caller: FrameType | None = frame
            while caller is not None:
                callers.add(name_of(caller))
                caller = caller.f_back

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREPARE_NODE_LOCKS", str(tmp_path_factory.mktemp("node")))
        models = PretendModels(equal, questions=48)
        sys.setprofile(note)
        try:
            report = run_of(tmp_path_factory.mktemp("walk"), patch, models)
        finally:
            sys.setprofile(None)
    assert report.exit_code == 0
    return executed, {name for name in callers if name.startswith(PRODUCT)}


def files_of(section: str) -> list[str]:
    """Return the files in a section's list."""
    page = (ROOT / "docs/dev/design.md").read_text()
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    listed = [line for line in text.splitlines() if re.match(r"\d+\. |   ", line)]
    return re.findall(r"`([\w/]+\.py)`", "\n".join(listed))


@pytest.mark.parametrize("section", ["From command to alias", "One MMLU answer", "FP8 weights"])
def test_every_file_of_a_walk_is_executed(traced: tuple[set[str], set[str]], section: str) -> None:
    executed, _ = traced
    named = files_of(section)
    assert named
    assert len(named) == len(set(named))
    assert set(named) <= executed | PRETENDED


def test_the_walk_names_each_file_that_leads_to_a_milestone(
    traced: tuple[set[str], set[str]],
) -> None:
    _, callers = traced
    assert callers <= set(files_of("From command to alias"))
