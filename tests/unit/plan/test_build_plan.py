"""The plan of what was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from asked_run import Checkpoints
from listener import Listener

from eval_gates.depth import EVERY_VALUE
from pipeline.environments.settings import Settings
from pipeline.plan.locator import Located
from pipeline.plan.model_plan import make_plan
from pipeline.plan.screening_plan import screening_stages
from pipeline.preflight.survey import survey
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.quantize import QUANTIZE
from prepare.errors import UsageError

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
        assert list(stages) == ["weights", "checked_weights", "first_texts", "logs"]
        assert EVALUATE.parameters_of(stages["logs"]).rule is None

    def test_a_policy_without_attempts_left_is_refused_before_the_run(
        self, checkpoints: Checkpoints, settings: Settings, tmp_path: Path
    ) -> None:
        file = tmp_path / "once.yaml"
        suite = "{kind: mmlu, sources: [builtin], margins: {fp8: 0.3}}"
        head = "name: once\nsummary: s\nattempts: 1\n"
        file.write_text(f"{head}suites:\n  quiz: {suite}\n")
        checkpoints.write()
        choices = checkpoints.choices(policy=str(file), recipes=("fp8-dynamic",))
        sources = survey(choices, settings, Listener()).sources
        located = Located(checkpoints.located(choices))
        trial = make_plan(choices, located, settings, sources, "run").trial
        other = trial.model_copy(update={"variants": {"another": "1"}})
        AttemptLedger(settings.open_store()).begin(Counted(trial=other, run="r", gate="quiz"))
        make_plan(choices, located, settings, sources)  # `prepare plan` looks ahead
        with pytest.raises(UsageError, match="allows 1 attempts"):
            make_plan(choices, located, settings, sources, "run")

    @pytest.mark.parametrize(("key", "least"), [("", 0), (", at_depth: 4096", EVERY_VALUE)])
    def test_a_gate_beyond_a_depth_has_every_question_asked(
        self,
        checkpoints: Checkpoints,
        settings: Settings,
        tmp_path: Path,
        key: str,
        least: int,
    ) -> None:
        file = tmp_path / "deep.yaml"
        suite = f"{{kind: fidelity, sources: [builtin], margins: {{fp8: 0.3}}{key}}}"
        file.write_text(f"name: deep\nsummary: s\nsuites:\n  logs: {suite}\n")
        checkpoints.write()
        choices = checkpoints.choices(policy=str(file), recipes=("fp8-dynamic",))
        sources = survey(choices, settings, Listener()).sources
        located = Located(checkpoints.located(choices))
        plan = make_plan(choices, located, settings, sources, "run")
        asked = EVALUATE.parameters_of(plan.variants[0].stages["logs"])
        assert asked.min_values == least
        assert asked.rule is not None


def quiz(folder: Path) -> str:
    file = folder / "quiz.yaml"
    suite = "{kind: mmlu, sources: [builtin], margins: {fp8: 0.3}}"
    file.write_text(f"name: quiz\nsummary: s\nsuites:\n  quiz: {suite}\n")
    return str(file)


class TestPairsOfWeightsAndKvCache:
    def test_they_share_weights_and_differ_in_all_that_is_served(
        self, checkpoints: Checkpoints, settings: Settings, tmp_path: Path
    ) -> None:
        checkpoints.write()
        asked = {"recipes": ("fp8-dynamic",), "policy": quiz(tmp_path)}
        choices = checkpoints.choices(**asked, kv=("fp8,auto", "fp8-e5m2"))
        names = [f"fp8-dynamic.kv-{name}" for name in ("fp8", "auto", "fp8-e5m2")]
        assert [recipe.name for recipe in choices.recipes] == names
        found = survey(choices, settings, Listener())
        located = Located(checkpoints.located(choices))
        plan = make_plan(choices, located, settings, found.sources)
        formats = [arm.identity.serving.engine_arguments["kv-cache-dtype"] for arm in plan.arms]
        assert formats == ["auto", "fp8", "auto", "fp8_e5m2"]
        for role, keys in (("weights", 1), ("checked_weights", 1), ("first_texts", 3)):
            assert len({arm.stages[role].key for arm in plan.variants}) == keys, role
        assert set(plan.trial.variants) == set(names)  # each is a trial, and shares alpha
        first, *_ = plan.variants
        assert first.profile is not None
        assert first.profile.kv_cache_dtype == "fp8"
        written = QUANTIZE.runtime_of(first.stages["weights"]).recipe
        assert written["name"] == "fp8-dynamic"

    def test_a_format_that_this_cpu_lacks_is_refused_by_name(
        self, checkpoints: Checkpoints, settings: Settings, tmp_path: Path
    ) -> None:
        checkpoints.write()
        asked = {"recipes": ("fp8-dynamic",), "policy": quiz(tmp_path)}
        choices = checkpoints.choices(**asked, kv=("int4_per_token_head",))
        faults = survey(choices, settings, Listener()).faults
        assert ["--kv int4_per_token_head" in fault.where for fault in faults] == [True]
        assert "fp8_e5m2" in faults[0].message  # what there is
        served = ("small=--kv-cache-dtype fp8_ds_mla", "same=--max-num-seqs 2")
        choices = checkpoints.choices(**asked, served_variants=served)
        faults = survey(choices, settings, Listener()).faults
        assert [fault.where for fault in faults] == ["--served-variant small"]

    @pytest.mark.parametrize("kv", ["", "fp8,,auto", "--x", "a" * 50])
    def test_what_is_no_format(self, checkpoints: Checkpoints, settings: Settings, kv: str) -> None:
        checkpoints.write()
        with pytest.raises(UsageError) as caught:
            checkpoints.choices(recipes=("fp8-dynamic",), kv=(kv,))
        assert caught.value.where == "--kv"

    def test_a_served_variant_with_a_format_of_its_own(
        self, checkpoints: Checkpoints, settings: Settings
    ) -> None:
        checkpoints.write()
        served = "online=--quantization fp8 --kv-cache-dtype fp8"
        with pytest.raises(UsageError) as caught:
            checkpoints.choices(served_variants=(served,), kv=("auto",))
        assert caught.value.where == "--kv"
        served = "online=--quantization fp8"
        choices = checkpoints.choices(served_variants=(served,), kv=("auto", "fp8"))
        assert [variant.recipe.name for variant in choices.adopted] == [
            "online.kv-auto",
            "online.kv-fp8",
        ]
