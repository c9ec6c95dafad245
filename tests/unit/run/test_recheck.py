from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import IDENTITIES, NAME, FakeRun, judged_run
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers
from some_node import NODE
from speed_bench import bench
from typer.testing import CliRunner

from artifacts.deploy.recheck_record import RECHECK_TAG, rechecks_of, stands
from artifacts.deploy.registered import find_version, open_version
from artifacts.deploy.serve import accepted_tuples
from artifacts.evidence.verify import check_run
from artifacts.registry import Registry
from artifacts.release import PromotionRequest, promote_run
from artifacts.requests import RecheckRequest
from artifacts.run_record import RunReport, find_run
from eval_gates.suites.sources import QuestionSource, SuiteSource
from pipeline.cli.main import app
from pipeline.environments import environment
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import load_settings
from pipeline.plan import model_plan
from pipeline.run import recheck
from pipeline.run.recheck import RecheckOutcome, run_recheck
from prepare.errors import (
    CheckpointError,
    ExitCode,
    PrepareError,
    RegistryError,
    UsageError,
)
from prepare.store import Store
from recipes.catalog import RECIPES

RECIPE = "fp8-dynamic"
ENGINE = "0.33.0"  # as in fake_run.py


def as_before(variant: str, suite: str, number: int) -> float:
    return float(number % 2)


def broken_now(variant: str, suite: str, number: int) -> float:
    return 0.0 if variant == RECIPE else float(number % 2)


@dataclass
class Site:
    """A registry with one champion, and the machine that may serve it.

    Args:
        root: folder of all of it.
        judged: the run that the champion is from.
        models: what answers now.
        engine: version of the engine that is here.
        serve: identity of the serving environment that is here.
    """

    root: Path
    judged: FakeRun
    models: PretendModels
    engine: str = ENGINE
    serve: str = "1" * 64
    said: Listener = field(default_factory=Listener)

    @cached_property
    def registry(self) -> Registry:
        return Registry(f"sqlite:///{self.root / 'registry.db'}")

    @property
    def store(self) -> Store:
        return Store(self.root / "here")

    def accepted(self, store: Store | None = None) -> list[str]:
        version = find_version(self.registry, "model@champion")
        past = open_version(version, Path(version.source), trust_remote_code=False)
        return [each.serve_environment for each in accepted_tuples(past, store or self.store)]

    def recheck(self, reference: str = "model@champion", **options: Any) -> RecheckOutcome:
        request = RecheckRequest(reference=reference, registry=self.registry.uri, **options)
        return run_recheck(request, load_settings(self.store.root), self.said)

    def statuses(self, outcome: RecheckOutcome) -> dict[tuple[str, str], str]:
        assert outcome.report is not None
        return {(s.name, s.variant): s.status for s in outcome.report.stages}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(
        tmp_path_factory.mktemp("judged") / "store",
        hardware=NODE.hardware("cpu").model_dump(),
        identities={
            **IDENTITIES,
            "evaluate": identity("evaluate", Accelerator.CPU, load_settings()),
        },
    )


