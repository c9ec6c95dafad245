"""`prepare recheck`: the engine, quantization, both or neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_run import FakeRun
from pretend_recheck import (
    BOTH,
    RECIPE,
    Machine,
    differences,
    loses,
    statuses,
)
from pretend_stages import Score

from artifacts.deploy.recheck_record import stands
from artifacts.recheck_report import RecheckAnswer, RecheckReport, cell_of
from pipeline.cli.recheck import print_outcome
from pipeline.run import recheck
from prepare.errors import (
    CheckpointError,
    ExitCode,
    UsageError,
)


@pytest.mark.parametrize(
    ("worse", "options", "cell", "code"),
    [
        ((), {}, "neither", ExitCode.SUCCESS),
        (BOTH, {}, "engine", ExitCode.GATES_FAILED),
        ((RECIPE,), {}, "both", ExitCode.GATES_FAILED),
        ((), {"source": True}, "neither", ExitCode.SUCCESS),
    ],
)
def test_the_cell(
    site: Machine,
    promoted: FakeRun,
    worse: tuple[str, ...],
    options: dict[str, Any],
    cell: str,
    code: ExitCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.upgrade()
    site.models.score = loses(*worse)
    source = str(promoted.checkpoint.path)
    outcome = site.recheck(**({"source": source} if options else {}))
    assert (outcome.to_dict()["cell"], outcome.exit_code) == (cell, code)
    asks_source = bool(worse or options)
    assert len(outcome.runs) == 1 + asks_source
    for run in outcome.runs:
        assert differences(site, run) == ()
    last = outcome.runs[-1].recheck
    assert last is not None
    assert (last.cell, last.source is not None) == (cell, asks_source)
    (record,) = site.rechecks()
    assert record.report == last
    assert record.stands == (code == 0)
    assert record.runs == [run.run for run in outcome.runs]
    print_outcome(outcome)
    assert last.words in capsys.readouterr().out


def killed_at_the_source(score: Score) -> Score:
    """The same scores, up to the first question to the source."""

    def ask(variant: str, suite: str, number: int) -> float:
        if variant == "baseline":
            raise KeyboardInterrupt
        return score(variant, suite, number)

    return ask


def test_a_kill_while_the_source_is_asked_does_not_lose_the_failure(site: Machine) -> None:
    """A forced recheck of an unchanged tuple would stand again without it."""

    site.models.score = killed_at_the_source(loses(RECIPE))
    with pytest.raises(KeyboardInterrupt):
        site.recheck(force=True)
    (record,) = site.rechecks()
    assert (record.stands, record.report.verdict) == (False, "fail")
    later = site.recheck()
    assert (later.stands, later.exit_code) == (False, ExitCode.GATES_FAILED)


def test_a_kill_while_the_source_is_asked_again_does_not_lose_the_cause(site: Machine) -> None:
    site.upgrade()
    site.models.score = loses(RECIPE)
    site.recheck()
    (before,) = site.rechecks()
    assert before.report.cell == "both"

    site.models.score = killed_at_the_source(loses(RECIPE))
    with pytest.raises(KeyboardInterrupt):
        site.recheck(force=True)
    assert site.rechecks() == [before]


def test_a_kill_after_an_undecided_answer_leaves_no_record(site: Machine) -> None:
    """An unchanged run of the same command asks the source; nothing is decided before."""

    def loses_a_little(variant: str, suite: str, number: int) -> float:
        return float(number % 2 and number % 40 != 1)

    site.upgrade()
    site.models.score = killed_at_the_source(loses_a_little)
    with pytest.raises(KeyboardInterrupt):
        site.recheck()
    assert site.rechecks() == []


@pytest.mark.parametrize("source", ["moved", "hf://absent/model@@"])
def test_a_source_in_no_known_form_is_refused_before_anything_is_asked(
    site: Machine, source: str
) -> None:
    site.upgrade()
    with pytest.raises(CheckpointError):
        site.recheck(source=source)
    assert site.models.served == []


def test_a_failure_counts_though_the_record_names_no_source_that_is_read(
    site: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> None:
        raise UsageError(f"'{text}' is no checkpoint")

    site.upgrade()
    site.models.score = loses(RECIPE)
    monkeypatch.setattr(recheck, "parse_reference", refuse)
    outcome = site.recheck()
    assert (outcome.stands, outcome.exit_code) == (False, ExitCode.GATES_FAILED)
    assert outcome.failed_check is not None
    (record,) = site.rechecks()
    assert record.report.verdict == "fail"


def test_an_engine_that_favours_the_source(site: Machine, promoted: FakeRun) -> None:
    """The variant is what it was, and the source is better here."""

    def score(variant: str, suite: str, number: int) -> float:
        return 1.0 if variant == "baseline" else float(number % 2)

    site.models.score = score
    site.upgrade()
    outcome = site.recheck(source=str(promoted.checkpoint.path))
    assert (outcome.to_dict()["cell"], outcome.exit_code) == ("quantization", 4)
    assert outcome.stands is False


def test_a_verdict_that_was_no_pass_is_named(
    site: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version that was promoted in spite of it was said to stand."""
    outcome = site.recheck()
    print_outcome(outcome)
    assert "the verdict stands: nothing changed" in capsys.readouterr().out
    bundle = outcome.past.bundle
    variant = bundle.variant.model_copy(update={"verdict": "undecided"})
    past = replace(outcome.past, bundle=bundle.model_copy(update={"variants": (variant,)}))
    print_outcome(replace(outcome, past=past))
    assert "the verdict on record, 'undecided', stands" in capsys.readouterr().out


