"""`prepare tune`: how a model is served best, and what is wrong with a foreign command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption, ProfileOption, option
from pipeline.cli.tables import print_json, print_table
from pipeline.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pipeline.forecast.command_lint import Lint

LINTED_GPU = "h100"  # where neither the profile nor this machine says another

LintOption = Annotated[
    str | None,
    option(
        "--lint",
        "A command line of vLLM's server, in quotes: say what of it is gone, default or harmful.",
        metavar="'vllm serve ...'",
    ),
]


def tune(
    lint: LintOption = None,
    profile: ProfileOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Look at a foreign command line of vLLM's server; nothing is run.

    It names options that the engine no longer has and what takes their place, those
    that say what is the default already, those that make it slower than stock, and
    those that change answers. Defaults are those of the profile's kind of machine.

    Examples

      prepare tune --lint 'vllm serve org/name --scheduler-policy continuous --max-num-seqs 256'

      prepare tune --lint "$(cat serve.sh)" --profile h200 --json

    Exit codes: 0 it starts, 2 usage, 4 the server would refuse it.
    """
    if lint is None:
        raise UsageError("there is nothing to do", where="prepare tune", cure="add --lint '...'")
    found = lint_command(lint, profile)
    if as_json:
        print_json(found.to_dict())
    else:
        print_lint(found)
    raise typer.Exit(ExitCode.GATES_FAILED if found.fails else ExitCode.PROMOTED)


def lint_command(text: str, profile: str) -> Lint:
    """Look at it as on the machine of that profile; 'auto': on this one's GPU, or an H100."""
    from pipeline.core.gpus import visible_gpus
    from pipeline.forecast.command_lint import lint
    from recipes import catalog

    named = None if profile == "auto" else catalog.load_profile(profile)
    if named is not None and named.accelerator == "cpu":
        return lint(text, "cpu", None)
    names = [each.name for each in visible_gpus()] if named is None else named.gpu_name_contains
    gpus = [catalog.load_gpu(name) for name in catalog.gpu_names()]
    found = (gpu for name in names for gpu in gpus if name in gpu.driver_name)
    return lint(text, "cuda", next(found, catalog.load_gpu(LINTED_GPU)))


def print_lint(found: Lint) -> None:
    """For people: what was found, then what needs nothing."""
    rows = [[each.argument, each.severity, each.what, each.cure] for each in found.findings]
    if rows:
        print_table(["argument", "", "what", "what to do"], rows)
    else:
        print("nothing to say against it")
    print(f"{found.version}, defaults as on {found.place}; by default:")
    for lever, words in found.levers.items():
        print(f"  {lever.replace('_', ' ')}: {words}")
