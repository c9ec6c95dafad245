"""`prepare tune`: search for the fastest serving arguments of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    PATH,
    GpusACopyOption,
    JsonOption,
    PolicyOption,
    ProfileOption,
    RegistryOption,
    StoreOption,
    TrustOption,
    argument,
    option,
)
from pipeline.cli.tables import end, given, print_table
from pipeline.cli.verify import is_version, registered_folder
from prepare.credentials import strip_credentials

if TYPE_CHECKING:
    from artifacts.run_record import RunReport

TunedArgument = Annotated[
    str,
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
OutputOption = Annotated[
    Path | None,
    option("--output", "Also write the tuned profile to this file.", "-o", **PATH),
]


def tune(
    checkpoint: TunedArgument,
    policy: PolicyOption = None,
    profile: ProfileOption = "auto",
    workload: WorkloadOption = None,
    candidates: CandidatesOption = "standard",
    output: OutputOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    gpus_a_copy: GpusACopyOption = None,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Find the serving arguments that serve a declared load best, and confirm the gain.

    Candidates are screened at one load, each on its own server and added to the best so
    far. The winner is then measured against the engine's defaults, on fresh
    servers with fresh prompts, in a gate with an error rate. Only a confirmed gain
    gives a profile. `prepare model --profile` gates and promotes with it.

    Examples

      prepare tune demo:smollm2-135m --policy demo

      prepare tune ./my-checkpoint --workload support --candidates mine.yaml -o tuned.yaml

    Exit codes: 0 a tuned profile, 1 error, 2 usage, 3 unexpected error, 4 no gain,
    5 undecided, 130 interrupted.
    """
    from pipeline.environments.settings import load_settings
    from pipeline.run.tune import TuneRequest, run_tune

    version, source = None, checkpoint
    if is_version(source):
        version, source = source, str(registered_folder(source, registry, store, None)[0])
    request = TuneRequest(
        checkpoint=source,
        version=version,
        policy=policy,
        profile=profile,
        workload=workload,
        candidates=candidates,
        trust_remote_code=trust_remote_code,
        gpus_a_copy=gpus_a_copy,
        output=output.expanduser().absolute() if output else None,
    )
    with open_display(as_json=as_json) as progress:
        report = run_tune(request, load_settings(store), progress)
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        print_tuning(report, store)
    end(report.error, report.exit_code or 0)


def print_tuning(report: RunReport, store: Path | None) -> None:
    """Print screening, confirmation and the next step."""
    if (tuning := report.tuning) is None:
        return
    rows = [
        [
            each.name,
            f"{each.output_tokens_per_s:,.1f}" if each.output_tokens_per_s is not None else "",
            f"{each.ratio_to_defaults:.3f}" if each.ratio_to_defaults is not None else "",
            each.outcome,
            each.reason,
        ]
        for each in tuning.screening
    ]
    print_table(["candidate", "tokens/s", "of defaults", "", "why"], rows)
    if tuning.verdict is None:
        return
    print("the screening chose the winner; its numbers are no evidence")
    who = tuning.winner or "no candidate"
    print(f"{who} against the defaults under {tuning.workload}: {tuning.verdict}: {tuning.reason}")
    if tuning.profile is None:
        print("no gain is confirmed, so there is no tuned profile")
        return
    options = report.options
    checkpoint = options.checkpoint or "CHECKPOINT"
    if options.version:
        checkpoint = f"SOURCE_OF_{options.version} --recipe ITS_RECIPE"
    print(f"at least {tuning.min_gain:.3f} of the defaults' tokens/s; profile {tuning.profile}")
    print(f"Next: prepare model {checkpoint} --profile {tuning.profile}{given(store)}")
