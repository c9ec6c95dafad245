"""`prepare task run`: a work item, read from its file. Executors start it on a node."""

from __future__ import annotations

import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pipeline.cli.options import parse_path
from pipeline.core.errors import InternalStageError, PrepareError, UsageError, raise_as
from pipeline.core.events import EventWriter, Progress, reserve_stdout_for_events
from pipeline.core.interruption import is_interruption
from pipeline.core.stage_record import WorkItem
from pipeline.core.store import Store

AnyTask = TypeVar("AnyTask", bound=WorkItem)

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run one work item; executors start this command on a node.",
)


@app.callback()
def task() -> None:
    """Keep `run` a subcommand."""


@app.command("run")
def run(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.json", show_default=False, parser=parse_path)
    ],
) -> None:
    """Run the work item in SPEC.json. Events go to stdout as JSON lines, all else to stderr.

    Example

      prepare task run STORE/runs/RUN/stages/baseline.screen.KEY.json
    """
    events = EventWriter(reserve_stdout_for_events())
    from pipeline.core.redaction import redact
    from pipeline.run.executors.stage_process import stage_in

    stage = stage_in(spec)
    try:
        if stage == "serving_task":
            run_serving_task(spec, events)
        elif stage == "describe":
            describe_node(spec)
        else:
            run_stage(spec, events)
    except Exception as error:
        if is_interruption(error):
            raise
        failure = error if isinstance(error, PrepareError) else unexpected(error, stage, spec)
        events.write({"event": "error", **failure.to_dict()})
        if failure is not error:
            print(redact(traceback.format_exc()), file=sys.stderr)  # which is the log
        raise typer.Exit(failure.exit_code) from error


def unexpected(error: Exception, stage: str, spec: Path) -> InternalStageError:
    """Return the error for an unexpected exception."""
    return InternalStageError(
        f"the stage '{stage}' failed unexpectedly: {type(error).__name__}: {error}",
        where=f"{spec.with_suffix('.log')} has the traceback",
        hint="this is a defect of prepare; please report it with that file",
    )


def run_stage(file: Path, events: Progress) -> None:
    """Run the one stage that the file describes."""
    from pipeline.core.private_files import private_umask
    from pipeline.core.stage_record import StageSpec
    from pipeline.stages.context import advance
    from pipeline.stages.stage_interpreter import with_interpreter

    spec = read_task(file, StageSpec)
    store = Store(Path(spec.store))
    with (
        # A registry may be a folder that others read.
        private_umask(store.root),
        working(file, store, events),
    ):
        advance(with_interpreter(spec, events), store, events)


def run_serving_task(file: Path, events: EventWriter) -> None:
    """Serve the model that the file describes, and run the stages that ask it."""
    from pipeline.core.private_files import private_umask
    from pipeline.run.serving_task import ServingTask
    from pipeline.run.serving_task_runner import run_serving_task

    task = read_task(file, ServingTask)
    store = Store(Path(task.store))
    with private_umask(store.root), working(file, store, events):
        run_serving_task(task, store, events)


def working(file: Path, store: Store, events: Progress) -> AbstractContextManager[object]:
    """Have `prepare gc` see that something is done for the run whose file it is, if it is one's."""
    run = file.absolute().parents[1]
    if run.parent != store.root.absolute() / "runs":
        return nullcontext()
    return store.in_use(events.note)


def describe_node(file: Path) -> None:
    """Write down what this machine is, where the file says."""
    from pipeline.run.executors.node_probe import NodeProbe, describe_here

    describe_here(read_task(file, NodeProbe))


def read_task(file: Path, shape: type[AnyTask]) -> AnyTask:
    """Return the file's work item.

    Raises:
        UsageError: it is not a task file of prepare.
        StageError: it is another prepare's.
    """
    from pipeline.core.untrusted import read_record
    from pipeline.run.executors.stage_process import refuse_of_others

    refuse_of_others(file)  # before its shape, which another prepare may not know
    with raise_as(
        UsageError,
        "the stage's spec cannot be read",
        file,
        "give a file that `prepare model` wrote into its run's stages folder",
        errors=(OSError, ValueError),
    ):
        return read_record(file, shape)
