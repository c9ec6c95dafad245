"""`prepare recheck`: what a recheck leaves, and who believes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_run import NAME, FakeRun
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

from artifacts.candidate import PromotionRequest
from artifacts.deploy.recheck_record import RECHECK_TAG
from artifacts.evidence.verify import check_run
from artifacts.promotion import promote_run
from artifacts.recheck_report import RecheckReport
from artifacts.run_record import find_run
from pipeline.cli.recheck import next_step
from prepare.errors import (
    ExitCode,
    UsageError,
)
from prepare.store import Store
from recipes.catalog import RECIPES
from recipes.speed import SpeedPolicy


class TestOutcomes:
    def test_its_run_cannot_be_promoted(self, site: Machine) -> None:
        site.upgrade()
        site.recheck()
        kept = find_run(site.store, "latest")
        with pytest.raises(UsageError, match="no weights to promote"):
            promote_run(kept, site.store, PromotionRequest(site.registry.uri), Listener())

    def test_no_alias_moves(self, site: Machine) -> None:
        site.upgrade()
        site.models.score = loses(*BOTH)
        before = site.registry.aliases(NAME)
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code) == (False, ExitCode.GATES_FAILED)
        assert site.registry.aliases(NAME) == before
        assert f"prepare rollback {NAME}" in next_step(outcome)

    def test_a_server_that_does_not_come_up_is_no_verdict(self, site: Machine) -> None:
        site.upgrade()
        site.models.broken = {RECIPE}
        outcome = site.recheck()
        assert (outcome.stands, outcome.exit_code) == (None, 1)
        assert len(outcome.runs) == 1
        assert site.rechecks() == []

    def test_another_profile(self, site: Machine, tmp_path: Path) -> None:
        shown = (RECIPES / "profiles" / "cpu.yaml").read_text()
        own = tmp_path / "own.yaml"
        longer = shown.replace("max-model-len: 2048", "max-model-len: 4096")
        own.write_text(longer.replace("max-num-seqs: 32", "max-num-seqs: 16"))
        outcome = site.recheck(profile=str(own))
        members = [change.member for change in outcome.changed]
        assert "serving, engine_arguments, max-num-seqs" in members
        judge = site.store.find("judge", outcome.runs[0].judges[RECIPE])
        assert judge is not None
        evaluate = site.store.find("evaluate", judge.inputs["candidate.code"].key)
        assert evaluate is not None
        assert evaluate.parameters["serving"]["engine_arguments"]["max-num-seqs"] == 16

    def test_a_profile_that_serves_less_than_is_on_record(
        self, site: Machine, tmp_path: Path
    ) -> None:
        shown = (RECIPES / "profiles" / "cpu.yaml").read_text()
        own = tmp_path / "own.yaml"
        own.write_text(shown.replace("max-model-len: 2048", "max-model-len: 512"))
        outcome = site.recheck(profile=str(own))
        assert outcome.exit_code == ExitCode.USAGE
        assert outcome.error is not None
        assert "max-model-len" in outcome.error["where"]
        assert site.models.served == []

    def test_files_that_were_linked_and_removed_are_taken_in_again(self, site: Machine) -> None:
        site.upgrade()
        site.recheck()
        (adopted,) = (site.store.root / "stages" / "adopt").glob("*/output/config.json")
        adopted.unlink()
        status = statuses(site.recheck().runs[0])
        assert status["adopt", RECIPE] == "ran"
        # The same weights: what was measured of them still holds.
        assert status["check_weights", RECIPE] == status["judge", RECIPE] == "reused"
        assert adopted.is_file()

    def test_again_it_continues_and_asks_nothing(self, site: Machine) -> None:
        site.upgrade()
        first = site.recheck()
        served = list(site.models.served)
        again = site.recheck()
        assert (again.exit_code, site.models.served) == (first.exit_code, served)
        assert len(site.rechecks()) == 1


class TestWhatIsKept:
    def test_the_tag_tells_it(self, site: Machine) -> None:
        site.upgrade()
        outcome = site.recheck()
        (kept,) = site.rechecks()
        tags = site.past.version.tags
        assert json.loads(tags[RECHECK_TAG]) == json.loads(kept.model_dump_json())
        assert kept.members.serve_environment == site.identities["serve"]
        assert kept.tuple_digest == kept.members.digest
        assert kept.changed == tuple(str(change) for change in outcome.changed)
        assert (kept.report.cell, kept.stands) == ("neither", True)

    def test_serving_accepts_what_a_recheck_passed(self, site: Machine, promoted: FakeRun) -> None:
        assert site.accepted() == ["1" * 64]
        site.upgrade()
        site.recheck()
        assert site.accepted() == ["1" * 64, site.identities["serve"]]
        site.upgrade("0.35.0")
        site.recheck(source=str(promoted.checkpoint.path))
        assert site.identities["serve"] in site.accepted()

    def test_a_recheck_without_its_evidence_is_not_taken_at_its_word(self, site: Machine) -> None:
        site.upgrade()
        site.recheck()
        assert site.accepted(Store(site.store.root.parent / "elsewhere")) == ["1" * 64]
        # Nor one whose record was changed after it was made.
        (kept,) = site.rechecks()
        other = kept.model_copy(update={"tuple_digest": "4" * 64})
        site.registry.set_tags(NAME, "1", {f"{RECHECK_TAG}.{'4' * 12}": other.model_dump_json()})
        assert site.accepted() == ["1" * 64, site.identities["serve"]]
        name = f"{RECHECK_TAG}.{kept.tuple_digest[:12]}"
        site.registry.set_tags(NAME, "1", {name: other.model_dump_json()})
        assert site.accepted() == ["1" * 64]

    def test_an_answer_to_the_other_question_is_none(
        self, site: Machine, promoted: FakeRun
    ) -> None:
        """A pass against the source says nothing of the variant against itself."""
        site.upgrade()
        outcome = site.recheck(source=str(promoted.checkpoint.path))
        (kept,) = site.rechecks()
        forged = RecheckReport.of(kept.report.source, None)
        name = f"{RECHECK_TAG}.{kept.tuple_digest[:12]}"
        record = kept.model_copy(update={"report": forged})
        site.registry.set_tags(NAME, "1", {name: record.model_dump_json()})
        assert site.accepted() == ["1" * 64]
        run = outcome.runs[1].model_copy(update={"recheck": forged})
        (check,) = check_run(run, site.store)
        assert [words for words in check.differences if "other question" in words]

    def test_an_edited_cell_is_found(self, site: Machine, promoted: FakeRun) -> None:
        site.upgrade()
        site.models.score = loses(*BOTH)
        run = site.recheck().runs[1]
        assert run.recheck is not None
        edited = run.recheck.model_copy(update={"cell": "neither"})
        (check,) = check_run(run.model_copy(update={"recheck": edited}), site.store)
        assert check.differences

    def test_a_forced_one_that_fails_takes_the_judged_tuple_away(self, site: Machine) -> None:
        site.models.score = loses(*BOTH)
        assert site.recheck(force=True).exit_code == ExitCode.GATES_FAILED
        assert site.accepted() == []
        outcome = site.recheck()
        assert (outcome.runs, outcome.stands) == ((), False)
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert outcome.refuted is not None
        assert outcome.to_dict()["run"] == outcome.refuted.runs[-1]


class TestSpeed:
    """A gate on speed compares two servers, so the source is asked."""

    @pytest.fixture
    def fast(self, tmp_path: Path) -> Machine:
        made = FakeRun(
            tmp_path / "store",
            PretendModels(as_before, questions=QUESTIONS),
            recipes=(RECIPE,),
            hardware=NODE.hardware("cpu").model_dump(),
        )
        chat = {"kind": "random", "input_tokens": 8, "output_tokens": 4, "seconds": 1}
        chat |= {"arrivals": {"concurrency": 4}}
        ratio = {"min_ratio": 0.8, "workloads": ["chat"]}
        speed = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": chat}})
        made.policy = policy_of().model_copy(update={"speed": speed})
        made.models.seconds = {RECIPE: 0.9}
        made.run()
        made.promote()
        return Machine(made.store, made.registry, made.models)

    def test_it_is_measured_again_and_nothing_else(self, fast: Machine) -> None:
        asked = len(fast.models.asked)
        outcome = fast.recheck(remeasure=("speed.ratio.chat",))
        (run,) = outcome.runs
        assert (outcome.to_dict()["cell"], outcome.exit_code) == ("neither", 0)
        assert outcome.to_dict()["engine"] is None
        # The pretended weights have another size than their file, so they are other weights.
        assert {who for who, _, _ in fast.models.asked[asked:]} == {RECIPE}
        assert statuses(run)["speed ratio.chat", RECIPE] == "ran"
        assert {gate.name for gate in run.variants[0].gates} == {"code", "speed ratio.chat"}
        assert differences(fast, run) == ()
        (kept,) = fast.rechecks()
        assert kept.runs == [run.run]

    def test_another_engine_is_asked_about_answers_first(self, fast: Machine) -> None:
        fast.upgrade()
        outcome = fast.recheck()
        (run,) = outcome.runs
        assert [gate.name for gate in run.variants[0].gates] == ["code"]
        assert [note for note in run.notes if note.startswith("ratio.chat: left out")]
        both = fast.recheck(remeasure=("ratio.chat",))
        assert [len(run.variants[0].gates) for run in both.runs] == [1, 2]