class TestAgainstTheSource:
    def test_the_policy_and_arguments_are_those_of_the_verdict(
        self, site: Machine, promoted: FakeRun
    ) -> None:
        site.upgrade()
        outcome = site.recheck(source=str(promoted.checkpoint.path))
        then = promoted.store.find("judge", promoted.report.judges[RECIPE])
        now = site.store.find("judge", outcome.runs[1].judges[RECIPE])
        assert then is not None
        assert now is not None
        assert {**now.parameters, "trial": None} == {**then.parameters, "trial": None}
        evaluate = site.store.find("evaluate", now.inputs["candidate.code"].key)
        assert evaluate is not None
        assert evaluate.parameters["serving"] == outcome.past.deployable.serving.to_dict()
        assert evaluate.parameters["engine"] == site.identities["serve"]
        # Two were tried then, so each must show more than one alone.
        assert evaluate.parameters["rule"]["alpha"] == pytest.approx(0.025)

    def test_the_variants_answers_and_check_are_those_of_the_first_question(
        self, site: Machine, promoted: FakeRun
    ) -> None:
        site.upgrade()
        outcome = site.recheck(source=str(promoted.checkpoint.path))
        status = statuses(outcome.runs[1])
        assert status["check_weights", RECIPE] == status["adopt", RECIPE] == "reused"
        asked = [number for who, suite, number in site.models.asked if who == RECIPE]
        gates = [run.variants[0].quality[0] for run in outcome.runs]
        assert sum(asked) == max(gate.n for gate in gates) + 16  # and for the noise floor

    @pytest.mark.parametrize("source", ["./moved", "moved"])
    def test_a_source_that_cannot_be_had(self, site: Machine, source: str) -> None:
        site.upgrade()
        try:
            outcome = site.recheck(source=source)
        except CheckpointError as error:
            told = error.to_dict()
        else:
            assert outcome.error is not None
            assert outcome.exit_code == ExitCode.USAGE
            assert outcome.stands is None
            told = outcome.error
        assert told["message"].startswith("the source checkpoint, which is the baseline,")
        assert "moved" in told["message"] + told["where"]
        assert "--source CHECKPOINT" in told["hint"]
        assert "baseline" not in site.models.served
        assert site.rechecks() == []

    def test_a_variant_that_is_worse_fails_though_the_source_is_gone(
        self, site: Machine, promoted: FakeRun
    ) -> None:
        site.upgrade()
        site.models.score = loses(*BOTH)
        source = promoted.checkpoint.path
        aside = source.with_name("aside")
        source.rename(aside)
        try:
            outcome = site.recheck()
        finally:
            aside.rename(source)
        assert outcome.exit_code == ExitCode.GATES_FAILED
        assert (outcome.stands, outcome.to_dict()["cell"]) == (False, "undecided")
        assert outcome.error is not None
        (record,) = site.rechecks()
        assert record.runs == [outcome.runs[0].run]


def answer(verdict: Any) -> RecheckAnswer | None:
    return verdict and RecheckAnswer(run="r", judge="j", verdict=verdict, reason="")


@pytest.mark.parametrize(
    ("then", "engine", "source", "expected"),
    [
        ("pass", "pass", None, True),
        ("pass", "fail", "pass", False),
        ("pass", "undecided", "pass", False),
        ("pass", "pass", "fail", False),
        ("pass", "pass", "undecided", False),
        ("pass", None, "pass", True),
        ("undecided", "pass", "undecided", True),
        ("undecided", "pass", "fail", False),
        ("fail", "pass", "fail", True),
        ("fail", "fail", "fail", False),
        ("fail", "pass", "pass", True),
    ],
)
def test_stands(then: str, engine: str | None, source: str | None, expected: bool) -> None:
    assert stands(then, RecheckReport.of(answer(engine), answer(source))) is expected


@pytest.mark.parametrize(
    ("engine", "source", "expected"),
    [
        ("pass", None, "neither"),
        ("pass", "pass", "neither"),
        (None, "pass", "neither"),
        ("fail", "pass", "engine"),
        ("pass", "fail", "quantization"),
        (None, "fail", "quantization"),
        ("fail", "fail", "both"),
        ("fail", None, "undecided"),
        ("fail", "undecided", "undecided"),
        ("undecided", "pass", "undecided"),
        ("undecided", "fail", "undecided"),
        ("pass", "undecided", "undecided"),
    ],
)
def test_cells(engine: Any, source: Any, expected: str) -> None:
    assert cell_of(engine, source) == expected
