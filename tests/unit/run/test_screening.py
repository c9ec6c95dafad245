"""`--screen`, which gates nothing, and `--until pass`, which gates from the smallest up."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import ONE, SERVING, TWO, FakeRun, equal, lost, policy
from pretend_stages import PretendModels
from some_attempt import attempts_in

from artifacts.evidence.verify import check_run
from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from artifacts.run_outcome import (
    headline,
    next_command,
    next_steps,
    outcome,
    screened_rows,
)
from pipeline.cli.tables import print_run
from pipeline.plan.compare import screening_policy
from prepare.errors import ExitCode, ServingError
from recipes.catalog import load_policy, policy_names
from recipes.policy import Policy

NATS = {"baseline": 0.5, ONE: 0.7, TWO: 0.6}
SPEED = {
    "ratio": {"min_ratio": 0.5, "workloads": ["short"]},
    "workloads": {
        "short": {
            "kind": "random",
            "input_tokens": 16,
            "output_tokens": 8,
            "arrivals": {"concurrency": 2},
            "seconds": 3,
        }
    },
}


def to_screen() -> Policy:
    asked = {**policy(margins={"fp8": 0.1, "int4": 0.1}).model_dump(), "speed": SPEED}
    return screening_policy(Policy.model_validate(asked))


def screened(root: Path, *, ablate: bool = False, **models: object) -> FakeRun:
    options = {"nats": NATS, "questions": 64, **models}
    pretended = PretendModels(lost(4), **options)  # type: ignore[arg-type]
    caches = {**SERVING, "baseline_kv_cache_dtype": "auto"} if ablate else SERVING
    made = FakeRun(
        root / "store",
        pretended,
        to_screen(),
        (ONE, TWO),
        serving=caches,
        screen=True,
        ablate=ablate,
    )
    made.run()
    return made


def test_every_variant_is_served_once_and_nothing_is_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = screened(tmp_path, seconds={ONE: 0.5})
    report = run.report
    assert report.exit_code == 0
    assert run.models.served == ["baseline", ONE, TWO]
    assert report.variants == []
    (attempt,) = attempts_in(run.store)
    assert (attempt.kind, set(attempt.trial.variants)) == ("screen", {ONE, TWO})
    assert not (run.root / "registry.db").exists()
    assert {stage.stage for stage in report.stages}.isdisjoint({"judge"})
    baseline, one, two = report.screened
    assert (baseline.effect and baseline.effect.nats, len(report.screened)) == (0, 3)
    assert one.effect is not None
    assert one.effect.nats == pytest.approx(0.2)
    assert two.effect is not None
    assert two.effect.nats == pytest.approx(0.1)
    assert one.output_tokens_per_s == pytest.approx(2 * (two.output_tokens_per_s or 0))
    assert "2 variants were screened" in headline(report)
    assert outcome(report) == "screened"
    assert "promote" not in " ".join([next_command(report), *next_steps(report)])
    print_run(report)
    shown = capsys.readouterr().out
    assert "0.200 +- 0.000" in shown
    assert "front" in shown
    page = run_page(ReportedRun(report, run.store))
    assert "0.200 +- 0.000" in page


def test_what_another_beats_in_all_three_is_not_on_the_front(tmp_path: Path) -> None:
    rows = screened_rows(screened(tmp_path).report.screened)
    places = {row["variant"]: row[""] for row in rows}
    assert places == {"baseline": "", ONE: "", TWO: "front"}


WEIGHTS, CACHE = f"{ONE}.kv-auto", "baseline.kv-fp8"


def test_weights_and_kv_cache_are_measured_alone(tmp_path: Path) -> None:
    run = screened(
        tmp_path, ablate=True, nats={**NATS, WEIGHTS: 0.65, f"{TWO}.kv-auto": 0.6, CACHE: 0.55}
    )
    assert sorted(run.models.served) == sorted(
        ["baseline", ONE, TWO, WEIGHTS, f"{TWO}.kv-auto", CACHE]
    )
    parts = {each.name: each for each in run.report.screened if each.is_part}
    assert set(parts) == {WEIGHTS, f"{TWO}.kv-auto", CACHE}
    for name, nats in ((WEIGHTS, 0.15), (CACHE, 0.05)):
        effect = parts[name].effect
        assert effect is not None
        assert effect.nats == pytest.approx(nats)
    rows = screened_rows(run.report.screened)
    assert {row["variant"] for row in rows if row[""] == "front"} <= {ONE, TWO}
    assert rows[0]["variant"] not in parts
    assert "2 variants were screened" in headline(run.report)


def test_a_cache_that_is_not_read_is_not_measured(tmp_path: Path) -> None:
    nats = {**NATS, WEIGHTS: 0.65, CACHE: NATS["baseline"]}
    models = PretendModels(equal, questions=64, nats=nats)
    caches = {**SERVING, "baseline_kv_cache_dtype": "auto"}
    run = FakeRun(tmp_path, models, to_screen(), (ONE,), serving=caches, screen=True, ablate=True)
    (part,) = [each for each in run.run().screened if each.name == CACHE]
    assert part.effect is None
    assert "not measured" in part.reason


def test_with_one_type_of_cache_no_part_is_served(tmp_path: Path) -> None:
    run = FakeRun(
        tmp_path, PretendModels(equal, nats=NATS), to_screen(), (ONE,), screen=True, ablate=True
    )
    assert [each.name for each in run.run().screened] == ["baseline", ONE]


def test_screened_again_nothing_runs(tmp_path: Path) -> None:
    run = screened(tmp_path)
    before, asked = run.report.screened, list(run.models.asked)
    assert run.run().screened == before
    assert run.models.asked == asked


def test_a_variant_that_fails_leaves_the_others(tmp_path: Path) -> None:
    report = screened(tmp_path, broken={ONE}).report
    _, one, two = report.screened
    assert one.effect is None
    assert "does not come up" in one.reason
    assert two.effect is not None
    assert report.exit_code == 0
    assert screened(tmp_path / "none", broken={ONE, TWO}).report.exit_code == ExitCode(1)
    with pytest.raises(ServingError):
        screened(tmp_path / "baseline", broken={"baseline"})


@pytest.mark.parametrize("name", policy_names())
def test_of_every_policy_conversations_alone_are_asked(name: str) -> None:
    found = screening_policy(load_policy(name))
    assert [suite.kind for suite in found.suites.values()] == ["fidelity"]
    assert found.cost is None


def gated(root: Path, loser: str | None = None) -> FakeRun:
    def score(variant: str, suite: str, number: int) -> float:
        return 0.0 if variant == loser else equal(variant, suite, number)

    made = FakeRun(root / "store", PretendModels(score), recipes=(ONE, TWO), until_pass=True)
    made.run()
    return made


def test_after_the_first_pass_none_is_made_and_all_count(tmp_path: Path) -> None:
    run = gated(tmp_path)
    one, two = run.report.variants
    assert (one.verdict, two.verdict) == ("pass", "skipped")
    assert {stage.variant for stage in run.report.stages}.isdisjoint({TWO})
    assert one.gates[0].alpha == pytest.approx(0.025)
    (check,) = check_run(run.report, run.store)
    assert check.differences == ()
    assert run.promote()["name"] == "model"


def test_what_fails_is_followed_by_the_next(tmp_path: Path) -> None:
    one, two = gated(tmp_path, ONE).report.variants
    assert (one.verdict, two.verdict) == ("fail", "pass")
