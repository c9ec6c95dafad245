"""`prepare report`: one HTML file about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipeline.cli.options import PATH, JudgedRunArgument, StoreOption, option
from prepare.errors import UsageError, raise_as


def report(
    run: JudgedRunArgument = "latest",
    output: Annotated[
        Path | None,
        option("--output", "File to write. Default: report-RUN.html.", "-o", **PATH),
    ] = None,
    open_it: Annotated[bool, option("--open", "Open it in the browser.")] = False,
    with_conversations: Annotated[
        bool,
        option("--with-conversations", "Show the texts of your own conversations, too."),
    ] = False,
    store: StoreOption = None,
) -> None:
    """Write a report of a run as one HTML file that opens anywhere, with no network.

    It has the verdict, gates, plots, examples of changed answers, and all sources.
    It contains prompts and answers: give it only to those who may read them. A
    conversation (`kind: fidelity`) is shown by its figures, unless you ask for the text.

    Examples

      prepare report

      prepare report 20261121-0915 --output report.html --open

    Exit codes: 0 written, 1 error, 2 usage.
    """
    from artifacts.report.page import run_page
    from artifacts.report.reported_run import ReportedRun
    from artifacts.run_record import find_run
    from pipeline.environments.settings import load_settings

    opened = load_settings(store).open_store()
    evidence = ReportedRun(
        find_run(opened, run, judged=True), opened, with_conversations=with_conversations
    )
    page = run_page(evidence)
    name = f"report-{evidence.report.run}.html"
    file = (output or Path(name)).resolve()
    write_page(file, page)
    print(file)
    if open_it:
        import webbrowser

        webbrowser.open(file.as_uri())


def write_page(file: Path, page: str) -> None:
    """Write the page without unpaired surrogates, which UTF-8 lacks.

    UsageError: the file cannot be written.
    """
    with raise_as(
        UsageError,
        "the report cannot be written",
        f"--output {file}",
        "name a file in a folder that exists and that you may write",
    ):
        file.write_bytes(page.encode("utf-8", "replace"))
