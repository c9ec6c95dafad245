"""From options to choices, and which are refused before any work is done."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked_run import refused, request_for, write_policy

from artifacts.run_record import ResolvedOptions
from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from prepare.errors import CheckpointError
from recipes.catalog import load_profile

pytestmark = pytest.mark.usefixtures("programs")


class TestDefaults:
    def test_of_the_demo(self, settings: Settings) -> None:
        choices = choose(request_for("demo:smollm2-135m"), settings)
        assert (choices.policy.name, choices.name) == ("demo", "smollm2-135m")

    def test_what_is_given_wins(self, settings: Settings, tmp_path: Path) -> None:
        request = request_for(
            "demo:smollm2-135m",
            recipes=("fp8-dynamic",),
            profile="h200",
            policy="default",
            name="mine",
            registry="http://registry.example",
            eval_data=tmp_path / "programs" / ".." / "data",
        )
        choices = choose(request, settings)
        assert choices.asked == replace(request, eval_data=tmp_path / "data")
        assert choices.resolved() == ResolvedOptions(
            checkpoint="demo:smollm2-135m",
            recipes=("fp8-dynamic",),
            profile="h200",
            kv_cache_note=load_profile("h200").kv_cache_note,
            policy="default",
            name="mine",
        )

    def test_a_recipe_named_twice_is_made_once(self, settings: Settings) -> None:
        request = request_for(recipes=("awq-w4a16", "fp8-dynamic", "awq-w4a16"))
        names = [recipe.name for recipe in choose(request, settings).recipes]
        assert names == ["awq-w4a16", "fp8-dynamic"]

    def test_gates_are_measured_again_by_their_names(self, settings: Settings) -> None:
        for name, gate in (("quiz", "quiz"), ("speed.ratio.short", "ratio.short")):
            request = request_for("demo:smollm2-135m", remeasure=(name,))
            assert choose(request, settings).remeasured == (gate,)

    def test_the_record_keeps_what_was_asked_for(self, settings: Settings, tmp_path: Path) -> None:
        policy = write_policy(tmp_path, {"margins": {"fp8": 0.01, "int4": 0.02}})
        choices = choose(request_for(recipes=("awq-w4a16",), policy=policy), settings)
        asked = choices.asked
        assert (asked.recipes, asked.profile, asked.policy) == (("awq-w4a16",), "cpu", policy)
        assert choices.resolved().policy == "mine"

    @pytest.mark.parametrize("policy", [None, "no-such-policy"])
    def test_a_folder_that_is_not_there_is_told_first(
        self, settings: Settings, tmp_path: Path, policy: str | None
    ) -> None:
        with pytest.raises(CheckpointError) as caught:
            choose(request_for(str(tmp_path / "none"), policy=policy), settings)
        assert caught.value.message == "the folder does not exist"
        assert caught.value.where == str(tmp_path / "none")


class TestUsage:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"recipes": ("fp8-dynamik",)}, "did you mean 'fp8-dynamic'"),
            ({"policy": "defualt"}, "did you mean 'default'"),
            ({"profile": "h10"}, "did you mean 'h100'"),
            ({"remeasure": ("mmul",)}, "it has mmlu"),
        ],
    )
    def test_a_slip(self, settings: Settings, options: dict[str, Any], words: str) -> None:
        assert words in refused(request_for(**options), settings).hint

    def test_the_baseline_cannot_be_promoted(self, settings: Settings) -> None:
        error = refused(request_for(recipes=("baseline",)), settings)
        assert "changes nothing" in error.message
        assert {"awq-w4a16", "fp8-dynamic"} <= set(re.findall(r"[a-z0-9-]+", error.hint))

    def test_no_margin_for_the_recipes_family(self, settings: Settings, tmp_path: Path) -> None:
        policy = write_policy(tmp_path, {"margins": {"fp8": 0.01}})
        error = refused(request_for(policy=policy), settings)
        assert "no margin for int4" in error.message
        assert error.where == "policy key suites.mmlu.margins"
        assert choose(request_for(policy=policy, recipes=("fp8-dynamic",)), settings)
        assert choose(request_for(policy=policy), settings, default_recipes=()).recipes == ()

    def test_two_recipes_of_one_name(self, settings: Settings, tmp_path: Path) -> None:
        import recipes

        text = (Path(recipes.__file__).parent / "fp8-dynamic.yaml").read_text()
        copy = tmp_path / "copy.yaml"
        copy.write_text(text.replace("[lm_head]", "[]"))
        error = refused(request_for(recipes=("fp8-dynamic", str(copy))), settings)
        assert "two of the variants are called 'fp8-dynamic'" in error.message

    @pytest.mark.parametrize("name", ["org/model", "model:1", "model@1", " "])
    def test_a_name_that_the_registry_refuses(self, settings: Settings, name: str) -> None:
        assert refused(request_for(name=name), settings).where == "--name"


def test_ablating_is_screening(settings: Settings) -> None:
    """Nothing is gated, so no power is needed."""
    demo = "demo:smollm2-135m"
    ablated = choose(request_for(demo, ablate=True), settings)
    assert ablated.asked.is_screening
    assert ablated.policy == choose(request_for(demo, screen=True), settings).policy
    assert ablated.policy != choose(request_for(demo), settings).policy
