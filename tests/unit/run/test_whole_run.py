"""`run_model` from the request to the registry; models are pretended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fake_run import equal, lost
from pretend_stages import PretendModels, PretendServers
from quantized_checkpoint import source_files
from small_checkpoint import write_files
from sound_variants import safetensors_of, source_tensors
from whole_run import run_of

from artifacts.registry import Registry
from pipeline.cli.tables import last_lines
from pipeline.plan.plan import Arm
from pipeline.stages.verdict import exit_code_of
from prepare.errors import ExitCode, UsageError
from prepare.file_locks import this_process


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], ExitCode.SUCCESS),
        (["error", "fail", "pass"], ExitCode.SUCCESS),
        (["fail", "error"], ExitCode.EXPECTED_ERROR),
        (["undecided", "fail", "skipped"], ExitCode.GATES_FAILED),
        (["undecided", "skipped"], ExitCode.UNDECIDED),
        ([], ExitCode.UNDECIDED),
    ],
)
def test_the_exit_code_is_that_of_the_verdicts(verdicts: list[str], code: ExitCode) -> None:
    assert exit_code_of(verdicts) == code


RUNG = "awq-w4a16-plus-10"


def layered_files() -> dict[str, bytes]:
    return source_files() | {"model.safetensors": safetensors_of(source_tensors())}


def one_passes() -> PretendModels:
    """One variant passes, and the server of the other does not start."""
    return PretendModels(equal, questions=96, broken={"second"})


def test_what_passed_is_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_of(tmp_path, monkeypatch, one_passes())
    assert (report.status, report.exit_code) == ("finished", ExitCode.SUCCESS)
    (version,) = Registry(f"sqlite:///{tmp_path / 'store' / 'registry.db'}").versions("model")
    assert version.aliases == ("champion",)


def test_until_pass_promotes_the_last_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are as large; then the order is that of the request."""
    models = PretendModels(equal, questions=96)
    report = run_of(tmp_path, monkeypatch, models, until="pass")
    first, second = report.variants
    assert (first.promoted, second.promoted) == (False, True)
    assert "second was the last of 2 that passed" in first.reason
    card = next((tmp_path / "store" / "versions").glob("*/README.md")).read_text()
    assert "judged from the largest down" in card


@pytest.mark.parametrize(
    ("good", "promoted", "asked"),
    [
        (("fp8-dynamic", RUNG), RUNG, {"fp8-dynamic", RUNG, "awq-w4a16"}),
        (("awq-w4a16", RUNG), "", {"fp8-dynamic"}),
    ],
)
def test_the_smallest_rung_that_passes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    good: tuple[str, ...],
    promoted: str,
    asked: set[str],
) -> None:
    """With `fp8-dynamic` failing nothing is asked of the smaller ones."""
    write_files(tmp_path / "source", layered_files())
    bad = {"fp8-dynamic", RUNG, "awq-w4a16"}.difference(good)

    def answers(variant: str, suite: str, number: int) -> float:
        return lost(1 if variant in bad else 10**9)(variant, suite, number)

    models = PretendModels(answers, questions=96)
    recipes = ("awq-w4a16", "awq-w4a16+10", "fp8-dynamic")
    report = run_of(tmp_path, monkeypatch, models, until="pass", recipes=recipes)
    assert [variant.recipe for variant in report.variants if variant.promoted] == (
        [promoted] if promoted else []
    )
    assert {variant for variant, _, _ in models.asked} - {"baseline"} == asked
    [kept] = (tmp_path / "store" / "runs").glob("*/recipes/*.yaml")
    assert kept.stem == RUNG
    changed = kept.read_text()
    assert "other_schemes" in changed
    again = run_of(tmp_path, monkeypatch, models, recipes=(str(kept),))
    made = {stage.status for stage in again.stages if stage.name == "quantize"}
    assert made == {"reused" if promoted else "ran"}


def test_others_are_told_how_long_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits for this one reads it in the lock."""
    told: list[str] = []
    start = PretendServers.start_process

    def start_process(self: PretendServers, arm: Arm) -> dict[str, Any]:
        told.append(this_process())
        return start(self, arm)

    monkeypatch.setattr(PretendServers, "start_process", start_process)
    run_of(tmp_path, monkeypatch, one_passes())
    assert told
    assert all(re.match(r"run \S+ in .* since .* \(needs about ", each) for each in told)


def test_without_promotion_what_passed_is_not_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = one_passes()
    report = run_of(tmp_path, monkeypatch, models, promote=False)
    assert (report.status, report.exit_code) == ("finished", ExitCode.SUCCESS)
    assert {each.recipe: each.verdict for each in report.variants}["fp8-dynamic"] == "pass"
    assert not any(variant.promoted for variant in report.variants)
    assert not (tmp_path / "store" / "registry.db").exists()


def test_the_exit_code_of_a_run_that_promotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none_starts = PretendModels(equal, questions=96, broken={"second", "fp8-dynamic"})
    report = run_of(tmp_path, monkeypatch, none_starts)
    assert (report.status, report.exit_code) == ("finished", ExitCode.EXPECTED_ERROR)
    assert not any(variant.promoted for variant in report.variants)
    none_passes = PretendModels(lost(1), questions=96)
    report = run_of(tmp_path, monkeypatch, none_passes)
    assert (report.status, report.exit_code) == ("finished", ExitCode.GATES_FAILED)


def test_a_further_copy_leaves_the_outcome_to_the_main_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed that nothing was promoted, and wrote that for CI."""
    monkeypatch.setenv("PREPARE_COPY", "1")
    report = run_of(tmp_path, monkeypatch, one_passes(), run_id="nightly")
    assert (report.status, report.exit_code) == ("running", None)
    assert "promoted" not in last_lines(report)[0]
    assert last_lines(report)[0].endswith("Next: prepare runs nightly")
    assert not (tmp_path / "store" / "registry.db").exists()


def test_a_wrong_number_of_a_copy_is_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREPARE_COPY", "first")
    with pytest.raises(UsageError, match="no number of a copy"):
        run_of(tmp_path, monkeypatch, one_passes())
    assert not list((tmp_path / "store").glob("runs/*"))


def test_a_registry_that_would_refuse_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is where the registry's folder should be."""
    (tmp_path / "file").touch()
    registry = f"sqlite:///{tmp_path / 'file'}/registry.db"
    models = one_passes()
    report = run_of(tmp_path, monkeypatch, models, registry=registry)
    assert (report.status, report.exit_code) == ("failed", ExitCode.USAGE)
    assert (report.variants, models.served) == ([], [])
    assert report.error is not None
    assert "--no-promote" in report.error["hint"]
    measured = run_of(tmp_path, monkeypatch, models, promote=False, registry=registry)
    assert measured.exit_code == ExitCode.SUCCESS
