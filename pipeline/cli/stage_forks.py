"""What stages are forked from, on every machine: all that they import is imported here, once."""

from __future__ import annotations

import socket
import sys
from importlib import import_module
from pathlib import Path

import typer

from artifacts.stages import stage_names
from pipeline.cli import stage
from pipeline.cli.main import main
from pipeline.core.installation import this_prepare
from pipeline.run.executors.forks import serve


def serve_stages(control: socket.socket) -> None:
    """Run `prepare stage run TASK` in a fork for each request, until the other side is gone."""
    for name in ("context", *stage_names()):
        import_module(f"pipeline.stages.{name}")
    import_module("pipeline.core.foreign.record")
    import_module("pipeline.run.sitting")
    this_prepare()  # which a fork then need not find out
    serve(control, lambda: main(run_stage))


def run_stage(*, standalone_mode: bool) -> int:
    """Do what `prepare stage run TASK` does, without its parser, which takes longer than it.

    Args:
        standalone_mode: as the parser's, which is false: the exit code is returned.
    """
    try:
        stage.run(Path(sys.argv[-1]))
    except typer.Exit as end:
        return end.exit_code
    return 0


if __name__ == "__main__":
    serve_stages(socket.socket(fileno=int(sys.argv[1])))