@pytest.fixture(scope="module")
def promoted(judged: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("promoted") / "registry.db"
    judged.promote(f"sqlite:///{file}", variant=RECIPE)
    return file


@pytest.fixture
def site(judged: FakeRun, promoted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    shutil.copyfile(promoted, tmp_path / "registry.db")
    found = Site(tmp_path, judged, PretendModels(as_before, questions=96))
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    for module in (recheck, environment):
        monkeypatch.setattr(
            module, "ensure", lambda *_: SimpleNamespace(identity=found.serve, python=Path("p"))
        )
    monkeypatch.setattr(recheck, "engine_version", lambda *_: found.engine)
    for module in (recheck, model_plan):
        monkeypatch.setattr(
            module,
            "identity",
            lambda name, *known: found.serve if name == "serve" else identity(name, *known),
        )
    monkeypatch.setattr(PretendRun, "models", found.models, raising=False)
    monkeypatch.setattr(recheck, "Run", PretendRun)
    monkeypatch.setattr(recheck, "Servers", PretendServers)
    monkeypatch.setattr(recheck, "this_node", lambda: NODE)
    # Tiny matrices are no real model's, and the questions are the judged run's, not the packages'.
    early: Any = SimpleNamespace(sources=Questions(), preflight=None)
    monkeypatch.setattr(recheck, "check_early", lambda *_: early)
    return found


class Questions:
    def suite(self, name: str, suite: Any) -> Any:
        return SuiteSource(QuestionSource(kind="builtin"), questions=96)

    def counts(self, policy: Any) -> dict[str, int | None]:
        return dict.fromkeys(policy.suites, 96)

    def note(self, text: str) -> None:
        pass


class TestNothingChanged:
    def test_the_verdict_stands_and_nothing_is_run(self, site: Site) -> None:
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code, outcome.changed) == (True, 0, ())
        assert outcome.report is None
        assert site.models.served == []
        assert not (site.store.root / "runs").exists()

    def test_force_measures_with_answers_of_its_own(self, site: Site) -> None:
        outcome = site.recheck(force=True)
        assert outcome.report is not None
        assert (outcome.stands, outcome.exit_code) == (True, 0)
        assert site.models.served == ["baseline", RECIPE]
        site.recheck(force=True)
        assert site.models.served == ["baseline", RECIPE] * 2
        asked = [r.parameters for r in site.store.records("evaluate") if r.variant == RECIPE]
        levels = {each["repeat"]: each["rule"]["alpha"] for each in asked}
        # Two were tried when it was judged.
        assert levels == {n: pytest.approx(0.05 / 2) for n in (1, 2)}

    def test_one_gate_is_measured_again_on_request(self, site: Site) -> None:
        with pytest.raises(UsageError) as caught:
            site.recheck(remeasure=("none",))
        assert caught.value.where == "--remeasure"
        for number in (1, 2):
            site.recheck(remeasure=("code",))
            asked = [r.parameters for r in site.store.records("evaluate") if r.variant == RECIPE]
            assert max(each["repeat"] for each in asked) == number
        assert site.models.served == ["baseline", RECIPE] * 2

    def test_other_kernels_are_named_once_a_server_ran(self, site: Site, tmp_path: Path) -> None:
        made = judged_run(
            tmp_path / "k" / "store",
            lost={RECIPE: 0},
            hardware=NODE.hardware("cpu").model_dump(),
            identities={
                **IDENTITIES,
                "evaluate": identity("evaluate", Accelerator.CPU, load_settings()),
            },
            kernels={"attention": "FLASH_ATTN"},
        )
        made.promote(site.registry.uri, variant=RECIPE)
        assert site.recheck().changed == ()
        site.models.kernels = {"attention": "FLASHINFER"}
        outcome = site.recheck(force=True)
        words = "kernels, attention: judged FLASH_ATTN, here FLASHINFER"
        assert [str(change) for change in outcome.changed] == [words]
        (record,) = rechecks_of(find_version(site.registry, "model@champion"))
        assert record.changed == (words,)
        assert record.members.kernels == {"attention": "FLASHINFER"}


class TestSomethingChanged:
    def test_weights_are_served_and_not_quantized(self, site: Site) -> None:
        site.engine, site.serve = "0.34.0", "3" * 64
        outcome = site.recheck()
        assert [str(change) for change in outcome.changed] == [
            "engine version: judged 0.33.0, here 0.34.0",
            f"environment 'serve': judged {'1' * 12}, here {'3' * 12}",
        ]
        statuses = site.statuses(outcome)
        assert statuses["adopt", RECIPE] == statuses["judge", RECIPE] == "ran"
        assert not [name for name, _ in statuses if name == "quantize"]
        assert (outcome.stands, outcome.exit_code) == (True, 0)
        assert outcome.now is not None
        assert {gate.name for gate in outcome.now.quality} == {"code"}
        assert outcome.now.registry_version is None

    def test_the_policy_and_arguments_are_those_of_the_verdict(self, site: Site) -> None:
        site.serve = "3" * 64
        outcome = site.recheck()
        then = site.judged.store.find("judge", _key(site.judged.report))
        now = site.store.find("judge", _key(_report(outcome)))
        assert then is not None
        assert now is not None
        assert {**now.parameters, "trial": None} == {**then.parameters, "trial": None}
        evaluate = site.store.find("evaluate", now.inputs["candidate.code"].key)
        assert evaluate is not None
        assert evaluate.parameters["serving"] == outcome.past.deployable.serving.to_dict()
        assert evaluate.parameters["engine"] == site.serve
        # Two were tried then, so each must show more than one alone.
        assert evaluate.parameters["rule"]["alpha"] == pytest.approx(0.025)

    def test_its_run_verifies_and_cannot_be_promoted(self, site: Site) -> None:
        site.serve = "3" * 64
        report = _report(site.recheck())
        kept = find_run(site.store, "latest")
        assert kept.run == report.run
        (check,) = check_run(kept, site.store)
        assert (check.kept, check.computed, check.differences) == ("pass", "pass", ())
        with pytest.raises(UsageError, match="no weights to promote"):
            promote_run(kept, site.store, PromotionRequest(site.registry.uri), Listener())

    def test_a_verdict_that_does_not_stand(self, site: Site) -> None:
        site.serve, site.models.score = "3" * 64, broken_now
        before = site.registry.aliases(NAME)
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code) == (False, ExitCode.GATES_FAILED)
        assert site.registry.aliases(NAME) == before
        (kept,) = rechecks_of(find_version(site.registry, "model@champion"))
        assert (kept.verdict, kept.stands, kept.run) == ("fail", False, _report(outcome).run)

    def test_a_server_that_does_not_come_up_is_no_verdict(self, site: Site) -> None:
        site.serve, site.models.broken = "3" * 64, {RECIPE}
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code) == (None, 1)
        assert rechecks_of(find_version(site.registry, "model@champion")) == []

    def test_another_profile(self, site: Site, tmp_path: Path) -> None:
        shown = (RECIPES / "profiles" / "cpu.yaml").read_text()
        own = tmp_path / "own.yaml"
        own.write_text(shown.replace("max-num-seqs: 32", "max-num-seqs: 16"))
        outcome = site.recheck(profile=str(own))
        members = [change.member for change in outcome.changed]
        assert "serving, engine_arguments, max-num-seqs" in members
        now = site.store.find("judge", _key(_report(outcome)))
        assert now is not None
        evaluate = site.store.find("evaluate", now.inputs["candidate.code"].key)
        assert evaluate is not None
        assert evaluate.parameters["serving"]["engine_arguments"]["max-num-seqs"] == 16

    def test_files_that_were_linked_and_removed_are_taken_in_again(
        self, site: Site, tmp_path: Path
    ) -> None:
        site.serve = "3" * 64
        site.recheck()
        (adopted,) = (site.store.root / "stages" / "adopt").glob("*/output/config.json")
        adopted.unlink()
        again = site.recheck()
        statuses = site.statuses(again)
        assert statuses["adopt", RECIPE] == "ran"
        # The same weights: what was measured of them still holds.
        assert statuses["check_weights", RECIPE] == statuses["judge", RECIPE] == "reused"
        assert adopted.is_file()


