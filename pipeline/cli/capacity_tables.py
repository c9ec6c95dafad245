"""Tables of what fits on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.cli.policy import print_claims
from pipeline.cli.tables import print_table

if TYPE_CHECKING:
    from pipeline.capacity.fit import FitResult
    from pipeline.capacity.gpu_plan import CapacityPlan
    from pipeline.inspection.inspection import CheckpointInspection


def print_capacity(plan: CapacityPlan) -> None:
    """Print the checkpoint, its bytes, each variant on the GPUs, and hints."""
    from pipeline.inspection.inspection import SHOWN_FORMATS

    inspection = plan.site.inspection
    print(headline(inspection))
    print(cache_line(inspection))
    print_table(
        ["module", "parameters", *plan.weights],
        [
            [kind, f"{count / 1e6:,.1f} M", *treatment(plan, kind)]
            for kind, count in inspection.parameters.items()
        ],
    )
    print_table(
        ["all matrices of attention, MLP and experts in", "weights"],
        [[form.label, gigabytes(inspection.bytes_at(form))] for form in SHOWN_FORMATS],
    )
    print(site_line(plan))
    print_table(
        [
            *("variant", "GPUs a copy", "copies", "weights a GPU", "cache a GPU", "tokens a copy"),
            *("sequences a copy", "of all", "roof, tokens/s", ""),
        ],
        [fit_row(fit, plan) for fit in plan.fits if fit.fits],
    )
    print(copies_line(plan))
    print_table(
        ["variant", "stage", "memory of the machine", "disk"],
        [stage_row(stage) for stage in plan.stages()],
    )
    print_claims(plan.speed)
    for line in (*refusals(plan), *hints(plan), *(f"note: {note}" for note in plan.notes)):
        print(line)
    print(f"disk: {gigabytes(plan.disk_bytes())} for the checkpoint and its variants")


def headline(inspection: CheckpointInspection) -> str:
    """Describe the checkpoint in a line."""
    shape = inspection.shape
    return (
        f"{inspection.source.name}: {shape.architecture}, "
        f"{inspection.parameters_total / 1e9:,.2f} B parameters, "
        f"{gigabytes(inspection.source.weights_bytes)}, context {shape.context:,}"
    )


def cache_line(inspection: CheckpointInspection) -> str:
    """Describe the KV cache per token."""
    cache = inspection.cache
    if cache.unknown:
        return f"KV cache: not known, {cache.unknown}"
    windows = sorted({window for window in cache.windows if window is not None})
    sliding = sum(window is not None for window in cache.windows)
    words = f"; {sliding} of {len(cache.windows)} layers look back {windows}" if sliding else ""
    if cache.states:
        words += f"; {cache.state_bytes():,} bytes of state a sequence, in {cache.states} layers"
    return (
        f"KV cache ({cache.attention}): {cache.token_bytes(2):,} bytes a token in 16 bits, "
        f"{cache.token_bytes(1):,} in FP8{words}"
    )


def treatment(plan: CapacityPlan, kind: str) -> list[str]:
    """Describe each variant's treatment of one kind of module."""
    inspection = plan.site.inspection
    words = []
    for weights in plan.weights.values():
        quantized = any(kind == name for name in inspection.count_quantized(weights))
        left = any(kind == name for name in inspection.count_unquantized(weights))
        if not quantized:
            words.append("as it is" if left else "-")
        else:
            label = weights.label or "quantized"
            words.append(f"{label}{'; in part' if left else ''}")
    return words


def site_line(plan: CapacityPlan) -> str:
    """Describe the GPUs and the engine's start on them."""
    site = plan.site
    limits = site.limits
    reserve = plan.fits[0].reserve_bytes  # of the baseline on one GPU
    return (
        f"{site.gpus} x {site.gpu.name} ({site.gpu.memory_gib:.1f} GiB each, of which "
        f"{100 * limits.utilization:.0f} % are used, {gigabytes(reserve)} of it reserved for "
        f"activations, graphs and the engine, an estimate), "
        f"context {site.context:,}; {limits.source}: "
        f"KV cache {limits.kv_dtype}, of the baseline {limits.baseline_kv_dtype}; at most "
        f"{limits.sequences} sequences a copy"
    )


def copies_line(plan: CapacityPlan) -> str:
    """State the division of the GPUs that a run has."""
    number = plan.gpus_a_copy
    words = f"a run serves each model on {number} GPU{'s' if number > 1 else ''}"
    if plan.expert_parallel:
        words += " with --enable-expert-parallel, without which its experts cannot be split"
    return f"{words}; --gpus-a-copy sets another number"


def fit_row(fit: FitResult, plan: CapacityPlan) -> list[str]:
    """One variant on a number of GPUs per copy."""
    return [
        fit.variant,
        str(fit.tensor_parallel),
        str(fit.replicas),
        gigabytes(fit.weights_bytes),
        gigabytes(fit.cache_bytes),
        f"{fit.tokens:,}",
        f"{fit.sequences:,}",
        f"{fit.sequences_of_all:,}",
        f"{fit.tokens_per_s_at_most:,.0f}",
        "best" if plan.best(fit.variant) == fit else "",
    ]


def stage_row(stage: dict[str, Any]) -> list[str]:
    """Resources of one stage of a variant."""
    host = stage["host_bytes"]
    return [
        stage["variant"],
        stage["stage"],
        "not known" if host is None else gigabytes(host),
        gigabytes(stage["disk_bytes"]) if stage["disk_bytes"] else "-",
    ]


def refusals(plan: CapacityPlan) -> list[str]:
    """Reasons why the others do not fit, one line for all sizes with the same reason."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for fit in plan.fits:
        if not fit.fits:
            no = "" if fit.obstacle == "cache" else "no, "
            sizes.setdefault((fit.variant, no + fit.reason), []).append(str(fit.tensor_parallel))
    return [
        f"{variant}, {', '.join(numbers)} a copy: {reason}"
        for (variant, reason), numbers in sizes.items()
    ]


def hints(plan: CapacityPlan) -> list[str]:
    """Hints for each variant that does not fit on these GPUs."""
    lines = []
    for variant in plan.weights:
        if plan.best(variant) is None:
            fits = [fit for fit in plan.fits if fit.variant == variant]
            widest = fits[-1]
            if any(fit.obstacle == "cache" for fit in fits):
                lines.append(f"{variant}: whether it can be served here is not known")
                continue
            lines.append(f"{variant} cannot be served here; hint: {widest.hint}")
    return lines


def gigabytes(size: int) -> str:
    """Format in 10^9 bytes, as weights are published."""
    return f"{size / 1e9:,.2f} GB" if size < 10e9 else f"{size / 1e9:,.1f} GB"
