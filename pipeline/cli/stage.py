"""`prepare stage run`: one stage from its spec; what every executor runs, on any machine."""

from __future__ import annotations

import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import parse_path
from pipeline.core.errors import PrepareError, UnexpectedStageError, UsageError, raise_as

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run a single stage; what `prepare model` runs for each step.",
)


@app.callback()
def stage() -> None:
    """Keep `run` a subcommand."""


@app.command("run")
def run(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.json", show_default=False, parser=parse_path)
    ],
) -> None:
    """Run the stage that SPEC.json describes; events go to stdout as JSON lines.

    Example

      prepare stage run STORE/runs/RUN/stages/baseline.coherence.KEY.json
    """
    from pipeline.core.credentials import hide
    from pipeline.core.events import EventWriter
    from pipeline.core.foreign.record import read_record
    from pipeline.core.private_files import keep_private
    from pipeline.core.stage_record import StageSpec
    from pipeline.stages.context import advance

    events = EventWriter(sys.stdout.fileno())
    try:
        with raise_as(
            UsageError,
            "the stage's spec cannot be read",
            spec,
            "give a file that `prepare model` wrote into its run's stages folder",
            errors=(OSError, ValueError),
        ):
            described = read_record(spec, StageSpec)
        # A registry may be a folder that others read.
        with nullcontext() if described.stage == "promote" else keep_private():
            advance(described, events)
    except PrepareError as error:
        events.write({"event": "error", **error.to_dict()})
        raise typer.Exit(error.exit_code) from error
    except Exception as error:
        unexpected = UnexpectedStageError(
            f"the stage '{described.stage}' failed unexpectedly: {type(error).__name__}: {error}",
            where=f"{spec.with_suffix('.log')} has the traceback",
            cure="this is a defect of prepare; please report it with that file",
        )
        events.write({"event": "error", **unexpected.to_dict()})
        print(hide(traceback.format_exc()), file=sys.stderr)  # which is the log
        raise typer.Exit(unexpected.exit_code) from error
