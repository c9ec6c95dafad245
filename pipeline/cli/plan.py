"""`prepare plan`: stages, sizes, time and power of the gates; or what fits on GPUs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from artifacts.requests import ModelRequest
from pipeline.cli.display import open_display
from pipeline.cli.options import (
    ContextOption,
    GpuOption,
    GpusOption,
    JsonOption,
    StoreOption,
    VerboseOption,
    asks,
)
from pipeline.cli.tables import print_json, print_table
from pipeline.environments.definition import SUITE_ASKER
from prepare.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.preflight.chances import GatePower
    from pipeline.preflight.gpu_fit import CapacityPlan


NOT_PLANNED = ("promote", "sign", "ablate", "screen", "remeasure")


def check_policy(request: ModelRequest, name: str, *, as_json: bool) -> None:
    """Check a policy without a checkpoint, and print its gates' power with that profile.

    UsageError: as `check_power` and `find_speed_gates`, or an invalid file.
    """
    from eval_gates.statistics.multiplicity import gate_level
    from pipeline.environments.environment import identity
    from pipeline.environments.settings import load_settings
    from pipeline.plan.choice import DEFAULT_RECIPES, check_margins, load_made_recipe
    from pipeline.plan.data_sources import (
        SourceResolver,
        check_known_clusters,
        note_repeated_fields,
    )
    from pipeline.plan.serving_profile import load_named_profile
    from pipeline.preflight.power import check_power, policy_power
    from pipeline.preflight.speed_power import speed_power
    from pipeline.preflight.survey import refuse
    from recipes import catalog
    from recipes.accelerator import Accelerator
    from recipes.rungs import Rung
    from recipes.traffic_file import check_workload

    policy = catalog.load_policy(name)
    for own, workload in (policy.speed.workloads if policy.speed else {}).items():
        check_workload(workload, f"policy key speed.workloads.{own}", max_length=None)
    served = load_named_profile(request.profile)
    names = request.recipes or DEFAULT_RECIPES
    recipes = [load_made_recipe(Rung.parse(name)) for name in names]
    for one in recipes:
        check_margins(one, policy)
    settings = load_settings(None)
    with open_display(as_json=as_json) as progress:
        sources = SourceResolver(
            request.eval_data,
            identity(SUITE_ASKER, Accelerator.CPU, settings),
            settings.digests,
            progress,
        )
        refuse(sources.faults(policy))
        known = sources.known_of(policy)
        note_repeated_fields(policy, sources, progress)
        sources.note_remarks(policy)
        level = gate_level(
            policy.alpha, policy.attempts, len(recipes), in_sequence=request.until_pass
        )
        check_known_clusters(policy, sources, progress)
        check_power(policy, recipes, known, level)
        families = [recipe.family for recipe in recipes]
        power = policy_power(policy, recipes, known, level) + speed_power(
            policy, served, level, families=families
        )
        if as_json:
            answer = {"schema_version": 1, "policy": policy.name, "alpha": policy.alpha}
            print_json(answer | {"gates": [asdict(gate) for gate in power]})
        else:
            print_power(power)


def print_power(power: Sequence[GatePower]) -> None:
    """Print the chances of each gate and family."""
    from pipeline.preflight.chances import format_chance
    from pipeline.preflight.power import RATIO, joint_power, promotion_power

    for words in dict.fromkeys(gate.words for gate in power):
        print(words)
    for family, (passes, usual) in joint_power(power).items():
        of_usual = f", {format_chance(usual)} of usual variants" if usual is not None else ""
        print(
            f"all suites, {family}: {format_chance(passes)} of variants that lose nothing "
            f"pass{of_usual}"
        )
    if any(gate.family is None for gate in power):
        for family, chances in promotion_power(power).items():
            pairs = zip(chances, RATIO, strict=True)
            shown = ", ".join(
                f"{format_chance(chance)} at a true ratio of {ratio:.2f}" for chance, ratio in pairs
            )
            print(f"promotion, {family}, all suites and speed: {shown}")


def print_capacity(plan: CapacityPlan, *, verbose: bool = False) -> None:
    """Print each variant's fits on GPUs."""
    from pipeline.preflight.survey import line

    site = plan.gpus
    model = plan.gpus.model
    number = plan.gpus_a_copy
    print(
        f"{model.source.ref}: {model.shape.architecture}, {model.parameters() / 1e9:,.2f} B "
        f"parameters, {decimal(model.source.weights_bytes)}, context {model.shape.context:,}\n"
        f"{site.number} x {site.gpu.name} ({site.gpu.memory_gib:.1f} GiB each, of which "
        f"{100 * site.engine.utilization:.0f} % are used); {site.engine.source}; sequences of "
        f"{site.context:,} tokens"
    )
    fits = plan.fits if verbose else plan.chosen()
    print_table(
        [
            *("variant", "GPUs a copy", "copies", "weights a GPU", "cache a GPU"),
            *("tokens a copy", "sequences a copy", "answer"),
        ],
        [
            [
                *(fit.variant, str(fit.gpus), str(fit.copies), decimal(fit.weights_bytes)),
                decimal(fit.cache_bytes),
                "not known" if fit.tokens is None else f"{fit.tokens:,}",
                "not known" if fit.sequences is None else f"{fit.sequences:,}",
                fit.answer,
            ]
            for fit in fits
        ],
    )
    experts = any(fit.expert_parallel for fit in plan.chosen())
    print(
        f"a run serves each model on {number} GPU{'s' if number > 1 else ''}"
        + (" with --enable-expert-parallel" if experts else "")
        + "; --gpus-a-copy sets another number"
    )
    for fit in fits:
        if fit.reason:
            hint = f"; hint: {fit.hint}" if fit.hint else ""
            print(f"{fit.variant} on {fit.gpus}: {fit.answer}: {fit.reason}{hint}")
    for fault in plan.refused:
        print(f"would be refused: {line(fault)}")
    for note in plan.notes:
        print(f"note: {note}")
    print(f"disk: {decimal(plan.disk_bytes())} for the checkpoint and its variants")


