"""`prepare gate` against answers on record: nothing of the record is served or asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import EndpointStandIn
from fake_run import FakeRun, judged_run, policy
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers, Score, edit

from artifacts.evidence.verify import check_run
from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from artifacts.requests import GateRequest
from artifacts.run_record import RunReport, VariantReport
from pipeline.environments.settings import Settings
from pipeline.run import recorded_gate
from prepare.errors import (
    EvidenceError,
    ExitCode,
    PrepareError,
    RegistryError,
    ServingError,
    UsageError,
)
from prepare.store import Store
from recipes.checkpoints.weight_files import ARCHIVE

RECIPE = "fp8-dynamic"
QUESTIONS = 96


def as_recorded(variant: str, suite: str, number: int) -> float:
    return float(number % 2)


def worse(variant: str, suite: str, number: int) -> float:
    return float(number % 4 == 1)


@dataclass
class Site:
    """A user with a store, a registry and an endpoint on a new engine.

    Args:
        judged: the run that is on record.
        store: of the user.
        url: of the endpoint.
        models: what answers there.
    """

    judged: FakeRun
    store: Store
    url: str
    models: PretendModels
    said: Listener = field(default_factory=Listener)

    def gate(self, baseline: str = "model@champion", **options: Any) -> RunReport:
        request = GateRequest(
            baseline=baseline,
            candidate=self.url,
            registry=self.judged.uri,
            **options,
        )
        self.models.open_now = {"candidate"}
        settings = Settings(home=self.store.root.parent / "home", store=self.store.root)
        return recorded_gate.run_recorded_gate(request, settings, self.said)

    def verdict(self, baseline: str = "model@champion", **options: Any) -> VariantReport:
        (found,) = self.gate(baseline, **options).variants
        return found

    def differences(self, report: RunReport) -> str:
        (check,) = check_run(report, self.store)
        return "; ".join(check.differences)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EndpointStandIn(length=4096) as endpoint:
        yield endpoint.url


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("judged") / "store")
    made.promote(variant=RECIPE)
    return made


@pytest.fixture(autouse=True)
def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_gate, "Run", PretendRun)
    monkeypatch.setattr(recorded_gate, "Servers", PretendServers)


def site_of(judged: FakeRun, root: Path, url: str, score: Score) -> Site:
    models = PretendModels(score, questions=QUESTIONS)
    PretendRun.models = models
    return Site(judged, Store(root / "here"), url, models)


@pytest.fixture
def site(judged: FakeRun, tmp_path: Path, url: str) -> Site:
    """In a store that has nothing of the record."""
    return site_of(judged, tmp_path, url, as_recorded)


@pytest.fixture
def here(judged: FakeRun, tmp_path: Path, url: str) -> Site:
    """In the store that made the record."""
    found = site_of(judged, tmp_path, url, as_recorded)
    found.store = judged.copy_to(tmp_path / "here").store
    return found


def test_only_the_candidate_is_asked(site: Site) -> None:
    report = site.gate()
    (found,) = report.variants
    assert (report.exit_code, found.verdict) == (ExitCode.SUCCESS, "pass")
    assert {variant for variant, _, _ in site.models.asked} == {"candidate"}
    assert site.models.served == []
    assert "model@1" in found.reason
    assert site.differences(report) == ""


def test_a_worse_candidate_fails(judged: FakeRun, tmp_path: Path, url: str) -> None:
    site = site_of(judged, tmp_path, url, worse)
    report = site.gate()
    assert report.exit_code == ExitCode.GATES_FAILED
    assert site.differences(report) == ""


def test_no_look_goes_beyond_what_is_on_record(site: Site, judged: FakeRun) -> None:
    (gate,) = site.verdict().quality
    then = [each for each in judged.report.variants if each.recipe == RECIPE]
    assert gate.planned == then[0].quality[0].n


@pytest.mark.parametrize("variant", [RECIPE, "awq-w4a16", "baseline"])
def test_a_variant_of_a_run_of_the_store(here: Site, variant: str) -> None:
    report = here.gate(f"{here.judged.report.run}:{variant}")
    assert report.variants[0].verdict == "pass"
    assert here.differences(report) == ""
    assert {who for who, _, _ in here.models.asked} == {"candidate"}


def test_a_deployment_goes_on(site: Site) -> None:
    site.gate(deployment_id="image")
    asked = len(site.models.asked)
    again = site.gate(deployment_id="image")
    assert (again.exit_code, len(site.models.asked)) == (ExitCode.SUCCESS, asked)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("policy", "strict"),
        ("family", "int4"),
        ("eval_data", Path("questions")),
        ("max_length", 512),
        ("baseline_model", "m"),
        ("api", "chat"),
        ("leave_out", ("code",)),
        ("leave_out", ("nothing",)),
        ("remeasure", ("code",)),
        ("tokenizer", Path("/nowhere")),
    ],
)
def test_an_option_that_would_change_the_record_is_refused(
    site: Site, option: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        site.gate(**{option: value})
    assert f"--{option.replace('_', '-')}" in caught.value.where
    assert not (site.store.root / "stages").exists()


@pytest.mark.parametrize(
    "baseline",
    ["model@nothing", "other@champion", "localhost", "localhost:8000", "latest:fp8", "model@"],
)
def test_no_such_record(here: Site, baseline: str) -> None:
    with pytest.raises((UsageError, RegistryError)):
        here.gate(baseline)


def test_an_endpoint_that_is_shorter_than_the_record(judged: FakeRun, tmp_path: Path) -> None:
    with EndpointStandIn(length=1024) as endpoint:
        site = site_of(judged, tmp_path, endpoint.url, as_recorded)
        with pytest.raises(ServingError, match="1,024"):
            site.gate()


class TestSpoiltEvidence:
    def test_of_a_version(self, judged: FakeRun, site: Site, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(judged.bundle(), tmp_path / "copy"))
        content = (copy / ARCHIVE).read_bytes()
        (copy / ARCHIVE).write_bytes(content[:-100])
        with pytest.raises(PrepareError, match="not those that were judged"):
            site.gate(weights=copy)
        (copy / ARCHIVE).unlink()
        with pytest.raises(EvidenceError, match="lacks the recorded answers"):
            site.gate(weights=copy)

    @pytest.mark.parametrize("how", ["cut", "edited", "gone", "foreign"])
    def test_of_a_run(self, here: Site, how: str) -> None:
        answers = self.answers_of(here, RECIPE)
        lines = answers.read_text().splitlines(keepends=True)
        if how == "cut":
            answers.write_text("".join(lines[:-1]))
        elif how == "edited":
            answers.write_text("".join(lines).replace('"score": 0.0', '"score": 1.0', 1))
        elif how == "gone":
            answers.unlink()
        else:
            answers.write_text("".join(lines).replace("digest of", "another digest of"))
        before = set((here.store.root / "stages").glob("re*/*"))
        with pytest.raises(EvidenceError):
            here.gate(f"{here.judged.report.run}:{RECIPE}")
        assert set((here.store.root / "stages").glob("re*/*")) == before

    def answers_of(self, site: Site, variant: str) -> Path:
        for record in site.store.records("evaluate"):
            if record.variant == variant and record.inputs.get("questions"):
                return site.store.stage_folder("evaluate", record.key) / "answers.jsonl"
        raise AssertionError(variant)

    @pytest.mark.parametrize(
        ("stage", "file"), [("recorded", "evidence.tar.gz"), ("recall", "answers.jsonl")]
    )
    @pytest.mark.parametrize("is_gone", [True, False])
    def test_found_by_verify(self, site: Site, stage: str, file: str, is_gone: bool) -> None:
        report = site.gate()
        (spoilt,) = (site.store.root / "stages" / stage).glob(f"*/{file}")
        content = spoilt.read_bytes()
        spoilt.unlink()
        if not is_gone:
            spoilt.write_bytes(content.replace(b"0.0", b"1.0") + b"\n")
        assert file in site.differences(report)

    def test_another_runs_evidence_under_right_digests(
        self, site: Site, judged: FakeRun, tmp_path: Path
    ) -> None:
        """As who forges it would: every digest of the new record is right."""
        report = site.gate()
        (record,) = (site.store.root / "stages" / "recall").glob("*/stage.json")
        edit(record, lambda found: found["parameters"].update(evaluate="f" * 64))
        assert site.differences(report) != ""


def test_answers_that_were_compared_with_a_record_are_no_record(here: Site) -> None:
    first = here.gate()
    with pytest.raises(UsageError, match="slow decline"):
        here.gate(f"{first.run}:candidate")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    """A record with a suite whose texts no bundle has."""
    suites = policy().model_dump(mode="json")
    suites["suites"]["chats"] = {"kind": "fidelity", "margins": {"fp8": 0.2}}
    models = PretendModels(as_recorded, questions=QUESTIONS, private="a secret text")
    root = tmp_path_factory.mktemp("private") / "store"
    made = FakeRun(root, models, type(policy()).model_validate(suites), (RECIPE,))
    made.run()
    made.promote(variant=RECIPE)
    return made


def test_a_suite_whose_texts_are_elsewhere_is_left_out_by_name_only(
    private: FakeRun, tmp_path: Path, url: str
) -> None:
    site = site_of(private, tmp_path, url, as_recorded)
    with pytest.raises(UsageError, match="'chats' cannot be compared") as caught:
        site.gate()
    assert "--leave-out chats" in caught.value.hint
    report = site.gate(leave_out=("chats",))
    (found,) = report.variants
    assert [gate.name for gate in found.gates] == ["code"]
    assert "without chats" in found.reason
    assert site.differences(report) == ""
    (record,) = (site.store.root / "stages" / "recorded").glob("*/stage.json")
    assert json.loads(record.read_text())["parameters"]["left_out"] == ["chats"]


def test_texts_of_the_store_are_read_again(private: FakeRun, tmp_path: Path, url: str) -> None:
    site = site_of(private, tmp_path, url, as_recorded)
    site.models.private = private.models.private
    site.store = private.copy_to(tmp_path / "here").store
    report = site.gate()
    assert [gate.name for gate in report.variants[0].gates] == ["code", "chats"]
    assert report.variants[0].verdict == "pass"
    (texts,) = (site.store.root / "stages" / "recall").glob("*/texts.jsonl")
    assert "a secret text" in texts.read_text()
    assert site.differences(report) == ""


def test_another_tokenizer_is_no_place_of_the_recorded_one(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer_config.json", "tokenizer.json", "chat_template.jinja"):
        (other / name).write_text("{}")
    with pytest.raises(UsageError) as caught:
        site.gate(tokenizer=other)
    assert caught.value.where.startswith("--tokenizer")
    assert site.gate(tokenizer=site.judged.bundle()).exit_code == ExitCode.SUCCESS


def test_the_report_shows_what_it_was_compared_with(site: Site) -> None:
    page = run_page(ReportedRun(site.gate(tokenizer=site.judged.bundle()), site.store))
    assert "model@1" in page
