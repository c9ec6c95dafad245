"""What fits on GPUs, in at most 25 lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.cli.tables import print_table

if TYPE_CHECKING:
    from pipeline.plan.gpu_fit import CapacityPlan


def print_capacity(plan: CapacityPlan, *, verbose: bool = False) -> None:
    """Print each variant on the GPUs of a replica; `verbose`: on every division of the GPUs."""
    site, model, number = plan.gpus, plan.gpus.model, plan.gpus_a_copy
    print(
        f"{model.source.name}: {model.shape.architecture}, {model.parameters() / 1e9:,.2f} B "
        f"parameters, {gigabytes(model.source.weights_bytes)}, context {model.shape.context:,}\n"
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
                *(fit.variant, str(fit.gpus), str(fit.copies), gigabytes(fit.weights_bytes)),
                gigabytes(fit.cache_bytes),
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
        print(f"would be refused: {fault.message}; hint: {fault.hint}")
    for note in plan.notes:
        print(f"note: {note}")
    print(f"disk: {gigabytes(plan.disk_bytes())} for the checkpoint and its variants")


def gigabytes(size: int) -> str:
    """Format in 10^9 bytes, as weights are published."""
    return f"{size / 1e9:,.2f} GB" if size < 10e9 else f"{size / 1e9:,.1f} GB"
