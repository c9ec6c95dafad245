"""`prepare recheck`: is the variant still what was promoted?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import NAME, FakeRun, judged_run
from listener import Listener
from pretend_recheck import (
    BOTH,
    QUESTIONS,
    RECIPE,
    Machine,
    as_before,
    differences,
    loses,
    policy_of,
    statuses,
)
from pretend_stages import PretendModels
from some_node import NODE

from artifacts.requests import RecheckRequest
from pipeline.environments.settings import load_settings
from pipeline.run.recheck import run_recheck
from prepare.errors import (
    CheckpointError,
    ExitCode,
    PrepareError,
    RegistryError,
    UsageError,
)
from prepare.store import Store
from recipes.policy import EngineRule, Margin


class TestNothingChanged:
    def test_the_verdict_stands_and_nothing_is_run(self, site: Machine) -> None:
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code, outcome.changed) == (True, 0, ())
        assert outcome.runs == ()
        assert site.models.served == []
        assert not (site.store.root / "runs").exists()

    def test_force_asks_the_variant_again(self, site: Machine) -> None:
        outcome = site.recheck(force=True)
        assert (outcome.stands, outcome.exit_code) == (True, 0)
        assert set(site.models.served) == {RECIPE}
        site.recheck(force=True)
        asked = [r.parameters for r in site.store.records("evaluate") if r.variant == RECIPE]
        assert {each["measurement_number"] for each in asked} == {2, 3}
        # One variant is asked one question: it has the whole level.
        assert {each["rule"]["alpha"] for each in asked if each["rule"]} == {0.05}

    def test_force_does_not_take_answers_of_the_record(
        self, site: Machine, promoted: FakeRun, tmp_path: Path
    ) -> None:
        """In the store that has them, under the keys of the same tuple."""
        site.store = promoted.copy_to(tmp_path / "theirs").store
        site.models.score = loses(*BOTH)
        outcome = site.recheck(force=True)
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert outcome.to_dict()["cell"] == "engine"

    def test_one_gate_is_measured_again_on_request(self, site: Machine) -> None:
        with pytest.raises(UsageError) as caught:
            site.recheck(remeasure=("none",))
        assert caught.value.where == "--remeasure"
        for number in (2, 3):
            site.recheck(remeasure=("code",))
            asked = [r.parameters for r in site.store.records("evaluate") if r.variant == RECIPE]
            assert max(each["measurement_number"] for each in asked) == number

    def test_other_kernels_are_named_once_a_server_ran(self, tmp_path: Path) -> None:
        made = judged_run(
            tmp_path / "k" / "store",
            lost={RECIPE: 0},
            hardware=NODE.hardware("cpu").model_dump(),
            kernels={"attention": "FLASH_ATTN"},
        )
        made.promote(variant=RECIPE)
        models = PretendModels(as_before, questions=96)
        site = Machine(Store(tmp_path / "here"), made.registry, models)
        assert site.recheck().changed == ()
        site.models.kernels = {"attention": "FLASHINFER"}
        outcome = site.recheck(force=True)
        words = "kernels, attention: judged FLASH_ATTN, here FLASHINFER"
        assert [str(change) for change in outcome.changed] == [words]
        (record,) = site.rechecks()
        assert record.changed == (words,)
        assert record.members.kernels == {"attention": "FLASHINFER"}


class TestWhatIsPromotedIsStillThere:
    def test_one_server_answers(self, site: Machine) -> None:
        site.upgrade()
        outcome = site.recheck()
        assert [str(change) for change in outcome.changed] == [
            "engine version: judged 0.33.0, here 0.34.0",
            f"environment 'serve': judged {'1' * 12}, here {site.identities['serve'][:12]}",
        ]
        (run,) = outcome.runs
        assert set(site.models.served) == {RECIPE}
        assert {variant for variant, _, _ in site.models.asked} == {RECIPE}
        assert (outcome.stands, outcome.exit_code) == (True, 0)
        assert outcome.to_dict()["cell"] == "neither"
        assert differences(site, run) == ()
        status = statuses(run)
        assert status["adopt", RECIPE] == status["judge", RECIPE] == "ran"
        assert not [name for name, _ in status if name == "quantize"]

    def test_its_source_may_be_gone(
        self, site: Machine, promoted: FakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = promoted.checkpoint.path
        aside = source.with_name("aside")
        source.rename(aside)
        try:
            site.upgrade()
            assert site.recheck().exit_code == 0
        finally:
            aside.rename(source)

    def test_it_is_compared_by_half_of_the_margin(self, site: Machine) -> None:
        site.upgrade()
        (gate,) = site.recheck().runs[0].variants[0].quality
        assert gate.allowed == -0.05

    def test_two_starts_give_the_noise_floor(self, site: Machine) -> None:
        def noisy(variant: str, suite: str, number: int) -> float:
            return float((number + (suite == "code again" and number % 100 == 0)) % 2)

        site.models.score = noisy
        site.upgrade()
        outcome = site.recheck()
        (gate,) = outcome.runs[0].variants[0].quality
        assert gate.noise_floor is not None
        assert gate.noise_floor.side == "candidate"
        assert gate.noise_floor.n == 16
        assert site.models.served == [RECIPE, RECIPE]
        assert "two starts" in gate.floor
        assert differences(site, outcome.runs[0]) == ()

    def test_a_loss_within_the_whole_margin_and_beyond_half_of_it(self, site: Machine) -> None:
        """As the source's margin allows, and another engine's does not."""

        def lost(variant: str, suite: str, number: int) -> float:
            return float(number % 2 and not (variant == RECIPE and number % 13 < 2))

        site.models.score = lost
        site.upgrade()
        outcome = site.recheck()
        assert outcome.runs[0].variants[0].verdict != "pass"
        assert outcome.exit_code in (ExitCode.GATES_FAILED, ExitCode.UNDECIDED)

    def test_the_policy_names_the_margin(self, tmp_path: Path) -> None:
        models = PretendModels(as_before, questions=QUESTIONS)
        made = FakeRun(tmp_path / "store", models, recipes=(RECIPE,), policy=policy_of())
        rule = EngineRule(margins={"code": {"fp8": Margin(points=0.08)}})
        made.policy = made.policy.model_copy(update={"engine": rule})
        made.run()
        made.promote(variant=RECIPE)
        site = Machine(Store(tmp_path / "here"), made.registry, models)
        site.upgrade()
        outcome = site.recheck()
        (gate,) = outcome.runs[0].variants[0].quality
        assert gate.allowed == -0.08
        assert differences(site, outcome.runs[0]) == ()

    def test_few_recorded_answers_are_compared_by_the_whole_margin(self, tmp_path: Path) -> None:
        made = judged_run(
            tmp_path / "store", lost={RECIPE: 0}, hardware=NODE.hardware("cpu").model_dump()
        )
        made.promote(variant=RECIPE)
        models = PretendModels(as_before, questions=96)
        site = Machine(Store(tmp_path / "here"), made.registry, models)
        site.upgrade()
        outcome = site.recheck()
        (gate,) = outcome.runs[0].variants[0].quality
        assert (gate.allowed, gate.verdict) == (-0.1, "pass")
        assert [note for note in site.said.notes if "too few for half of the margin" in note]
        assert differences(site, outcome.runs[0]) == ()

    def test_a_policy_that_names_what_cannot_be_decided_is_refused(self, tmp_path: Path) -> None:
        models = PretendModels(as_before, questions=96)
        made = FakeRun(tmp_path / "store", models, recipes=(RECIPE,))
        rule = EngineRule(margins={"code": {"fp8": Margin(points=0.01)}})
        made.policy = made.policy.model_copy(update={"engine": rule})
        made.run()
        made.promote(variant=RECIPE)
        site = Machine(Store(tmp_path / "here"), made.registry, models)
        site.upgrade()
        outcome = site.recheck()
        assert outcome.exit_code == ExitCode.USAGE
        assert outcome.error is not None
        assert "cannot decide its margin" in outcome.error["message"]
        assert models.served == ["baseline", RECIPE]  # when it was judged


class TestErrors:
    def refused(self, site: Machine, kind: type[PrepareError], words: str, **options: Any) -> str:
        with pytest.raises(kind, match=words) as caught:
            site.recheck(**options)
        assert site.models.served == []
        return caught.value.hint

    @pytest.mark.parametrize("tag", ["prepare.policy.digest", "prepare.hardware"])
    def test_a_tag_that_is_not_the_evidences(self, site: Machine, tag: str) -> None:
        site.registry.set_tags(NAME, "1", {tag: "0" * 64})
        self.refused(site, RegistryError, tag)

    def test_code_that_comes_with_it_and_that_nobody_here_agreed_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
        run = judged_run(tmp_path / "store", lost={RECIPE: 0}, trust_remote_code=True)
        uri = f"sqlite:///{tmp_path / 'registry.db'}"
        run.promote(uri, variant=RECIPE)
        request = RecheckRequest(reference="model@champion", registry=uri)
        with pytest.raises(CheckpointError) as caught:
            run_recheck(request, load_settings(tmp_path / "here"), Listener())
        assert caught.value.where == "model version 1"

    def test_a_gpus_verdict_without_a_gpu(self, site: Machine) -> None:
        hint = self.refused(site, UsageError, "none is found here", profile="h100")
        assert hint.endswith(": cpu")
