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


def check_policy(
    name: str, recipe: list[str] | None, eval_data: Path | None, *, as_json: bool
) -> None:
    """Check a policy without a checkpoint, and print its gates' power with these questions.

    Raises UsageError as `check_power`, or for an invalid file.
    """
    from pipeline.environments.environment import Accelerator, identity
    from pipeline.environments.settings import load_settings
    from pipeline.plan.data_sources import SourceResolver, note_repeated_fields
    from pipeline.plan.power import check_power, policy_power, speed_power
    from pipeline.plan.resolved_options import DEFAULT_RECIPES, check_margins
    from pipeline.plan.speed_plan import check_own_workloads
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
            identity("evaluate", Accelerator.CPU, settings),
            settings.digests,
            progress,
        )
        counts = sources.counts(policy)
        power = policy_power(policy, recipes, counts) + speed_power(policy, len(recipes))
        if as_json:
            answer = {"schema_version": 1, "policy": policy.name, "alpha": policy.alpha}
            print_json(answer | {"gates": [asdict(gate) for gate in power]})
        else:
            print_power(power)
        note_repeated_fields(policy, sources, progress)
        check_power(policy, recipes, counts, progress)


def print_power(power: Sequence[GatePower]) -> None:
    """Print one line a gate, its chances to pass; and one a family, of all suites together."""
    from pipeline.plan.power import format_chance, joint_power

    for gate in power:
        print(gate.words)
    for family, (passes, usual) in joint_power(power).items():
        of_usual = f", {format_chance(usual)} of usual variants" if usual is not None else ""
        print(
            f"all suites, {family}: {format_chance(passes)} of variants that lose nothing "
            f"pass{of_usual}"
        )
