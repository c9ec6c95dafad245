from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_run import RECIPE, SERVING, FakeRun, policy
from listener import Listener
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from artifacts.report.page import run_page
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_outcome import further_tables
from artifacts.run_record import RunReport
from eval_gates.attribution import AttributionReport
from recipes.policy import Policy

QUESTIONS = 96
WEIGHTS, CACHE = f"{RECIPE}.kv-auto", "baseline.kv-fp8"
TRAFFIC = Policy.model_validate(
    {
        "name": "p",
        "summary": "s",
        "suites": {"traffic": {"kind": "fidelity", "margins": {"fp8": 0.1}}},
    }
)
OTHER_CACHES = {**SERVING, "baseline_kv_cache_dtype": "auto"}


def losing(*losers: str, every: int = 3) -> Callable[[str, str, int], float]:
    return lambda variant, suite, number: float(not (variant in losers and number % every == 0))


def attributed(root: Path, *losers: str, every: int = 3, **more: object) -> FakeRun:
    models = PretendModels(losing(*losers, every=every), questions=QUESTIONS)
    options = {"serving": OTHER_CACHES, "ablate": True, **more}
    made = FakeRun(root / "store", models, TRAFFIC, (RECIPE,), **options)  # type: ignore[arg-type]
    made.run()
    return made


def only(run: FakeRun) -> AttributionReport:
    (variant,) = run.report.variants
    (found,) = variant.ablation
    return found


@pytest.fixture(scope="module")
def by_weights(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return attributed(tmp_path_factory.mktemp("weights"), RECIPE, WEIGHTS)


def test_a_loss_by_the_weights(by_weights: FakeRun) -> None:
    (variant,) = by_weights.report.variants
    found = only(by_weights)
    assert variant.verdict == "fail"
    assert (found.suite, found.baseline_kv, found.variant_kv) == ("traffic", "auto", "fp8")
    assert found.n == variant.gates[0].n < QUESTIONS  # no more than the verdict took
    assert found.weights == found.both
    assert found.weights.upper < 0 == found.kv_cache.difference == found.interaction.difference
    assert found.note == "queries are quantized, too"
    ((title, rows),) = further_tables(by_weights.report).items()
    assert title.startswith(f"{RECIPE}, traffic: ")
    assert title.endswith("queries are quantized, too")
    assert [row["change"].partition(",")[0] for row in rows] == [
        *("baseline", "weights alone", "KV cache alone", "both", "beyond their sum")
    ]
    assert rows[0]["score"] == "100.0 %"


def test_the_report_says_it(by_weights: FakeRun) -> None:
    page = run_page(RunEvidence(by_weights.report, by_weights.store))
    found = only(by_weights)
    assert f"{100 * found.weights.difference:.1f}".replace("-", "") in page
    assert "queries are quantized, too" in page


def test_a_loss_by_the_cache(tmp_path: Path) -> None:
    found = only(attributed(tmp_path, RECIPE, CACHE))
    assert found.kv_cache.upper < 0 == found.weights.difference


def test_a_loss_by_both_together(tmp_path: Path) -> None:
    found = only(attributed(tmp_path, RECIPE))
    assert found.interaction.difference == found.both.difference < 0


def test_no_verdict_changes_and_it_is_no_part_of_what_is_verified(by_weights: FakeRun) -> None:
    (check,) = check_run(by_weights.report, by_weights.store)
    assert (check.kept, check.computed, check.differences) == ("fail", "fail", ())
    assert RunReport.model_validate_json(by_weights.report.model_dump_json()) == by_weights.report


def test_run_again_nothing_is_asked_twice(by_weights: FakeRun) -> None:
    asked = list(by_weights.models.asked)
    before = only(by_weights)
    by_weights.run()
    assert by_weights.models.asked == asked
    assert only(by_weights) == before


def test_without_a_suite_of_kind_fidelity_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Listener, "note", lambda _, text: said.append(text))
    models = PretendModels(losing(RECIPE), questions=QUESTIONS)
    run = FakeRun(
        tmp_path / "store", models, policy(), (RECIPE,), serving=OTHER_CACHES, ablate=True
    )
    run.run()
    assert [each for each in said if "no suite of kind fidelity" in each]
    assert {who for who, _, _ in run.models.asked} == {"baseline", RECIPE}


def test_with_one_type_of_cache_there_is_nothing_to_attribute(tmp_path: Path) -> None:
    run = attributed(tmp_path, RECIPE, serving=SERVING)
    assert run.report.variants[0].verdict == "fail"
    assert run.report.variants[0].ablation == []
    assert {who for who, _, _ in run.models.asked} == {"baseline", RECIPE}


@pytest.mark.parametrize("serving", [SERVING, OTHER_CACHES])
def test_what_drafting_costs_is_not_told_as_the_weights_alone(
    tmp_path: Path, serving: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Listener, "note", lambda _, text: said.append(text))
    drafting = {"method": "ngram", "num_speculative_tokens": 4}
    run = attributed(tmp_path, RECIPE, WEIGHTS, serving={**serving, "speculative": drafting})
    (variant,) = run.report.variants
    said += [each.note for each in variant.ablation]
    assert any("speculative decoding" in each for each in said if "weights" in each)


def test_a_server_that_fails_leaves_the_verdict_alone(tmp_path: Path) -> None:
    models = PretendModels(losing(RECIPE), questions=QUESTIONS, broken={CACHE})
    run = FakeRun(
        tmp_path / "store",
        models,
        TRAFFIC,
        (RECIPE,),
        serving=OTHER_CACHES,
        ablate=True,
    )
    report = run.run()
    assert report.variants[0].verdict == "fail"
    assert report.variants[0].ablation == []