class TestWhatIsKept:
    def test_the_tag_tells_it(self, site: Site) -> None:
        site.serve = "3" * 64
        outcome = site.recheck()
        version = find_version(site.registry, "model@champion")
        (kept,) = rechecks_of(version)
        assert json.loads(version.tags[RECHECK_TAG]) == json.loads(kept.model_dump_json())
        assert kept.members.serve_environment == site.serve
        assert kept.tuple_digest == kept.members.digest
        assert kept.changed == tuple(str(change) for change in outcome.changed)
        assert (kept.verdict, kept.stands) == ("pass", True)

    def test_serving_accepts_what_a_recheck_passed(self, site: Site) -> None:
        assert site.accepted() == ["1" * 64]
        site.serve = "3" * 64
        site.recheck()
        assert site.accepted() == ["1" * 64, "3" * 64]

    def test_a_recheck_without_its_evidence_is_not_taken_at_its_word(self, site: Site) -> None:
        site.serve = "3" * 64
        site.recheck()
        assert site.accepted(Store(site.root / "elsewhere")) == ["1" * 64]
        # Nor one whose record was changed after it was made.
        (kept,) = rechecks_of(find_version(site.registry, "model@champion"))
        other = kept.model_copy(update={"tuple_digest": "4" * 64})
        site.registry.set_tags(NAME, "1", {f"{RECHECK_TAG}.{'3' * 12}": other.model_dump_json()})
        assert site.accepted() == ["1" * 64, "3" * 64]
        name = f"{RECHECK_TAG}.{kept.tuple_digest[:12]}"
        site.registry.set_tags(NAME, "1", {name: other.model_dump_json()})
        assert site.accepted() == ["1" * 64]

    def test_a_forced_one_that_fails_takes_the_judged_tuple_away(self, site: Site) -> None:
        site.models.score = broken_now
        assert site.recheck(force=True).exit_code == ExitCode.GATES_FAILED
        assert site.accepted() == []
        outcome = site.recheck()
        assert (outcome.report, outcome.stands) == (None, False)
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert outcome.refuted is not None
        assert outcome.to_dict()["run"] == outcome.refuted.run


