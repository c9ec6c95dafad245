"""`prepare policy`: a policy's criteria, and whether the available questions can decide them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.display import open_display
from pipeline.cli.options import EvalDataOption, JsonOption, RecipeOption, argument
from pipeline.cli.tables import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.plan.power import GatePower
    from pipeline.plan.speed_power import SpeedPower

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Policies: what variants must show."
)

NameArgument = Annotated[str, argument("Policy name or YAML file.", metavar="NAME")]


@app.command("list")
def list_policies(as_json: JsonOption = False) -> None:
    """List the policies that the package carries.

    Example

      prepare policy list --json
    """
    from recipes import catalog

    found = [catalog.load_policy(name) for name in catalog.policy_names()]
    if as_json:
        print_json([policy.model_dump() for policy in found])
        return
    print_table(
        ["policy", "alpha", "suites", "what it asks"],
        [[p.name, f"{p.alpha:g}", ", ".join(p.suites), p.summary] for p in found],
    )


@app.command("show")
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show one policy with all its defaults filled in.

    Example

      prepare policy show default > my-policy.yaml
    """
    import yaml

    from recipes import catalog

    policy = catalog.load_policy(name)
    if as_json:
        print_json(policy.model_dump(exclude_none=True))
    else:
        print(yaml.safe_dump(policy.file_keys(), sort_keys=False), end="")


@app.command("check")
def check(
    name: NameArgument,
    recipe: RecipeOption = None,
    eval_data: EvalDataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a policy, and show its gates' power with the available questions.

    It exits with 2 if the file is invalid, if a blocking suite could not pass even a
    variant that answers exactly as the baseline does, or if a critical one would pass
    fewer than one in five variants that lose nothing.

    Examples

      prepare policy check default --eval-data ./questions

      prepare policy check my-policy.yaml --recipe fp8-dynamic --json
    """
    from pipeline.environments.environment import Accelerator, identity
    from pipeline.environments.settings import load_settings
    from pipeline.plan.data_sources import SourceResolver
    from pipeline.plan.independence import note_repeated_fields
    from pipeline.plan.power import check_power, joint_power, policy_power
    from pipeline.plan.resolved_options import DEFAULT_RECIPES, check_margins
    from pipeline.plan.speed_plan import check_own_workloads
    from pipeline.plan.speed_power import claim_powers
    from recipes import catalog
    from recipes.traffic_file import check_workload

    policy = catalog.load_policy(name)
    for own, workload in (policy.speed.workloads if policy.speed else {}).items():
        check_workload(workload, f"policy key speed.workloads.{own}", max_length=None)
    check_own_workloads(policy)
    recipes = [catalog.load_recipe(recipe) for recipe in recipe or DEFAULT_RECIPES]
    for one in recipes:
        check_margins(one, policy)
    settings = load_settings(None)
    with open_display(as_json=as_json) as progress:
        sources = SourceResolver(
            eval_data,
            # The same for every accelerator as far as the number of questions goes.
            identity("evaluate", Accelerator.CPU, settings),
            settings.digests,
            progress,
        )
        counts = sources.counts(policy)
        power = policy_power(policy, recipes, counts)
        claims = claim_powers(policy, len(recipes))
        if as_json:
            answer = {"schema_version": 1, "policy": policy.name, "alpha": policy.alpha}
            answer |= {"gates": [asdict(gate) for gate in power]}
            answer["joint"] = [asdict(joint) for joint in joint_power(power)]
            if policy.speed is not None:
                answer["speed"] = [claim.to_dict() for claim in claims]
            print_json(answer)
        else:
            print_power(power)
            print_claims(claims)
        note_repeated_fields(policy, sources, progress)
        check_power(policy, recipes, counts, progress)


def print_power(power: Sequence[GatePower]) -> None:
    """Print one line a gate: its chances to pass."""
    from pipeline.plan.power import format_chance, joint_power

    for gate in power:
        print(gate.words)
    for joint in joint_power(power):
        usual = ""
        if joint.usual_passes is not None:
            usual = f", {format_chance(joint.usual_passes)} of usual variants"
        print(
            f"all suites, {joint.family}: {format_chance(joint.passes)} of variants that lose "
            f"nothing pass{usual}"
        )


def print_claims(claims: Sequence[SpeedPower]) -> None:
    """Print one line a speed gate: its chances to pass, and what it takes."""
    from pipeline.plan.speed_power import NOISE

    for claim in claims:
        takes = f"; {claim.starts} starts of servers"
        if claim.minutes is not None:
            takes += f", about {claim.minutes:.0f} minutes"
        if claim.gpu_minutes is not None:
            takes += f", {claim.gpu_minutes:.0f} GPU-minutes a variant"
        print(f"{claim.words}; if starts and loads each vary by {100 * NOISE:g} %{takes}")
