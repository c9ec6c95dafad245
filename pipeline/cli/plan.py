"""`prepare plan`: stages, sizes, time and power of the gates; or what fits on GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.capacity_tables import print_capacity
from pipeline.cli.display import open_display
from pipeline.cli.options import (
    ContextOption,
    EvalDataOption,
    GpuOption,
    GpusACopyOption,
    GpusOption,
    JsonOption,
    NameOption,
    PolicyOption,
    ProfileOption,
    RecipeOption,
    RegistryOption,
    ServedVariantOption,
    StoreOption,
    TrustOption,
    VariantOption,
    VerboseOption,
)
from pipeline.cli.policy import check_policy, print_power
from pipeline.cli.tables import print_json, print_table
from pipeline.core.credentials import strip_credentials
from pipeline.core.errors import ExitCode, UsageError


def plan(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            help="A folder, a Hub id, or demo:smollm2-135m. Without it --policy alone is checked.",
            metavar="[CHECKPOINT]",
            parser=strip_credentials,
        ),
    ] = None,
    recipe: RecipeOption = None,
    variant: VariantOption = None,
    served_variant: ServedVariantOption = None,
    profile: ProfileOption = "auto",
    policy: PolicyOption = None,
    name: NameOption = None,
    registry: RegistryOption = None,
    eval_data: EvalDataOption = None,
    store: StoreOption = None,
    gpus_a_copy: GpusACopyOption = None,
    gpu: GpuOption = None,
    gpus: GpusOption = 1,
    context: ContextOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Show what `prepare model` with the same options would do; nothing is run.

    Expected times are medians of the store's earlier stages, on this hardware and of
    models of a like size. Weights of more than 2 GB are hashed with --verbose only;
    without their digest it is not known which stages are cached. For each gate the plan
    shows in a line the chance to pass for a variant that loses nothing, and for the
    policy's usual one. If the run would be refused, the plan names the reason, reads no
    weights, and exits with the code of `prepare model`.

    With --gpu it shows instead whether the checkpoint and each variant fit on such
    GPUs, and their capacity there. It needs no such GPU. It reads config.json and the
    headers of the weights only, so a checkpoint on the Hub is not downloaded.

    Without a checkpoint it checks a policy, and shows its gates' power with the
    available questions.

    Examples

      prepare plan demo:smollm2-135m

      prepare plan ./my-checkpoint --recipe fp8-dynamic --json

      prepare plan org/name --variant ./name-FP8

      prepare plan org/name --gpu h100 --gpus 8 --context 32768

      prepare plan --policy my-policy.yaml --recipe fp8-dynamic --eval-data ./questions

    Exit codes: 0 it would begin, 2 it would be refused (as model), 1 and 3 errors.
    """
    if checkpoint is None:
        if policy is None:
            raise UsageError(
                "there is nothing to plan",
                where="CHECKPOINT",
                hint="name a checkpoint; or check a policy alone: prepare plan --policy NAME",
            )
        check_policy(policy, recipe, eval_data, as_json=as_json)
        return
    from artifacts.recorded_command import read_command
    from artifacts.run_outcome import serving_lines
    from pipeline.environments.settings import load_settings
    from pipeline.plan.resolved_options import ModelRequest
    from pipeline.run.plan_report import forecast

    if gpu is None and (gpus != 1 or context is not None):
        raise UsageError(
            "nothing is planned for these without a kind of GPU",
            where="--gpus, --context, or PREPARE_GPUS, PREPARE_CONTEXT",
            hint="name it, such as --gpu h100; or leave them out",
        )
    request = ModelRequest(
        checkpoint=checkpoint,
        recipes=tuple(recipe or ()),
        variants=tuple(variant or ()),
        served_variants=tuple(served_variant or ()),
        profile=profile,
        policy=policy,
        name=name,
        registry=registry,
        eval_data=eval_data,
        trust_remote_code=trust_remote_code,
        gpus_a_copy=gpus_a_copy,
    )
    if gpu is not None:
        from pipeline.plan.gpu_fit import answer

        capacity = answer(request, load_settings(store), gpu, gpus, context)
        if as_json:
            print_json(capacity.to_dict())
        else:
            print_capacity(capacity, verbose=verbose)
        raise typer.Exit(ExitCode.USAGE if capacity.refused else ExitCode.SUCCESS)
    with open_display(as_json=as_json) as progress:
        found = forecast(request, load_settings(store), progress, hash_all=verbose)
    if as_json:
        print_json(found.to_dict())
        raise typer.Exit(found.exit_code)
    for line in found.lines():
        print(line)
    if verbose:
        print_table(["stage", "variant", "state", "expected"], [s.row for s in found.stages])
        for line in serving_lines(read_command(found.choices.to_dict())):
            print(line)
        print("asked as: " + ", ".join(f"{name} {form}" for name, form in found.forms.items()))
        print_table(
            ["environment", "state", "size"],
            [
                [e.key, str(e.state), f"{e.size_bytes / 1e9:.1f} GB" if e.size_bytes else "-"]
                for e in found.environments
            ],
        )
    print_power(found.power)
    for line in found.last_lines():
        print(line)
    raise typer.Exit(found.exit_code)
