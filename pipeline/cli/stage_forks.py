"""What the local executor forks stages from: all that they import is imported here, once."""

from __future__ import annotations

import socket
import sys
from importlib import import_module

import typer

from artifacts.stages import stage_names
from pipeline.cli.main import app, main
from pipeline.run.executors.forks import serve


def serve_stages(control: socket.socket) -> None:
    """Run `prepare stage run TASK` in a fork for each request, until the other side is gone."""
    for name in ("context", *stage_names()):
        import_module(f"pipeline.stages.{name}")
    import_module("pipeline.core.foreign.record")
    import_module("pipeline.run.sitting")
    command = typer.main.get_command(app)
    serve(control, lambda: main(command))


if __name__ == "__main__":
    serve_stages(socket.socket(fileno=int(sys.argv[1])))
