"""The plan of what was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from asked_run import Checkpoints
from listener import Listener

from pipeline.core.errors import UsageError
from pipeline.environments.settings import Settings
from pipeline.plan.checkpoint_resolver import Located
from pipeline.plan.model_plan import make_plan
from pipeline.plan.screening import screening_stages
from pipeline.plan.survey import survey
from pipeline.stages.evaluate import EVALUATE

pytestmark = pytest.mark.usefixtures("programs")


class TestPlan:
    def test_a_screening_needs_no_conversations_to_decide_by(
        self, checkpoints: Checkpoints, settings: Settings, tmp_path: Path
    ) -> None:
        file = tmp_path / "few.yaml"
        suite = "{kind: fidelity, questions: 3, margins: {fp8: 0.01}}"
        file.write_text(f"name: few\nsummary: s\nsuites:\n  logs: {suite}\n")
        checkpoints.write()
        asked = {"policy": str(file), "recipes": ("fp8-dynamic",)}
        faults = survey(checkpoints.choices(**asked), settings, Listener()).faults
        assert any(isinstance(each, UsageError) and "logs" in each.message for each in faults)
        choices = checkpoints.choices(**asked, screen=True)
        found = survey(choices, settings, Listener())
        assert not any("logs" in each.message for each in found.faults)
        located = Located(checkpoints.located(choices))
        plan = make_plan(choices, located, settings, found.sources)
        stages = screening_stages(plan, plan.variants[0])
        assert list(stages) == ["quantize", "check_weights", "screen", "logs"]
        assert EVALUATE.parameters_of(stages["logs"]).rule is None
