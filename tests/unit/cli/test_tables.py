"""Results as people read them: what each kind of verdict shows, and that odd names do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_reports import (
    COMMAND,
    failed_variant_report,
    gate_report,
    run_report,
    speed_claim,
    stage_report,
    variant_report,
)

from artifacts.run_record import RunReport
from pipeline.cli.tables import (
    last_line,
    print_json,
    print_run,
    print_stages,
    print_table,
)
from pipeline.core.store import Store

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, report: RunReport) -> list[str]:
    """Lines that the report is printed as, blanks run together."""
    print_run(report)
    captured = capsys.readouterr()
    assert captured.err == ""
    return [" ".join(line.split()) for line in captured.out.splitlines() if line.strip()]


def test_a_promoted_variant(capsys: Capture) -> None:
    lines = shown(capsys, run_report())
    assert lines[0] == "demo:smollm2-135m (0123456789ab), policy demo, profile cpu"
    assert lines[1] == "variant weights gate baseline candidate difference verdict"
    assert lines[3] == (
        "fp8-dynamic 163.4 MB mmlu acc (3,511 of 14,042) 65.1 % 65.0 % "
        "-0.1 (> -0.4, margin -1) pass"
    )
    row = " ".join(lines[4:6])
    assert row.startswith("speed ratio.chat (5 blocks) 2,050 tokens/s 3,075 tokens/s x 1.50 (>")
    assert "fp8-dynamic: promoted: all 2 gates passed" in lines
    assert lines[-1] == "2 stages, 1 reused, 372 s. Next: prepare registry show smollm2-135m"
    assert not any("below the margin" in line for line in lines)  # passing needs no words


@pytest.mark.parametrize("verdict", ["fail", "undecided"])
def test_a_gate_that_did_not_pass_says_why(capsys: Capture, verdict: str) -> None:
    gates = [gate_report(), gate_report(suite="rouge", verdict=verdict, reason="too few of them")]
    variant = variant_report(
        gates=gates, verdict=verdict, promoted=False, reason=f"rouge is {verdict}"
    )
    lines = shown(capsys, run_report(variants=[variant]))
    [row] = [line for line in lines if line.startswith("rouge acc")]
    assert row.endswith(verdict)
    assert f"fp8-dynamic: {verdict}: rouge is {verdict}" in lines
    assert any(line.startswith("rouge: 65.0 %, the baseline 65.1 %; ") for line in lines)
    assert "Nothing was promoted: " in lines[-1]
    assert lines[-1].endswith("Next: prepare runs 20261121-100000-000001")


def test_a_gate_that_shows_little_says_so_where_it_passed(capsys: Capture) -> None:
    for threshold, is_told in ((0.02, True), (0.8, False)):
        claim = speed_claim(threshold=threshold, description="it is not broken")
        lines = shown(capsys, run_report(variants=[variant_report(speed=[claim])]))
        assert any("not broken" in each for each in lines) == is_told


def test_a_suspicious_pass_is_said_aloud(capsys: Capture) -> None:
    lines = shown(
        capsys, run_report(variants=[variant_report(gates=[gate_report(suspicious=True)])])
    )
    assert any(line.startswith("mmlu: ") and "suspicious" in line for line in lines)


def test_a_variant_without_gates_has_a_reason_and_no_row(capsys: Capture) -> None:
    lines = shown(capsys, run_report(variants=[variant_report(), failed_variant_report()]))
    start = lines.index("awq-w4a16: error: the worker of 'quantize' ended with exit code 137")
    assert lines[start + 1] == "where: /logs/worker.log"
    assert not any(line.startswith("awq-w4a16 ") for line in lines)


def test_a_variant_that_passed_and_was_not_preferred(capsys: Capture) -> None:
    second = variant_report(recipe="awq-w4a16", promoted=False, reason="registered, not preferred")
    lines = shown(capsys, run_report(variants=[variant_report(), second]))
    assert "awq-w4a16: pass: registered, not preferred" in lines


def test_a_speed_note_is_said_once(capsys: Capture) -> None:
    slow = speed_claim(note="measured on a CPU", verdict="fail", estimate=0.004)
    variants = [
        variant_report(speed=[slow]),
        variant_report(recipe="awq-w4a16", speed=[slow]),
    ]
    lines = shown(capsys, run_report(variants=variants))
    assert lines.count("speed: measured on a CPU") == 1
    assert sum("x 0.00 (> x" in line for line in lines) == 2


def test_what_the_cpu_had_the_profile_change_is_said(capsys: Capture) -> None:
    report = run_report()
    cpu_overrides = {"kv-cache-not-fp8": "this CPU [lacks] it"}
    report = report.model_copy(
        update={"command": {**report.command, "cpu_overrides": cpu_overrides}}
    )
    assert "CPU override kv-cache-not-fp8: this CPU [lacks] it" in shown(capsys, report)


def test_a_run_that_failed_before_it_had_variants(capsys: Capture) -> None:
    report = run_report(checkpoint=None, variants=[], stages=[], status="failed", exit_code=1)
    lines = shown(capsys, report)
    assert lines[0].startswith("demo:smollm2-135m, policy demo")
    assert lines[-1].startswith("0 stages, 0 reused, 372 s. Nothing was promoted: ")


@pytest.mark.parametrize(
    ("margin", "words"), [(0.01, "margin -1)"), (0.005, "margin -0.5)"), (0.07, "margin -7)")]
)
def test_margins_are_shown_in_full(capsys: Capture, margin: float, words: str) -> None:
    variant = variant_report(gates=[gate_report(threshold=-margin)])
    assert any(words in line for line in shown(capsys, run_report(variants=[variant])))


def test_lengths_of_answers_are_told(capsys: Capture) -> None:
    lengths = {"tokens": 512.0, "truncated": 0.5, "unclosed": 0.25}
    gates = [gate_report(baseline_lengths=lengths, candidate_lengths=lengths)]
    told = " ".join(shown(capsys, run_report(variants=[variant_report(gates=gates)])))
    assert "mmlu: 512 to 512 tokens an answer; cut off: 50.0 % to 50.0 %" in told
    assert "thoughts without an end: 25.0 % to 25.0 %" in told


def test_the_floor_is_told_once_a_suite(capsys: Capture) -> None:
    gates = [gate_report(noise_floor={"n": 32, "flips": 1})]
    variants = [variant_report(gates=gates), variant_report(recipe="awq-w4a16", gates=gates)]
    lines = shown(capsys, run_report(variants=variants))
    said = "mmlu: the baseline asked twice changed 1 of 32 scores"
    assert [line for line in lines if "asked twice" in line] == [said]


def test_brackets_are_no_markup(capsys: Capture) -> None:
    odd = "./models/[bold]v2[/italic]"
    gate = gate_report(suite="[red]here[/blue]", verdict="fail")
    variant = variant_report(
        gates=[gate],
        verdict="fail",
        promoted=False,
        reason="[link]it failed",
        speed=[speed_claim(note="[dim]note[/]")],
    )
    report = run_report(command=COMMAND | {"checkpoint": odd}, variants=[variant], run="[1]")
    text = "\n".join(shown(capsys, report))
    for words in (odd, "[red]here[/blue]", "[link]it failed", "[dim]note[/]", "runs [1]"):
        assert words in text


def test_without_a_terminal_there_are_no_escape_codes(capsys: Capture) -> None:
    print_run(run_report())
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 132


def test_next_step_names_what_there_is_to_look_at() -> None:
    assert "registry show" in last_line(run_report())
    assert "prepare runs 2" in last_line(run_report(variants=[failed_variant_report()]))


def test_stages_show_where_their_evidence_lies(capsys: Capture, tmp_path: Path) -> None:
    store = Store(Path("s"))
    stages = [
        stage_report(name="evaluate mmlu", stage="evaluate", key="e1", seconds=61.04),
        stage_report(name="serve", key=None, variant="baseline"),
        stage_report(status="failed", key="gone"),
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path)
        store.stage_folder("evaluate", "e1").mkdir(parents=True)
        print_stages(run_report(stages=stages), store, paths=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "evaluate mmlu fp8-dynamic ran 61.0 s" in lines
    assert "serve baseline ran 1.2 s" in lines
    assert "judge fp8-dynamic failed 1.2 s" in lines
    assert "evaluate mmlu, fp8-dynamic: s/stages/evaluate/e1" in lines
    assert not any("judge/gone" in line for line in lines)


def test_paths_can_be_copied_whole(capsys: Capture, tmp_path: Path) -> None:
    """From a stage's row, a reason and an error: a fold in the midst would be copied, too."""
    store = Store(tmp_path / ("s" * 150))
    store.stage_folder("evaluate", "e1").mkdir(parents=True)
    path = f"/{'a' * 200}/worker.log"
    error = {"kind": "StoreError", "message": "no", "where": f"{path}.2", "hint": ""}
    report = run_report(
        variants=[failed_variant_report(reason=f"it died\n  where: {path}")],
        stages=[stage_report(name="evaluate mmlu", stage="evaluate", key="e1")],
        status="failed",
        exit_code=1,
        error=error,
    )
    print_run(report, is_shown=True)
    print_stages(report, store, paths=True)
    lines = capsys.readouterr().out.splitlines()
    for whole in (path, f"{path}.2", str(store.stage_folder("evaluate", "e1"))):
        assert any(whole in line for line in lines)


def test_long_cells_are_folded_and_not_cut(capsys: Capture) -> None:
    print_table(["tag", "value"], [["prepare.serving", "x" * 300]])
    assert capsys.readouterr().out.count("x") == 300


def test_json_is_one_value(capsys: Capture) -> None:
    print_json({"a": ["ü", None]})
    assert json.loads(capsys.readouterr().out) == {"a": ["ü", None]}
