"""The room that servers take."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.serving_arguments import ServingArguments
from pipeline.core.needs import Needs
from recipes.engine_arguments import count_gpus, count_nodes


def needs_to_serve(
    accelerator: str, sides: Sequence[ServingArguments], *, exclusive: bool = False
) -> Needs:
    """Room for one server after another with these arguments; on a CPU also for all at once.

    Args:
        sides: at least one.
        exclusive: whether their speed is measured.
    """
    arguments = [side.engine_arguments for side in sides]
    nodes = max(map(count_nodes, arguments))
    if accelerator != "cuda":
        return Needs(nodes=nodes, cpus="all", exclusive=exclusive)
    gpus = max(count_gpus(each) // count_nodes(each) for each in arguments)
    return Needs(nodes=nodes, gpus=gpus, exclusive=exclusive)
