"""The profile that a run takes: by the GPU there is, by name, and with speculative decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from asked_run import install_driver, refused, request_for, speculative_profile

from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from recipes.catalog import profile_names

pytestmark = pytest.mark.usefixtures("programs")


class TestProfile:
    def test_auto_without_a_gpu(self, settings: Settings) -> None:
        assert choose(request_for(), settings).profile.name == "cpu"

    @pytest.mark.parametrize(
        ("gpu", "profile"),
        [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 NVL", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA H20", "h20"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA B200", "b200"),
        ],
    )
    def test_auto_by_the_gpus_name(
        self, settings: Settings, programs: Path, gpu: str, profile: str
    ) -> None:
        install_driver(programs, gpu, "9.0")
        assert choose(request_for(), settings).profile.name == profile

    def test_auto_on_an_unknown_gpu(self, settings: Settings, programs: Path) -> None:
        install_driver(programs, "NVIDIA T4", "7.5")
        error = refused(request_for(), settings)
        assert "'NVIDIA T4'" in error.message
        assert all(name in error.hint for name in profile_names())


class TestSpeculative:
    """A profile with speculative decoding is seen through before anything is fetched."""

    def test_what_accepts_by_chance_is_not_promoted(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        rule = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
        asked = request_for(profile=speculative_profile(tmp_path, **rule))
        error = refused(asked, settings)
        assert "mine.yaml" in error.where
        assert "speculative.rejection_sample_method" in error.where
        choices = choose(replace(asked, promote=False), settings)
        assert "lossy" in choices.resolved().speculation

    def test_log_probabilities_of_prompts_are_untried_with_it(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        policy = tmp_path / "traffic.yaml"
        policy.write_text(
            "name: traffic\nsummary: own logs\nsuites:\n  logs:\n    kind: fidelity\n"
            "    margins: {fp8: 0.1, int4: 0.2}\n"
        )
        asked = request_for(profile=speculative_profile(tmp_path), policy=str(policy))
        error = refused(asked, settings)
        assert "untried with speculative decoding" in error.message
        assert "suites.logs" in error.where
        assert choose(replace(asked, profile="cpu"), settings).policy.broken == 1.0
