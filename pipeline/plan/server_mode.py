"""How both sides of a speed ratio are served, where the profile says auto.

Two servers that are up are compared without restarts, on the same GPUs, so that neither a start nor
a GPU's own speed changes between their loads. Each has half of the memory. That is no other
measurement as long as no request waits for memory, so both weights and all requests of each load
must fit. Else each side has separate GPUs, if the node has twice as many, all of one kind. Both
servers are then started again once, on each other's GPUs.
"""

from __future__ import annotations

from typing import Literal

from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.errors import CheckpointError
from pipeline.core.hardware import NodeInfo
from pipeline.inspection.header_source import read_folder
from pipeline.inspection.inspection import CheckpointInspection, inspect
from pipeline.inspection.kv_cache import GIB
from pipeline.plan.context_length import max_length_of
from recipes import catalog
from recipes.engine_arguments import count_gpus, memory_share
from recipes.engines import DEFAULT
from recipes.policy import Policy
from recipes.schema import ServingProfile

RESERVE_BYTES = 5 * GIB
"""For neither weights nor cache, of one server on each GPU: CUDA context, graphs, activations,
logits. The capacity plan's estimate for models of 8 to 14 B parameters is 3 to 4 GiB."""
BLOCK_SIZE = 16
STEP_TOKENS = 16_384
"""In flight at most, by vLLM's defaults for the largest GPUs."""
NOT_QUIET = "the node's other GPUs, its cores and its disks were not kept quiet"
Mode = Literal["concurrent", "swapped", "interleaved"]


def with_server_mode(
    profile: ServingProfile, policy: Policy, checkpoint: Checkpoint, node: NodeInfo
) -> ServingProfile:
    """Return the profile with a mode in place of `auto`, and a note on how speeds are measured.

    Args:
        node: that serves.
    """
    if profile.server_mode != "auto":
        return profile
    try:
        inspection = inspect(read_folder(checkpoint.path))
    except CheckpointError:  # its memory is not known; the preflight notes why
        inspection = None
    return on_node(profile, policy, inspection, max_length_of(profile, checkpoint), node)


def on_node(
    profile: ServingProfile,
    policy: Policy,
    inspection: CheckpointInspection | None,
    longest: int,
    node: NodeInfo,
) -> ServingProfile:
    """Return the profile in the best mode for the node, and a note on how speeds are measured.

    Args:
        inspection: of the checkpoint; None if its memory is not known.
        longest: tokens of a sequence, at most.
    """
    known = catalog.gpu_of_driver(node.gpu_name or "")
    memory = known.memory_gib if known else node.gpus[0].memory_gib if node.gpus else None
    is_one_kind = len({gpu.name for gpu in node.gpus}) == 1 and not node.gpus[0].is_slice
    gpus = len(node.gpus) if is_one_kind else 0
    fits = inspection is not None and fits_twice(profile, policy, inspection, longest, memory)
    return in_mode(profile, best_mode(profile, policy, fits=fits, gpus=gpus))


def best_mode(profile: ServingProfile, policy: Policy, *, fits: bool, gpus: int) -> Mode:
    """Return the mode that takes the least GPU time.

    Args:
        fits: whether both servers fit on the GPUs of one.
        gpus: of one kind, on the node.
    """
    if fits:
        return "concurrent"
    has_twice = gpus >= 2 * count_gpus(profile.engine_arguments)
    return "swapped" if has_twice and policy.speed is not None else "interleaved"


def in_mode(profile: ServingProfile, mode: Mode) -> ServingProfile:
    """Return the profile with that mode, and a note on how speeds are measured."""
    note = NOT_QUIET
    if mode == "concurrent":
        share = memory_share(profile.engine_arguments) / 2
        note = (
            f"both servers were up on the same GPUs with {100 * share:.0f} % of the memory each, "
            f"so with a smaller KV cache than alone; {NOT_QUIET}"
        )
    elif mode == "swapped":
        note = (
            "both servers were measured at the same time, on separate GPUs that were "
            f"swapped, so each next to the other's load on the host; {NOT_QUIET}"
        )
    note = f"{profile.speed_note}; {note}" if profile.speed_note else note
    return profile.model_copy(update={"server_mode": mode, "speed_note": note})


def fits_twice(
    profile: ServingProfile,
    policy: Policy,
    inspection: CheckpointInspection,
    longest: int,
    memory_gib: float | None,
) -> bool:
    """Return whether two servers of the baseline's size take the loads on the GPUs of one.

    A variant is not larger. False where memory or cache are not known.

    Args:
        longest: tokens of a sequence, at most.
        memory_gib: of each GPU; None if unknown.
    """
    if policy.speed is None or profile.engine != DEFAULT or profile.speculative is not None:
        return False
    if memory_gib is None or inspection.cache.unknown:
        return False
    gpus = count_gpus(profile.engine_arguments)
    usable = memory_gib * GIB * memory_share(profile.engine_arguments) / 2
    left = int(usable - inspection.source.weights_bytes / gpus - RESERVE_BYTES)

    def sequences(tokens: int) -> float:
        return inspection.cache.capacity(
            left,
            context=tokens,
            block_size=BLOCK_SIZE,
            element_bytes=2,
            tensor_parallel=gpus,
            in_flight=STEP_TOKENS,
        ).sequences

    loads = [
        catalog.load_workload(claim.workload, policy.speed, profile)[0]
        for claim in policy.claims_on(profile.accelerator)
        if claim.kind == "ratio"
    ]
    # The engine refuses to start without room for one sequence of the greatest length.
    return sequences(longest) >= 1 and all(
        sequences(load.longest or longest) >= (load.arrivals.concurrency or 1) for load in loads
    )
