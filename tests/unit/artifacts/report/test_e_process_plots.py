"""The e-process of a report is the one that judged, computed again."""

from __future__ import annotations

import math

import pytest
from fake_run import FakeRun

from artifacts.report.e_process_plots import evidence_figures, path_of
from artifacts.report.figure import UniqueIds
from artifacts.report.run_evidence import RunEvidence
from eval_gates.gate_report import GateReport


def gate_of(made: FakeRun, suite: str) -> GateReport:
    return next(gate for gate in made.report.variants[0].gates if gate.suite == suite)


def test_it_is_the_path_that_was_judged(made: FakeRun) -> None:
    gate = gate_of(made, "mmlu")
    path = path_of(RunEvidence(made.report, made.store), "fp8-dynamic", gate)
    assert path is not None
    assert "as recorded" in path.note
    assert path.questions == [point.n for point in gate.e_process]
    assert path.for_pass == pytest.approx([point.log10_e_pass for point in gate.e_process])
    assert path.for_fail == pytest.approx([point.log10_e_fail for point in gate.e_process])


def test_it_crosses_the_line_where_the_gate_was_decided(made: FakeRun) -> None:
    gate = gate_of(made, "mmlu")
    path = path_of(RunEvidence(made.report, made.store), "fp8-dynamic", gate)
    assert path is not None
    needed = -math.log10(gate.alpha)
    assert gate.verdict == "pass"
    crossed = [n for n, e in zip(path.questions, path.for_pass, strict=True) if e >= needed]
    assert crossed[0] == gate.decided_at


def test_changed_answers_are_not_used(made: FakeRun) -> None:
    file = made.folder("evaluate", "fp8-dynamic") / "answers.jsonl"
    file.write_text(file.read_text().replace('"score": 1.0', '"score": 0.0', 1))
    evidence = RunEvidence(made.report, made.store)
    path = path_of(evidence, "fp8-dynamic", gate_of(made, "mmlu"))
    assert path is not None
    assert "as the run's record has it" in path.note
    assert evidence.missing == [
        "the answers of fp8-dynamic mmlu were changed since they were given"
    ]


def test_another_record_than_the_answers_give_is_told(made: FakeRun) -> None:
    gate = gate_of(made, "mmlu").model_copy(update={"decided_at": 1})
    path = path_of(RunEvidence(made.report, made.store), "fp8-dynamic", gate)
    assert path is not None
    assert "prepare verify" in path.note


def test_nothing_is_kept(made: FakeRun) -> None:
    made.store.discard("judge", made.folder("judge", "fp8-dynamic").name)
    gate = gate_of(made, "mmlu").model_copy(update={"e_process": []})
    assert path_of(RunEvidence(made.report, made.store), "fp8-dynamic", gate) is None


def test_one_figure_a_sequential_suite(made: FakeRun) -> None:
    figures = evidence_figures(RunEvidence(made.report, made.store), UniqueIds())
    assert [figure.title.partition(":")[0] for figure in figures] == ["mmlu", "humaneval", "rouge"]
    mmlu = figures[0]
    assert mmlu.layout["shapes"][0]["y0"] == pytest.approx(-math.log10(0.0225))
    assert {trace["name"] for trace in mmlu.data} == {
        f"{recipe}, {words}"
        for recipe in ("fp8-dynamic", "awq-w4a16")
        for words in ("for pass", "for fail", "decided")
    }
    assert len(mmlu.table.rows) == 2


def test_certainty_does_not_flatten_the_plot(made: FakeRun) -> None:
    """A benchmark that is answered whole ends at an infinite e-value."""
    figures = evidence_figures(RunEvidence(made.report, made.store), UniqueIds())
    humaneval = figures[1]
    assert humaneval.data[0]["customdata"][-1] == "certain"
    assert max(humaneval.data[0]["y"]) < 10
    assert humaneval.layout["yaxis"]["range"][1] < 5
    assert humaneval.table.rows[0][3] == "certain"


def test_a_blind_gate_is_undecided_however_the_path_ends(made: FakeRun) -> None:
    first, *others = made.report.variants
    insensitive = gate_of(made, "mmlu").model_copy(
        update={"verdict": "undecided", "reason": "it is insensitive"}
    )
    variant = first.model_copy(update={"gates": [insensitive]})
    report = made.report.model_copy(update={"variants": [variant, *others]})
    figure = evidence_figures(RunEvidence(report, made.store), UniqueIds())[0]
    assert figure.notes[-1] == "fp8-dynamic: the gate is undecided anyway: it is insensitive"
