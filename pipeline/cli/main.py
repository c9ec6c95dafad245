"""The `prepare` command: combines the subcommands and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pipeline.cli import (
    doctor,
    export,
    gate,
    gc,
    model,
    plan,
    promote,
    pull,
    push,
    recheck,
    registry,
    report,
    rollback,
    runs,
    serve,
    show,
    tune,
    verify,
)
from pipeline.cli.options import PATH, setting
from pipeline.cli.tables import print_json
from pipeline.cli.terminal import guard_streams
from pipeline.environments.settings_file import use_settings
from prepare import __version__
from prepare.errors import ExitCode, PrepareError, UsageError, explain
from prepare.interruption import interrupt_on_signals, is_interruption
from prepare.redaction import redact

WIDEST_HELP = 160  # columns, on a terminal that has them

app = typer.Typer(
    name="prepare",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Quantize a checkpoint, serve every variant, gate it against its baseline, "
    "and promote it only if it passes.",
    epilog="Start with: prepare model demo:smollm2-135m",
)
# In the order of the help.
for _module in (
    *(model, plan, gate, tune, verify, report, promote, rollback, pull, push, serve, export),
    *(recheck, runs, gc, show, doctor, registry),
):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name)(getattr(_module, _name))


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        print(f"prepare {__version__}")
        raise typer.Exit


@app.callback(context_settings={"max_content_width": WIDEST_HELP})
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show version.")
    ] = False,
    settings: Annotated[
        Path | None,
        setting(
            "--settings",
            "Settings file of this machine or site. Default: ~/.config/prepare/settings.yaml.",
            **PATH,
        ),
    ] = None,
) -> None:
    """Define the options of the whole command."""
    if settings is not None:
        context.with_resource(use_settings(settings))


def main(command: Callable[..., Any] = app) -> NoReturn:
    """Run the command line and exit with its code."""
    with guard_streams():
        interrupt_on_signals()
        try:
            check_encoding()
            # Outside its standalone mode the parser returns a command's exit code, and makes an
            # exit of an interruption.
            code = command(standalone_mode=False) or ExitCode.SUCCESS
            sys.stdout.flush()  # reports write errors below, not at the interpreter's end
            if code == ExitCode.INTERRUPTED:
                raise KeyboardInterrupt
            sys.exit(code)
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(report_error(error))


def check_encoding() -> None:
    """Raise UsageError if file names are not UTF-8, as workers and libraries expect them."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise UsageError(
            f"Python takes file names in {encoding} here, not in UTF-8",
            where="LC_ALL, LANG, PYTHONUTF8",
            hint="set PYTHONUTF8=1",
        )


def report_error(error: BaseException) -> int:
    """Print the error; return the exit code."""
    if isinstance(error, typer.Abort) or is_interruption(error):
        # An interruption inside an exec(), as when a dataclass is made, leaves a mark by which
        # CPython ends the process with SIGINT; the next exec clears it.
        exec("")  # noqa: S102
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    error = explain(error)
    if isinstance(error, PrepareError):
        if "--json" in sys.argv[1:]:
            from artifacts.run_record import SCHEMA_VERSION

            with contextlib.suppress(OSError):  # as when the disk is full
                print_json(
                    {"schema_version": SCHEMA_VERSION, "run": None, "error": error.to_dict()}
                )
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if hasattr(error, "show") and hasattr(error, "exit_code"):  # click's own errors
        error.show()
        return int(error.exit_code)
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="prepare-crash-", suffix=".log", delete=False
    ) as log:
        log.write(redact(traceback.format_exc()))
    print(
        f"error: unexpected {type(error).__name__}: {redact(str(error))}\n"
        f"  where: {log.name} has the traceback\n"
        "  hint:  this is a defect of prepare; please report it with that file",
        file=sys.stderr,
    )
    return ExitCode.UNEXPECTED


if __name__ == "__main__":
    main()
