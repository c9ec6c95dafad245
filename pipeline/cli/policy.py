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

    from pipeline.plan.gate_power import GatePower
    from pipeline.plan.speed_power import PlannedGatePower

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Policies: what variants must show."
)

NameArgument = Annotated[str, argument("Policy name or YAML file.", metavar="NAME")]
POWER_HEADINGS = (
    *("suite", "tier", "family", "margin", "questions", "expected", "passed", "failed"),
    *("half lost", "drop seen"),
)
POWER_LEGEND = (
    "expected: questions until a decision; passed, failed: chances; all if nothing is lost. "
    "half lost: passed, if half of the margin is. drop seen: the smallest that fails in 80 % of "
    "runs."
)
SPEED_HEADINGS = ("claim", "tier", "at most", "fewest", "minutes", "passes if the truth is")
SPEED_LEGEND = (
    "minutes: of the most that are measured, with the starts of servers that alternate; - where "
    "the workload is a profile's. Throughput is taken to vary by {noise:g} % from load to load, "
    "and from start to start."
)
BENCHMARK_CLAIM = (
    "is about this list of questions and these answers to it (about: benchmark). Once all are "
    "asked it is a count without an error rate: a variant that on other such questions truly "
    "loses the margin passes in about half of all runs"
)


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
    from pipeline.plan.cost_power import check_costs_decidable, cost_powers
    from pipeline.plan.data_sources import SourceResolver
    from pipeline.plan.gate_power import (
        check_decidable,
        check_likely,
        joint_power,
        policy_power,
    )
    from pipeline.plan.independence import note_repeated_fields
    from pipeline.plan.resolved_options import DEFAULT_RECIPES, check_margins
    from pipeline.plan.speed_plan import check_own_workloads
    from pipeline.plan.speed_power import check_claims_decidable, claim_powers
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
        costs = cost_powers(policy, recipes, counts)
        if as_json:
            answer = {"schema_version": 1, "policy": policy.name, "alpha": policy.alpha}
            answer |= {"gates": [asdict(gate) for gate in power]}
            answer["joint"] = [asdict(joint) for joint in joint_power(power)]
            if policy.speed is not None:
                answer["speed"] = [claim.to_dict() for claim in claims]
            if policy.cost is not None:
                answer["cost"] = [asdict(cost) for cost in costs]
            print_json(answer)
        else:
            print_power(power)
            print_claims(claims)
            for cost in costs:
                print(cost.words)
        note_repeated_fields(policy, sources, progress)
        check_decidable(policy, recipes, counts, progress)
        check_likely(policy, recipes, counts)
        check_claims_decidable(policy, claims)
        check_costs_decidable(costs, progress)


def print_power(power: Sequence[GatePower]) -> None:
    """Print each gate's power, with a warning if it does not suffice."""
    from pipeline.plan.gate_power import joint_power

    print_table(POWER_HEADINGS, [power_row(gate) for gate in power])
    print(POWER_LEGEND)
    for joint in joint_power(power):
        whole, half = map(format_chance, (joint.chance_of_pass, joint.chance_of_pass_at_half))
        print(
            f"all suites, {joint.family}: each critical one passes and no supporting one fails in "
            f"{whole} of runs if nothing is lost, in {half} if half of each margin is"
        )
    for name in dict.fromkeys(gate.suite for gate in power if gate.about == "benchmark"):
        print(f"{name}: {BENCHMARK_CLAIM}")
    for gate in power:
        if gate.decidable is not True or gate.is_doubtful:
            print(f"{gate.suite}, {gate.family}: {gate.words}")


def print_claims(claims: Sequence[PlannedGatePower]) -> None:
    """Print each speed gate's power; nothing without one."""
    from eval_gates.speed.power import NOISE

    if not claims:
        return
    print_table(SPEED_HEADINGS, [claim_row(claim) for claim in claims])
    print(SPEED_LEGEND.format(noise=100 * NOISE))
    for claim in claims:
        starts = f"; at most {claim.starts} starts of servers" * bool(claim.starts)
        if claim.gpu_minutes is not None:
            starts += (
                f", {claim.gpu_minutes:.1f} GPU-minutes a variant; servers {claim.server_mode}"
            )
        print(f"speed {claim.gate}: {claim.claim}{starts}")


def claim_row(claim: PlannedGatePower) -> list[str]:
    """One claim's row under SPEED_HEADINGS."""
    ratios = not claim.gate.startswith("slo")
    chances = [
        f"{f'x {c.truth:.3g}' if ratios else f'{100 * c.truth:g} %'}: {format_chance(c.passes)} "
        f"after {c.units:.1f}"
        for c in claim.chances
    ]
    return [
        f"speed {claim.gate}",
        claim.tier,
        f"{claim.most} {claim.unit}",
        "cannot" if claim.fewest is None else f"{claim.fewest}",
        "-" if claim.minutes is None else f"{claim.minutes:.0f}",
        "; ".join(chances),
    ]


def power_row(gate: GatePower) -> list[str]:
    """One gate's row under POWER_HEADINGS; drops in points."""
    drop = gate.smallest_visible_drop
    return [
        gate.suite,
        gate.tier,
        gate.family,
        gate.margin,
        "not known yet" if gate.questions is None else f"{gate.questions}",
        f"about {gate.expected_questions:.0f}" if gate.decidable is not False else "-",
        "cannot" if gate.decidable is False else format_chance(gate.chance_of_pass),
        "-" if gate.decidable is False else format_chance(gate.chance_of_fail),
        "cannot" if gate.decidable is False else format_chance(gate.chance_of_pass_at_half),
        f"{100 * drop:.1f}" if drop is not None else "none" if gate.decidable is not None else "-",
    ]


def format_chance(chance: float | None) -> str:
    """Format a chance; only 1 is shown as 100 %."""
    if chance is None:
        return "-"
    return f"{100 * chance:.0f} %" if chance < 0.995 or chance == 1 else "> 99 %"