@asks(ModelRequest, without=NOT_PLANNED)
def plan(
    request: ModelRequest,
    store: StoreOption = None,
    gpu: GpuOption = None,
    gpus: GpusOption = 1,
    context: ContextOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what `prepare model` with the same options would do; nothing is run.

    Expected times are medians of the store's earlier stages, on this hardware and of
    this checkpoint. Weights of more than 2 GB are hashed with --verbose only;
    without their digest it is not known which stages are cached. For each gate the plan
    shows in a line the chance to pass for a variant that loses nothing, and for the
    policy's usual one. If the run would be refused, the plan names the reason, reads no
    weights, and exits with the code of `prepare model`.

    With --gpu it shows instead whether the checkpoint and each variant fit on such
    GPUs, and their capacity there. It needs no such GPU. It reads config.json and the
    headers of the weights only, so a checkpoint on the Hub is not downloaded.

    Without a checkpoint it checks a policy, and shows its gates' power with the
    available questions and that profile.

    Examples

      prepare plan demo:smollm2-135m

      prepare plan ./my-checkpoint --recipe fp8-dynamic --json

      prepare plan org/name --recipe fp8-dynamic --recipe awq-w4a16 --until pass

      prepare plan org/name --variant ./name-FP8

      prepare plan org/name --gpu h100 --gpus 8 --context 32768

      prepare plan --policy my-policy.yaml --recipe fp8-dynamic --eval-data ./questions

    Exit codes, as of model: 0 it would begin, 2 refused by options, files or this
    machine, 1 the Hub or a registry does not answer, 3 unexpected error.
    """
    if request.checkpoint is None:
        if request.policy is None:
            raise UsageError(
                "there is nothing to plan",
                where="CHECKPOINT",
                hint="name a checkpoint; or check a policy alone: prepare plan --policy NAME",
            )
        check_policy(request, request.policy, as_json=as_json)
        return
    from artifacts.run_outcome import serving_lines
    from pipeline.environments.settings import load_settings
    from pipeline.run.plan_report import forecast

    if gpu is None and (gpus != 1 or context is not None):
        raise UsageError(
            "nothing is planned for these without a kind of GPU",
            where="--gpus, --context, or PREPARE_GPUS, PREPARE_CONTEXT",
            hint="name it, such as --gpu h100; or leave them out",
        )
    if gpu is not None:
        from pipeline.preflight.gpu_fit import answer

        capacity = answer(request, load_settings(store), gpu, gpus, context)
        if as_json:
            print_json(capacity.to_dict())
        else:
            print_capacity(capacity, verbose=verbose)
        raise typer.Exit(ExitCode.USAGE if capacity.refused else ExitCode.SUCCESS)
    with open_display(as_json=as_json) as progress:
        report = forecast(request, load_settings(store), progress, hash_all=verbose)
    if as_json:
        print_json(report.to_dict())
        raise typer.Exit(report.exit_code)
    for line in report.lines():
        print(line)
    if verbose:
        print_table(["stage", "variant", "state", "expected"], [s.row for s in report.stages])
        for line in serving_lines(report.choices.resolved()):
            print(line)
        print("asked as: " + ", ".join(f"{name} {form}" for name, form in report.forms.items()))
        print_table(
            ["environment", "state", "size"],
            [
                [e.key, str(e.state), decimal(e.size_bytes) if e.size_bytes else "-"]
                for e in report.environments
            ],
        )
    print_power(report.power)
    for line in report.last_lines():
        print(line)
    raise typer.Exit(report.exit_code)
