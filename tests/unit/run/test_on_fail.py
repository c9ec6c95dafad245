"""`--on-fail rollback`: a failed check moves the alias back, once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint_stand_in import EndpointStandIn
from fake_run import NAME, FakeRun
from listener import Listener
from pretend_recheck import BOTH, QUESTIONS, RECIPE, Machine, as_before, loses
from pretend_stages import PretendModels, PretendRun, PretendServers
from registry_contract import killed_at

from artifacts.deploy.on_fail import FailedCheck, Rollback
from artifacts.registry import Move, Registry
from artifacts.requests import GateRequest
from artifacts.run_record import RunReport
from pipeline.cli.recheck import next_step
from pipeline.run import recorded_gate
from prepare.errors import ExitCode, UsageError
from prepare.store import Store

FIRST = "1"
SECOND = "2"
CHAMPION = f"{NAME}@champion"
FAILED = FailedCheck("a-run", "f" * 64, "failed on code")


@pytest.fixture(scope="module")
def file(promoted: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry whose champion, version 2, replaced version 1."""
    file = tmp_path_factory.mktemp("two") / "registry.db"
    uri = f"sqlite:///{file}"
    promoted.promote(uri, variant="awq-w4a16")
    promoted.promote(uri, variant=RECIPE)
    return file


@pytest.fixture
def registry(file: Path, tmp_path: Path) -> Registry:
    """A copy of it."""
    copy = tmp_path / "registry.db"
    shutil.copyfile(file, copy)
    return Registry(f"sqlite:///{copy}")


@pytest.fixture
def site(registry: Registry, tmp_path: Path) -> Machine:
    models = PretendModels(loses(*BOTH, "awq-w4a16"), questions=QUESTIONS)
    site = Machine(Store(tmp_path / "here"), registry, models)
    site.upgrade()
    return site


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EndpointStandIn(length=4096) as endpoint:
        yield endpoint.url


def rollbacks(registry: Registry) -> list[Move]:
    return [move for move in registry.history(NAME) if move.action == "rollback"]


class TestRecheck:
    def test_a_failed_one_moves_the_alias_back(self, site: Machine) -> None:
        outcome = site.recheck(on_fail="rollback")
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert site.registry.aliases(NAME)["champion"] == FIRST
        (move,) = rollbacks(site.registry)
        assert (move.run, move.verdict, move.replaced) == (outcome.runs[0].run, "fail", SECOND)
        judge = outcome.runs[0].judges[RECIPE]
        assert judge[:12] in move.reason
        assert outcome.to_dict()["moved"]["version"] == FIRST
        assert "is version 1 again" in next_step(outcome)

    def test_hold_is_the_default(self, site: Machine) -> None:
        assert site.recheck().exit_code == ExitCode.GATES_FAILED
        assert site.registry.aliases(NAME)["champion"] == SECOND

    def test_the_verdict_was_there_and_the_alias_was_not_moved_yet(self, site: Machine) -> None:
        """As after a kill between the two."""
        site.recheck()
        served = list(site.models.served)
        site.recheck(on_fail="rollback")
        assert site.models.served == served
        assert site.registry.aliases(NAME)["champion"] == FIRST

    def test_it_does_not_go_further_back(self, site: Machine) -> None:
        """The engine harms the version before, too."""
        site.recheck(on_fail="rollback")
        outcome = site.recheck(on_fail="rollback")
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert outcome.past.version.version == FIRST
        assert site.registry.aliases(NAME)["champion"] == FIRST
        assert len(rollbacks(site.registry)) == 1
        assert [note for note in site.said.notes if "nothing was promoted since" in note]

    def test_an_earlier_recheck_of_the_same_tuple_that_failed(self, site: Machine) -> None:
        site.engine = "0.33.0"
        site.models.engine_version = "0.33.0"
        site.identities = {**site.identities, "serve": "1" * 64}
        site.recheck(force=True)
        outcome = site.recheck(on_fail="rollback")
        assert outcome.runs == ()
        assert site.registry.aliases(NAME)["champion"] == FIRST

    @pytest.mark.parametrize("how", ["undecided", "error", "pass", "babbling source"])
    def test_no_other_end_moves_it(self, site: Machine, how: str) -> None:
        def undecided(variant: str, suite: str, number: int) -> float:
            return float(number % 2 and not (variant == RECIPE and number % 26 == 1))

        site.models.score = as_before
        if how == "undecided":
            site.models.score = undecided
        elif how == "error":
            site.models.broken = {RECIPE}
        elif how == "babbling source":
            site.models.score = undecided
            site.models.babbling = {"baseline"}
        outcome = site.recheck(on_fail="rollback")
        wanted = {"undecided": 5, "error": 1, "pass": 0, "babbling source": 5}[how]
        assert outcome.exit_code == wanted
        assert site.registry.aliases(NAME)["champion"] == SECOND
        assert rollbacks(site.registry) == []

    def test_a_broken_model_has_failed(self, site: Machine) -> None:
        site.models.babbling = {RECIPE}
        outcome = site.recheck(on_fail="rollback")
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert site.registry.aliases(NAME)["champion"] == FIRST

    @pytest.mark.parametrize("reference", [f"{NAME}@2", f"{NAME}@previous"])
    def test_refused_before_anything_is_asked(self, site: Machine, reference: str) -> None:
        with pytest.raises(UsageError):
            site.recheck(reference=reference, on_fail="rollback")
        assert site.models.served == []

    def test_two_at_once_move_it_once(self, site: Machine) -> None:
        """The other one moves it while this one asks."""
        ask = site.models.open

        def slow(name: str) -> dict[str, object]:
            if len(site.models.served) == 1:
                failed = Rollback.of(site.registry, CHAMPION, SECOND)
                failed.move_back(FAILED, Listener().note)
            return ask(name)

        site.models.open = slow  # type: ignore[method-assign]
        outcome = site.recheck(on_fail="rollback")
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert len(rollbacks(site.registry)) == 1
        assert site.registry.aliases(NAME)["champion"] == FIRST


