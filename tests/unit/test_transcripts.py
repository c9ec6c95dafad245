"""What people read of a run, as transcripts: terminal, CI summary, JUnit, model card, `verify`.

Where a change is meant, run it with WRITE_TRANSCRIPTS=1 to write them again.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from ci_reports import RUNS
from fake_run import judged_run
from sample_reports import gate_report, run_report, speed_gate_report, variant_report

from artifacts.ci import junit_xml, markdown_summary
from artifacts.evidence.verify import check_bundle
from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from eval_gates.gate_result import GateResult
from pipeline.cli.tables import print_run
from pipeline.cli.verify import print_folder

FOLDER = Path(__file__).with_name("transcripts")
LENGTHS = {"tokens": 512.0, "truncated": 0.5, "unclosed": 0.25}
NOTED = run_report(
    variants=[
        variant_report(
            gates=[
                gate_report(suspicious=True, noise_floor={"n": 32, "flips": 1}),
                gate_report(name="code", baseline_lengths=LENGTHS, candidate_lengths=LENGTHS),
                gate_report(
                    name="shares",
                    threshold=0.0,
                    margin="99 % recovery",
                    kept=0.99785,
                ),
            ],
            speed=[speed_gate_report(note="measured on a CPU", threshold=0.02)],
        )
    ]
)
_WORDS = re.compile("[a-z]+")
# What differs from run to run.
VARYING = {
    r"[0-9a-f]{64}": "DIGEST",
    r"\d{8}-\d{6}-\d+": "RUN",
    r"\d{4}-\d\d-\d\dT[\d:.+Z-]+": "TIME",
}


def printed(say: Callable[[], None]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        say()
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def terminal() -> str:
    runs = {**RUNS, "noted": NOTED}
    return "".join(f"### {n}\n{printed(lambda r=r: print_run(r))}\n" for n, r in runs.items())


def summary() -> str:
    return "".join(f"# {name}\n\n{markdown_summary(run)}\n" for name, run in RUNS.items())


def junit() -> str:
    return junit_xml(RUNS["fail"]).decode().replace("><", ">\n<") + "\n"


def judged(show: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        deployed = judged_run(Path(folder) / "store").bundle()
        text = show(deployed).replace(str(deployed), "FOLDER")
    for pattern, word in VARYING.items():
        text = re.sub(pattern, word, text)
    return text


def card() -> str:
    return judged(lambda folder: (folder / "README.md").read_text())


def verified() -> str:
    def show(folder: Path) -> str:
        (folder / "config.json").write_text("{}")
        return printed(lambda: print_folder(folder, check_bundle(folder), "none"))

    return judged(show)


TRANSCRIPTS = {
    "terminal.txt": terminal,
    "summary.txt": summary,
    "junit.xml": junit,
    "card.txt": card,
    "verify.txt": verified,
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_what_is_shown_is_in_the_transcript(name: str) -> None:
    if os.environ.get("WRITE_TRANSCRIPTS"):
        (FOLDER / name).write_text(TRANSCRIPTS[name]())
    assert TRANSCRIPTS[name]().splitlines() == (FOLDER / name).read_text().splitlines()


def test_a_new_column_is_shown_everywhere_by_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = GateResult.cells
    monkeypatch.setattr(GateResult, "cells", lambda *a: {**own(*a), "questions": str(a[0].n)})
    run = judged_run(tmp_path / "store")
    page = run_page(ReportedRun(run.report, run.store))
    shown = [terminal(), summary(), (run.bundle() / "README.md").read_text(), page]
    assert all("questions" in line for text in shown for line in header_rows(text))


def header_rows(text: str) -> list[str]:
    found = [
        line for line in text.splitlines() if {"gate", "difference"} <= set(_WORDS.findall(line))
    ]
    assert found
    return found
