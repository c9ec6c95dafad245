"""`prepare lint`: checks a command line of vLLM's server against the locked vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption, ProfileOption, argument
from pipeline.cli.tables import errors_as_json, print_json, print_table
from pipeline.core.errors import ExitCode

if TYPE_CHECKING:
    from pipeline.lint.command_lint import LintReport

DEFAULT_GPU = "h100"  # if neither the profile nor this machine has a known GPU


def lint(
    command_line: Annotated[
        str,
        argument(
            "A command line, a Kubernetes manifest or a Compose file, in quotes.",
            metavar="'vllm serve ...'",
        ),
    ],
    profile: ProfileOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Check a command line of vLLM's server; nothing is run.

    It names options that the engine no longer has, that are already its default,
    that make it slower than the defaults, or that change answers.

    Examples

      prepare lint 'vllm serve org/name --scheduler-policy continuous --max-num-seqs 256'

      prepare lint "$(cat deployment.yaml)" --profile h100

    Exit codes: 0 the server starts, 1 error, 2 usage, 3 unexpected error,
    4 the server would refuse an option.
    """
    with errors_as_json(as_json):
        report = lint_command(command_line, profile)
        if as_json:
            print_json(report.to_dict())
        else:
            print_lint(report)
        raise typer.Exit(ExitCode.GATES_FAILED if report.fails else ExitCode.SUCCESS)


def lint_command(text: str, profile: str) -> LintReport:
    """Check it for the profile's machine; 'auto' is this machine's GPU, or an H100."""
    from pipeline.core.gpus import visible_gpus
    from pipeline.lint.command_lint import lint
    from recipes import catalog

    named = None if profile == "auto" else catalog.load_profile(profile)
    if named is not None and named.accelerator == "cpu":
        return lint(text, "cpu", None)
    names = [each.name for each in visible_gpus()] if named is None else named.gpu_name_contains
    gpus = [catalog.load_gpu(name) for name in catalog.gpu_names()]
    found = (gpu for name in names for gpu in gpus if name in gpu.driver_name)
    return lint(text, "cuda", next(found, catalog.load_gpu(DEFAULT_GPU)))


def print_lint(report: LintReport) -> None:
    """Print the findings, then the engine's defaults."""
    rows = [[each.argument, each.severity, each.what, each.hint] for each in report.findings]
    if rows:
        print_table(["argument", "", "what", "what to do"], rows)
    else:
        print("no findings")
    print(f"{report.version}, defaults as on {report.place}; by default:")
    for name, words in report.parameters.items():
        print(f"  {name.replace('_', ' ')}: {words}")