class TestGate:
    @pytest.fixture(autouse=True)
    def _pretend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorded_gate, "Run", PretendRun)
        monkeypatch.setattr(recorded_gate, "Servers", PretendServers)

    def gate(self, site: Machine, url: str, baseline: str = CHAMPION, **options: str) -> RunReport:
        PretendRun.models = site.models
        site.models.open_now = {"candidate"}
        request = GateRequest(
            baseline=baseline, candidate=url, registry=site.registry.uri, **options
        )
        return recorded_gate.run_recorded_gate(request, site.settings, site.said)

    @pytest.mark.parametrize(
        ("worse", "code", "champion"), [(("candidate",), 4, FIRST), ((), 0, SECOND)]
    )
    def test_only_a_failed_endpoint_moves_it(
        self, site: Machine, url: str, worse: tuple[str, ...], code: int, champion: str
    ) -> None:
        site.models.score = loses(*worse)
        report = self.gate(site, url, on_fail="rollback")
        assert report.exit_code == code
        assert site.registry.aliases(NAME)["champion"] == champion
        assert [move.run for move in rollbacks(site.registry)] == [report.run] * (code == 4)

    @pytest.mark.parametrize("baseline", [f"{NAME}@2", f"{NAME}@1", "latest:baseline"])
    def test_refused_without_an_alias(
        self, site: Machine, url: str, baseline: str, promoted: FakeRun, tmp_path: Path
    ) -> None:
        site.store = promoted.copy_to(tmp_path / "theirs").store
        with pytest.raises(UsageError) as caught:
            self.gate(site, url, baseline, on_fail="rollback")
        assert caught.value.where.startswith("--on-fail")
        assert site.models.asked == []

    def test_refused_between_two_endpoints(self, site: Machine, url: str) -> None:
        from pipeline.run.gate import run_gate

        request = GateRequest(baseline=url, candidate=url, on_fail="rollback")
        with pytest.raises(UsageError) as caught:
            run_gate(request, site.settings, site.said)
        assert caught.value.where == "--on-fail"


def test_nothing_to_go_back_to(promoted: FakeRun) -> None:
    with pytest.raises(UsageError, match="no version to go back to") as caught:
        Rollback.of(promoted.registry, CHAMPION, FIRST)
    assert "--to" not in caught.value.hint  # it is the only version
    assert "promote another" in caught.value.hint


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_killed_at_a_write_it_is_completed_once(
    registry: Registry, write: int, *, after: bool
) -> None:
    def move(opened: Registry) -> None:
        current = opened.aliases(NAME)["champion"]
        rollback = Rollback.of(opened, CHAMPION, current)
        rollback.move_back(FAILED, Listener().note)

    killed_at(registry.uri, write, move, after=after)
    move(registry)
    move(registry)
    assert registry.aliases(NAME)["champion"] == FIRST
    (moved,) = rollbacks(registry)
    assert (moved.run, moved.done, moved.replaced) == ("a-run", True, SECOND)


def test_after_a_promotion_it_may_move_again(registry: Registry, promoted: FakeRun) -> None:
    Rollback.of(registry, CHAMPION, SECOND).move_back(FAILED, Listener().note)
    promoted.promote(registry.uri, variant=RECIPE)
    again = Rollback.of(registry, CHAMPION, SECOND).move_back(FAILED, Listener().note)
    assert again is not None
    assert len(rollbacks(registry)) == 2
