"""`prepare tune`: how a model is served best, and what is wrong with a foreign command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    PATH,
    ExecutorOption,
    JsonOption,
    PolicyOption,
    ProfileOption,
    RegistryOption,
    StoreOption,
    TrustOption,
    argument,
    option,
)
from pipeline.cli.tables import errors_as_json, print_json, print_table
from pipeline.cli.tuning_tables import print_tuning
from pipeline.cli.verify import is_version, registered_folder
from pipeline.core.credentials import strip_credentials
from pipeline.core.errors import ExitCode, UsageError, from_dict

if TYPE_CHECKING:
    from pipeline.lint.command_lint import LintReport

LINTED_GPU = "h100"  # where neither the profile nor this machine says another

TunedArgument = Annotated[
    str | None,
    argument(
        "A folder, a Hub id (org/name, optionally @revision), demo:smollm2-135m, or NAME@ALIAS "
        "of the registry; also a quantized one.",
        metavar="CHECKPOINT",
        parser=strip_credentials,
    ),
]
WorkloadOption = Annotated[
    str | None,
    option(
        "--workload",
        "Name or YAML file of the load. Default: that of the policy's ratio of speed, or 'chat'.",
    ),
]
CandidatesOption = Annotated[
    str,
    option("--candidates", "Name or YAML file of what to try.", show_default=True),
]
ToOption = Annotated[
    Path | None,
    option("--to", "Write the tuned profile to this file, too.", **PATH),
]
LintOption = Annotated[
    str | None,
    option(
        "--lint",
        "A command line of vLLM's server, in quotes: say what of it is gone, default or harmful.",
        metavar="'vllm serve ...'",
    ),
]


def tune(
    checkpoint: TunedArgument = None,
    policy: PolicyOption = None,
    profile: ProfileOption = "auto",
    workload: WorkloadOption = None,
    candidates: CandidatesOption = "standard",
    to: ToOption = None,
    registry: RegistryOption = None,
    lint: LintOption = None,
    store: StoreOption = None,
    executor: ExecutorOption = None,
    as_json: JsonOption = False,
    yes_trust_remote_code: TrustOption = False,
) -> None:
    """Find the serving arguments that serve a declared load best, and confirm the gain.

    Candidates race at one load, a server each; losers are stopped early. The winner
    is then measured against stock (the engine's own defaults) on fresh servers with
    fresh prompts, as a claim with an error rate. Only a gain that is confirmed gives
    a profile, which `prepare model --profile` takes, gates and promotes.

    With --lint nothing is run: it names options of a foreign command line that the
    engine no longer has, that are its default already, that make it slower than
    stock, or that change answers.

    Examples

      prepare tune demo:smollm2-135m --policy demo

      prepare tune ./my-checkpoint --workload support --candidates mine.yaml --to tuned.yaml

      prepare tune --lint 'vllm serve org/name --scheduler-policy continuous --max-num-seqs 256'

    Exit codes: 0 a tuned profile (--lint: it starts), 1 error, 2 usage, 3 unexpected error,
    4 no gain (--lint: the server would refuse it), 5 undecided, 130 interrupted.
    """
    with errors_as_json(as_json):
        if (lint is None) == (checkpoint is None):
            raise UsageError(
                "there is nothing to tune" if lint is None else "a command line is linted alone",
                where="prepare tune",
                hint="name a checkpoint, or give a command line with --lint",
            )
        if lint is not None:
            found = lint_command(lint, profile)
            if as_json:
                print_json(found.to_dict())
            else:
                print_lint(found)
            raise typer.Exit(ExitCode.GATES_FAILED if found.fails else ExitCode.SUCCESS)
        from pipeline.environments.settings import load_settings
        from pipeline.run.tune import TuneRequest, run_tune

        version, source = None, checkpoint or ""
        if is_version(source):
            version, source = source, str(registered_folder(source, registry, store, None)[0])
        request = TuneRequest(
            checkpoint=source,
            version=version,
            policy=policy,
            profile=profile,
            workload=workload,
            candidates=candidates,
            trust_remote_code=yes_trust_remote_code,
            to=to.expanduser().absolute() if to else None,
        )
        with open_display(as_json=as_json) as progress:
            report = run_tune(request, load_settings(store, executor), progress)
        if as_json:
            print(report.model_dump_json(indent=1))
        else:
            print_tuning(report)
        if report.error is not None:
            print(f"error: {from_dict(report.error)}", file=sys.stderr)
        raise typer.Exit(report.exit_code or 0)


def lint_command(text: str, profile: str) -> LintReport:
    """Look at it as on the machine of that profile; 'auto': on this one's GPU, or an H100."""
    from pipeline.core.gpus import visible_gpus
    from pipeline.lint.command_lint import lint
    from recipes import catalog

    named = None if profile == "auto" else catalog.load_profile(profile)
    if named is not None and named.accelerator == "cpu":
        return lint(text, "cpu", None)
    names = [each.name for each in visible_gpus()] if named is None else named.gpu_name_contains
    gpus = [catalog.load_gpu(name) for name in catalog.gpu_names()]
    found = (gpu for name in names for gpu in gpus if name in gpu.driver_name)
    return lint(text, "cuda", next(found, catalog.load_gpu(LINTED_GPU)))


def print_lint(found: LintReport) -> None:
    """For people: what was found, then what needs nothing."""
    rows = [[each.argument, each.severity, each.what, each.hint] for each in found.findings]
    if rows:
        print_table(["argument", "", "what", "what to do"], rows)
    else:
        print("nothing to say against it")
    print(f"{found.version}, defaults as on {found.place}; by default:")
    for lever, words in found.parameters.items():
        print(f"  {lever.replace('_', ' ')}: {words}")
