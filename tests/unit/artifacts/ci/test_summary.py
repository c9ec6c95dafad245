"""The summary as a Markdown reader shows it, and that it never gets too large for GitHub."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from ci_reports import RUNS, saying_no
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sample_reports import failed_variant_report, gate_report, run_report, variant_report

from artifacts.ci.summary import LARGEST_BYTES, markdown_summary
from pipeline.core.untrusted.text import clip, markdown, one_line


def reader() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table").enable("strikethrough")


def text_of(children: Any) -> str:
    """What a reader sees; a span around a dollar sign keeps GitHub from reading mathematics."""
    return "".join(c.content for c in children if c.content not in ("<span>", "</span>"))


def shown(markdown: str) -> str:
    """The text that a reader sees, a line a block."""
    lines = []
    for token in reader().parse(markdown):
        if token.type == "inline":
            children: Any = token.children
            lines.append(text_of(children))
    return "\n".join(lines)


def rows(markdown: str) -> list[list[str]]:
    """The cells of the one table as they are shown."""
    found: list[list[str]] = []
    tokens = reader().parse(markdown)
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            found.append([])
        if before.type in ("th_open", "td_open"):
            children: Any = token.children
            found[-1].append(text_of(children))
    return found


def test_the_verdict_comes_first_then_what_to_do() -> None:
    lines = shown(markdown_summary(RUNS["fail"])).splitlines()
    assert lines[0] == "prepare: fail"
    assert lines[1] == "no variant passed, and at least one failed its gates"
    assert lines[2].startswith(
        "demo:smollm2-135m (0123456789ab), policy demo, profile cpu, run 2026"
    )
    assert lines[3] == "What to do next"
    assert lines.index("What to do next") < lines.index("variant") < lines.index("What blocks it")


def test_variants_down_and_gates_across() -> None:
    table = rows(markdown_summary(RUNS["fail"]))
    assert table[0] == [
        "variant",
        "verdict",
        "weights",
        "mmlu",
        "code",
        "rouge",
        "speed ratio.chat",
    ]
    failed, skipped = table[1:]
    assert failed[:3] == ["fp8-dynamic", "fail", "163.4 MB"]
    assert failed[3] == "fail: -0.14 points (lower bound -0.43, margin -1), n=3,511"
    assert failed[5].startswith("fail (advisory): ")
    assert failed[6] == "pass: x 1.50 (1.40 to 1.60) (x 1.40, at least 1)"
    assert skipped == ["awq-w4a16", "skipped", "not made", "-", "-", "-", "-"]


def test_what_the_cpu_had_the_profile_change_is_said() -> None:
    report = RUNS["fail"]
    command = {**report.command, "cpu_overrides": {"float32": "this CPU has no native bf16"}}
    lines = shown(markdown_summary(report.model_copy(update={"command": command}))).splitlines()
    assert "CPU override float32: this CPU has no native bf16" in lines


def test_a_promotion_names_its_version() -> None:
    table = rows(markdown_summary(RUNS["promoted"]))
    assert table[1][:2] == ["fp8-dynamic", "promoted, version 1"]
    assert "What blocks it" not in markdown_summary(RUNS["promoted"])


def test_a_recovery_margin_is_told_as_it_is_meant() -> None:
    gate = gate_report(threshold=0.0, margin="99 % recovery", recovery=0.9979)
    table = rows(markdown_summary(run_report(variants=[variant_report(gates=[gate])])))
    assert "99.8 % recovered, margin 99 % recovery" in table[1][3]
    nothing = gate.model_copy(update={"recovery": None})
    assert "nothing recovered" in markdown_summary(
        run_report(variants=[variant_report(gates=[nothing])])
    )


def test_every_reason_is_there_those_in_the_way_first() -> None:
    text = shown(markdown_summary(RUNS["fail"]))
    order = [
        "fp8-dynamic, mmlu: fail: lost 3 points, 100 % sure: too much",
        "fp8-dynamic, code: undecided: needs more questions",
        "What does not block",
        "fp8-dynamic, rouge (advisory): fail: worse summaries",
        "awq-w4a16, verdict: skipped: not needed: fp8-dynamic passed",
    ]
    assert sorted(order, key=text.index) == order


@pytest.mark.parametrize("run", sorted(RUNS))
def test_every_run_has_one(run: str) -> None:
    text = markdown_summary(RUNS[run])
    assert text.startswith("## prepare: ")
    assert text.endswith("\n")
    assert "More was left out" not in text


# --- texts that are no Markdown -----------------------------------------------------------------

HOSTILE = "a|b <script>x</script> `c` *d* [e](http://f) &amp; \\ | $x$ #1\n\n# heading\n- item"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
@example(HOSTILE)
@example("~~gone~~ __bold__ ![image](x)")
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    expected = clip(one_line(text), 200)
    assert shown(f"- x {markdown(text)} x\n").split() == ["x", *expected.split(), "x"]
    table = f"| a | b |\n| --- | --- |\n| {markdown(text)} x | y |\n"
    assert rows(table)[1] == [f"{expected} x".strip(), "y"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
@example(HOSTILE)
def test_no_reason_breaks_out_of_its_line(text: str) -> None:
    plain = run_report(exit_code=1, variants=[failed_variant_report(reason="plain")])
    other = run_report(
        exit_code=1, variants=[failed_variant_report(reason=text, recipe=text or "x")]
    )
    kinds = [[token.type for token in reader().parse(markdown_summary(r))] for r in (plain, other)]
    assert kinds[0] == kinds[1]


def test_a_hint_with_a_stray_backtick_marks_nothing() -> None:
    error = {"kind": "StoreError", "message": "w*", "where": "", "hint": "do `this and *that*"}
    text = shown(markdown_summary(run_report(exit_code=1, variants=[], error=error)))
    assert "do `this and *that*" in text


# --- how large it may be ------------------------------------------------------------------------


def many(count: int, reason: str) -> Any:
    """A run of one variant with so many gates that say no."""
    gate = gate_report(verdict="fail", reason=reason)
    gates = [gate.model_copy(update={"suite": f"suite-{number}"}) for number in range(count)]
    return run_report(exit_code=4, variants=[saying_no().model_copy(update={"gates": gates})])


def test_ten_thousand_long_reasons_stay_under_a_mebibyte() -> None:
    text = markdown_summary(many(10_000, "ä|long reason " * 5_000))
    size = len(text.encode())
    assert size < LARGEST_BYTES
    assert text.startswith("## prepare: fail")
    assert "What to do next" in text
    assert "More was left out here" in text
    assert size > 0.5 * LARGEST_BYTES  # and yet as much as there is room for


def test_ten_thousand_variants_too() -> None:
    variants = [saying_no().model_copy(update={"recipe": f"v{n}"}) for n in range(10_000)]
    text = markdown_summary(run_report(exit_code=4, variants=variants))
    assert 0.9 * LARGEST_BYTES < len(text.encode()) < LARGEST_BYTES
    assert text.count("\n| v") > 1000
    assert text.endswith("has everything.*\n")


@given(st.integers(min_value=-10, max_value=6000))
def test_any_limit_is_kept_with_whole_lines(limit: int) -> None:
    report = many(8, "reason " * 30)
    text = markdown_summary(report, limit)
    assert len(text.encode()) < max(limit, 1)
    assert text == "" or text.startswith("## prepare: fail\n")
    assert text == "" or text.endswith("\n")
    whole = markdown_summary(report)
    kept = re.sub(r"\n\*More was left out.*\n$", "", text)
    assert whole.startswith(kept)
