"""A recheck that is interrupted, or killed between its questions, is continued."""

from __future__ import annotations

from typing import Any

import pytest
from fake_run import NAME
from pretend_recheck import BOTH, RECIPE, Machine, differences, loses

from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from artifacts.run_record import find_run
from pipeline.run.run import RunInterrupted
from prepare.errors import ExitCode


def interrupt_at(site: Machine, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """Press Ctrl-C at the start of that server."""
    bring_up = site.models.open

    def open_or_stop(name: str) -> dict[str, Any]:
        if len(site.models.served) == start - 1:
            raise KeyboardInterrupt
        return bring_up(name)

    monkeypatch.setattr(site.models, "open", open_or_stop)


# The variant starts twice, then its source, then the variant again.
@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_ctrl_c_at_any_start(site: Machine, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    site.upgrade()
    site.models.score = loses(*BOTH)
    with monkeypatch.context() as patched:
        interrupt_at(site, patched, start)
        with pytest.raises(RunInterrupted):
            site.recheck(on_fail="hold")
    assert find_run(site.store, "latest").exit_code == ExitCode.INTERRUPTED
    # Before its source starts, the variant has failed against the record.
    assert [record.stands for record in site.rechecks()] == [False] * (start > 2)
    assert site.registry.aliases(NAME)["champion"] == "1"
    outcome = site.recheck()
    assert (outcome.to_dict()["cell"], outcome.exit_code) == ("engine", ExitCode.GATES_FAILED)
    for run in outcome.runs:
        assert differences(site, run) == ()
    # What was asked before is not asked again.
    asked = [number for who, suite, number in site.models.asked if (who, suite) == (RECIPE, "code")]
    gates = [run.variants[0].quality[0] for run in outcome.runs]
    assert sum(asked) == max(gate.n for gate in gates)


def test_the_report_names_the_cause(site: Machine) -> None:
    site.upgrade()
    site.models.score = loses(*BOTH)
    outcome = site.recheck()
    for run in outcome.runs:
        assert run.recheck is not None
        page = run_page(ReportedRun(run, site.store))
        assert run.recheck.words in page
