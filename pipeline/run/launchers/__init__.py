"""Launchers have an engine start and restart the copies of a run, and follow it.

A run survives its launcher if the engine does.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from artifacts.requests import ModelRequest
from artifacts.run_record import RunReport, read_run
from pipeline.environments.settings import Settings
from pipeline.plan.choice import DEFAULT_RECIPES
from pipeline.run.copies import join_run, write_request
from pipeline.run.launchers.ray import RayLauncher
from pipeline.run.launchers.slurm import SlurmLauncher
from prepare.errors import StageError
from prepare.events import Progress
from prepare.own_command import own_command
from prepare.store import RUN_RECORD, RunFolders

POLL_S = 2.0
GRACE_S = 60.0  # as long as NFS may keep what another node has written from being seen


Launcher = SlurmLauncher | RayLauncher


def launch(
    request: ModelRequest,
    on: str,
    copies: int | None,
    run_id: str | None,
    settings: Settings,
    progress: Progress,
    *,
    retry: bool = False,
) -> RunReport:
    """Start copies of a run and follow it to its end.

    `copies` None means one an arm.

    UsageError: the engine refuses, or the run has another request. StageError: all copies ended
    before the run.
    """
    store = settings.open_store()
    name = run_id or datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    folder = RunFolders(store).make(name, is_new=run_id is None)
    if request.checkpoint is not None:
        write_request(folder, request, nodes=True)
    joined = join_run(request, name, store, retry=retry)
    if joined.ended is not None:
        return joined.ended
    asked = joined.request
    models = 1 + len(asked.recipes or DEFAULT_RECIPES) + len(asked.variants + asked.served_variants)
    launcher = (SlurmLauncher if on == "slurm" else RayLauncher)(settings, folder)
    try:
        progress.note(f"run {name}: {launcher.start(copies or models)}")
        again = own_command("model", "--run", name, "--on", on)
        progress.note(f"`{again}` follows it again")
        return _follow(launcher, settings, name, progress)
    finally:
        launcher.close()


def _follow(launcher: Launcher, settings: Settings, name: str, progress: Progress) -> RunReport:
    folder = settings.store / "runs" / name
    told = ""
    notes = 0
    gone = 0.0
    while True:
        report = read_run(folder) if (folder / RUN_RECORD).exists() else None
        if report is not None:
            for text in report.notes[notes:]:
                progress.note(text)
            notes = len(report.notes)
            if report.status in ("finished", "failed"):
                return report
        state = launcher.state()
        if state and state != told:
            progress.note(state)
        told = state
        gone = 0.0 if state else gone or time.monotonic()
        if gone and time.monotonic() - gone > GRACE_S:
            lost = "".join(f"; copy {n}: {why}" for n, why in launcher.lost.items())
            raise StageError(
                f"all copies of the run have ended, and the run has not{lost}",
                where=str(folder / "copies"),
                hint="read their logs there; the same command starts copies that go on from here",
            )
        time.sleep(POLL_S)
