"""Whether the available questions can decide a policy's gates: `prepare plan --policy NAME`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli.display import open_display
from pipeline.cli.tables import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.plan.power import GatePower
    from pipeline.plan.speed_power import SpeedPower


def check_policy(
    name: str, recipe: list[str] | None, eval_data: Path | None, *, as_json: bool
) -> None:
    """Check a policy without a checkpoint, and print its gates' power with these questions.

    Raises:
        UsageError: the file is invalid, a blocking suite could not pass even a variant that answers
            exactly as the baseline does, or a critical one would pass fewer than one in five
            variants that lose nothing.
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