class TestErrors:
    def refused(self, site: Site, kind: type[PrepareError], words: str, **options: Any) -> str:
        with pytest.raises(kind, match=words) as caught:
            site.recheck(**options)
        assert site.models.served == []
        return caught.value.hint

    @pytest.mark.parametrize("tag", ["prepare.policy.digest", "prepare.hardware"])
    def test_a_tag_that_is_not_the_evidences(self, site: Site, tag: str) -> None:
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

    @pytest.mark.parametrize("source", ["./moved", "moved"])
    def test_a_source_that_cannot_be_had(self, site: Site, source: str) -> None:
        site.serve = "3" * 64
        try:
            outcome = site.recheck(source=source)
        except CheckpointError as error:
            told = error.to_dict()
        else:
            assert outcome.report is not None
            assert outcome.report.error is not None
            assert outcome.exit_code == 2
            told = outcome.report.error
        assert told["message"].startswith("the source checkpoint, which is the baseline,")
        assert "moved" in told["message"] + told["where"]
        assert "--source CHECKPOINT" in told["hint"]
        assert site.models.served == []

    def test_a_gpus_verdict_without_a_gpu(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hint = self.refused(site, UsageError, "none is found here", profile="h100")
        assert "choose another profile" in hint


class TestCommand:
    def told(self, site: Site, *arguments: str) -> Any:
        command = ["recheck", "model@champion", "--registry", site.registry.uri]
        return CliRunner().invoke(
            app,
            [*command, "--store", str(site.store.root), *arguments],
            catch_exceptions=False,
        )

    def test_gates_then_and_now(self, site: Site) -> None:
        site.serve, site.models.score = "3" * 64, broken_now
        result = self.told(site)
        assert result.exit_code == 4
        assert "the verdict does not stand: fail" in result.stdout
        assert f"prepare rollback {NAME}" in result.stdout
        assert f"prepare report {find_run(site.store, 'latest').run}" in result.stdout
        (row,) = [line for line in result.stdout.splitlines() if line.strip().startswith("code")]
        assert "pass" in row
        assert "fail" in row
        again = self.told(site)
        assert again.exit_code == 4


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("pass", "pass", True),
        ("pass", "fail", False),
        ("pass", "undecided", False),
        ("undecided", "undecided", True),
        ("undecided", "fail", False),
        ("fail", "fail", True),
        ("fail", "undecided", True),
        ("fail", "pass", True),
        ("pass", "error", None),
    ],
)
def test_stands(then: str, now: str, expected: bool | None) -> None:
    assert stands(then, now) is expected


def _report(outcome: RecheckOutcome) -> RunReport:
    assert outcome.report is not None
    return outcome.report


def _key(report: RunReport) -> str:
    (key,) = [s.key for s in report.stages if (s.name, s.variant) == ("judge", RECIPE)]
    assert key is not None
    return key


class TestDyingServers:
    """A registered version whose server dies under load, over several rechecks."""

    @pytest.fixture
    def measured(self, site: Site, tmp_path: Path) -> Site:
        made = bench(tmp_path / "bench", "cpu", PretendModels(as_before, questions=96))
        made.recipes = (RECIPE,)
        made.hardware = NODE.hardware("cpu").model_dump()
        evaluate = identity("evaluate", Accelerator.CPU, load_settings())
        made.identities = {**IDENTITIES, "evaluate": evaluate}
        made.run()
        made.promote(site.registry.uri, variant=RECIPE)
        site.judged = made
        site.serve = "3" * 64
        return site

    def test_the_second_death_over_all_rechecks_ends_its_verdict(self, measured: Site) -> None:
        died_now: list[str] = []

        def is_lost(variant: str, when: str) -> bool:
            # The variant dies, then the baseline, which ends the command.
            is_next = variant == ("baseline" if RECIPE in died_now else RECIPE)
            if when == "load" and is_next and variant not in died_now:
                died_now.append(variant)
                return True
            return False

        measured.models.is_lost = is_lost
        assert (measured.recheck().now, died_now) == (None, [RECIPE, "baseline"])
        measured.models.is_lost = lambda variant, when: False
        measured.models.dies_once = {RECIPE}
        outcome = measured.recheck()
        assert outcome.now is not None
        assert outcome.now.speed[0].server_starts["candidate"].failed == 2
        assert (outcome.stands, outcome.exit_code) == (False, ExitCode.GATES_FAILED)

    def test_one_death_is_told(self, measured: Site) -> None:
        measured.models.dies_once = {RECIPE}
        outcome = measured.recheck()
        assert outcome.now is not None
        assert (outcome.stands, outcome.exit_code) == (True, 0)
        assert "its server failed in 1 of 2 starts" in outcome.now.reason
