"""`--screen`, which gates nothing, and `--until pass`, which gates from the largest down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from artifacts.run_record import report_unjudged
from pipeline.cli.tables import print_run
from pipeline.plan.screening_plan import screening_policy
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


def test_pairs_are_the_parts_of_each_other(tmp_path: Path) -> None:
    """Weights with the baseline's cache are a pair already: they are served once."""
    one_byte, two_bytes = f"{ONE}.kv-fp8", f"{ONE}.kv-auto"
    nats = {"baseline": 0.5, one_byte: 0.7, two_bytes: 0.65, CACHE: 0.55}
    models = PretendModels(lost(4), nats=nats, questions=64)
    caches = {**SERVING, "baseline_kv_cache_dtype": "auto"}
    run = FakeRun(
        tmp_path / "store",
        models,
        to_screen(),
        (ONE,),
        serving=caches,
        kv=("fp8", "auto"),
        screen=True,
        ablate=True,
    )
    run.run()
    assert sorted(models.served) == sorted(["baseline", one_byte, two_bytes, CACHE])
    arms = {arm.name: arm for arm in run.report.screened}
    lost_nats = {name: arm.effect.nats for name, arm in arms.items() if arm.effect is not None}
    assert lost_nats == pytest.approx(
        {"baseline": 0.0, one_byte: 0.2, two_bytes: 0.15, CACHE: 0.05}
    )
    assert [name for name, arm in arms.items() if arm.is_part] == [CACHE]


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


RUNGS = ("third", TWO, ONE)  # by size, the smallest last
SIZES = {"third": 300, TWO: 200, ONE: 100}


def descending(root: Path, *bad: str, **models: Any) -> FakeRun:
    """`--until pass` over three variants, named from the smallest up."""

    def score(variant: str, suite: str, number: int) -> float:
        return 0.0 if variant in bad else equal(variant, suite, number)

    made = FakeRun(
        root / "store",
        PretendModels(score, **models),
        recipes=tuple(reversed(RUNGS)),
        until_pass=True,
        sizes=SIZES,
    )
    made.run()
    return made


def verdicts_of(run: FakeRun) -> dict[str, str]:
    return {variant.recipe: variant.verdict for variant in run.report.variants}


def test_the_smallest_of_those_that_pass_is_promoted(tmp_path: Path) -> None:
    run = descending(tmp_path)
    assert verdicts_of(run) == dict.fromkeys(RUNGS, "pass")
    assert {variant.gates[0].alpha for variant in run.report.variants} == {0.05}
    assert [served for served in run.models.served if served != "baseline"] == list(RUNGS)
    assert all(check.differences == () for check in check_run(run.report, run.store))
    assert run.promote()["champion"] == ONE


@pytest.mark.parametrize("babbling", [set[str](), {TWO}], ids=["fails", "is broken"])
def test_nothing_is_asked_below_one_that_does_not_pass(tmp_path: Path, babbling: set[str]) -> None:
    run = descending(tmp_path, TWO, babbling=babbling)
    assert verdicts_of(run) == {"third": "pass", TWO: "fail", ONE: "skipped"}
    assert run.asked(ONE) == 0
    assert ONE not in {stage.variant for stage in run.report.stages}
    assert run.promote()["champion"] == "third"


def test_an_error_ends_it_as_a_failed_gate_does(tmp_path: Path) -> None:
    run = descending(tmp_path, unquantizable={"third"})
    assert verdicts_of(run) == {"third": "error", TWO: "skipped", ONE: "skipped"}


def test_the_same_variants_in_no_order_are_another_attempt(tmp_path: Path) -> None:
    run = descending(tmp_path)
    run.until_pass = False
    run.run()
    for variant in run.report.variants:
        assert variant.gates[0].alpha == pytest.approx(0.05 / len(RUNGS))
    assert {variant.history.attempt for variant in run.report.variants if variant.history} == {2}


def test_a_verdict_without_those_before_it_is_found(tmp_path: Path) -> None:
    """As a forger would write it: the larger variant's failure is told as skipped."""
    run = descending(tmp_path)
    report = run.report
    first, *others = report.variants
    unjudged = report_unjudged(first.recipe, "skipped", "not asked", None)
    stages = [stage for stage in report.stages if stage.variant != first.recipe]
    forged = report.model_copy(update={"variants": [unjudged, *others], "stages": stages})
    found = {check.recipe: check.differences for check in check_run(forged, run.store)}
    assert set(found) == {TWO, ONE}
    assert all(f"'{first.recipe}' comes before it" in told[-1] for told in found.values())
