"""Fits of every variant for every division of the GPUs, with the best one and hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.capacity.fit import FitResult, GpuPool, ShardedVariant
from pipeline.capacity.serving_limits import NATIVE_FP8
from pipeline.capacity.sharding import shards
from pipeline.capacity.stage_resources import StageResources, stage_needs
from pipeline.checkpoint import unsupported
from pipeline.checkpoint.folder import needs_own_code
from pipeline.core.errors import UsageError
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.inspection import CheckpointInspection
from pipeline.inspection.variant_size import VariantWeights, stored_weights
from pipeline.plan.speed_power import SpeedPower
from pipeline.plan.suitability import find_making_faults
from recipes import catalog
from recipes.gpu import GpuType
from recipes.schema import Recipe, ServingProfile

MAX_GPUS = 64  # limit of the hints
FAIR_SHARE = 0.5  # of the concurrent sequences of the best division
BFLOAT16 = 8.0  # compute capability


@dataclass(frozen=True)
class CapacityPlan:
    """The report of `prepare plan --gpu`."""

    site: GpuPool
    weights: dict[str, VariantWeights]  # by recipe
    fits: tuple[FitResult, ...]  # each variant on each number of GPUs, the baseline first
    notes: tuple[str, ...]  # limits of the estimates
    needs: tuple[StageResources, ...] = ()
    speed: tuple[SpeedPower, ...] = ()  # the policy's speed gates

    def best(self, variant: str) -> FitResult | None:
        """Return the fit with the fewest GPUs a replica that keeps enough concurrent sequences.

        Replicas need no all-reduce. They are preferred while together they hold `FAIR_SHARE` of the
        sequences of the best division.
        """
        found = [fit for fit in self.fits if fit.variant == variant and fit.fits]
        enough = FAIR_SHARE * max((fit.sequences_of_all for fit in found), default=0)
        fair = [fit for fit in found if fit.sequences_of_all >= enough]
        return min(fair, key=lambda fit: fit.tensor_parallel) if fair else None

    @cached_property
    def gpus_a_copy(self) -> int:
        """GPUs of one replica of every model of a run, because one profile serves them all.

        The fewest on which each model fits that fits at all, and at least each one's best.
        """
        bests = [best for name in self.weights if (best := self.best(name))]
        least = max((best.tensor_parallel for best in bests), default=1)
        fitting: dict[int, set[str]] = {}
        for fit in self.fits:
            if fit.fits and fit.tensor_parallel >= least:
                fitting.setdefault(fit.tensor_parallel, set()).add(fit.variant)
        return min((n for n, names in fitting.items() if len(names) == len(bests)), default=least)

    @property
    def expert_parallel(self) -> bool:
        """Whether a run's servers divide experts by number (`--enable-expert-parallel`)."""
        return any(
            fit.expert_parallel and fit.fits
            for fit in self.fits
            if fit.tensor_parallel == self.gpus_a_copy
        )

    def to_dict(self) -> dict[str, Any]:
        site, inspection = self.site, self.site.inspection
        best = {name: self.best(name) for name in self.weights}
        return {
            "schema_version": 1,
            "checkpoint": inspection.to_dict(),
            "gpu": site.gpu.model_dump(),
            "gpus": site.gpus,
            "gpus_a_copy": self.gpus_a_copy,
            "expert_parallel": self.expert_parallel,
            "context": site.context,
            "serving": asdict(site.limits),
            "variants": {
                name: {
                    "weights_bytes": weights.bytes,
                    "precision": weights.label,
                    "quantized_parameters": inspection.count_quantized(weights),
                    "left_parameters": inspection.count_unquantized(weights),
                    "tensor_parallel": chosen.tensor_parallel if chosen else None,
                    "replicas": chosen.replicas if chosen else None,
                }
                for name, weights in self.weights.items()
                for chosen in (best[name],)
            },
            "fits": [fit.to_dict() for fit in self.fits],
            "stages": self.stages(),
            **({"speed": [gate.to_dict() for gate in self.speed]} if self.speed else {}),
            "disk_bytes": self.disk_bytes(),
            "notes": list(self.notes),
        }

    def stages(self) -> list[dict[str, Any]]:
        """Return host memory and disk of each stage; null where unknown."""
        return [
            {
                "variant": need.variant,
                "stage": need.stage,
                "host_bytes": need.host_bytes,
                "host_bytes_basis": need.basis,
                "disk_bytes": need.disk_bytes,
            }
            for need in self.needs
        ]

    def disk_bytes(self) -> int:
        """Return the disk bytes of the checkpoint and all its variants."""
        source = self.site.inspection.source.weights_bytes
        baseline = catalog.BASELINE
        return source + sum(w.bytes for name, w in self.weights.items() if name != baseline)


def capacity_plan(
    inspection: CheckpointInspection,
    recipes: Sequence[Recipe],
    gpu: GpuType,
    gpus: int,
    *,
    profile: ServingProfile | None,
    context: int | None = None,
    draft_bytes: int = 0,
    gpus_a_copy: int | None = None,
    adopted: Mapping[str, HeaderSource] | None = None,
) -> CapacityPlan:
    """Fit the baseline and the recipes' variants on the GPUs.

    Without `gpus_a_copy` and a number in the profile, every division of the GPUs is tried.
    `adopted` has the headers of variants that others quantized, by name.

    Raises:
        UsageError: the profile, the context or the number does not suit the model or the GPUs.
    """
    if gpus_a_copy is not None and gpus_a_copy > gpus:
        raise UsageError(
            f"a copy cannot be spread over {gpus_a_copy} GPUs of {gpus}",
            where=f"--gpus-a-copy {gpus_a_copy}",
            hint=f"give at most {gpus}",
        )
    if context is not None and context > inspection.shape.context:
        raise UsageError(
            f"the model was trained for {inspection.shape.context:,} tokens of context, "
            f"not for {context:,}",
            where=f"--context {context}",
            hint=f"give at most {inspection.shape.context}",
        )
    site = GpuPool.of(inspection, gpu, gpus, profile, context, draft_bytes)
    baseline = catalog.load_recipe(catalog.BASELINE)
    # Weights that cannot be converted to 16 bits can be served as they are, and no more.
    form = inspection.source.format
    is_open = form is None or form.converter is not None
    headers = adopted or {}
    made_here = [recipe for recipe in recipes if recipe.name not in headers]
    others = [recipe for recipe in recipes if recipe.name in headers]
    wanted = [baseline, *(made_here if is_open else ()), *others]
    weights = {
        recipe.name: stored_weights(inspection.source.tensors, headers[recipe.name].tensors)
        if recipe.name in headers
        else inspection.variant(recipe.quantization)
        for recipe in wanted
    }
    candidates = candidates_of(inspection, wanted, weights)
    fixed = gpus_a_copy or (profile and profile.gpus_a_copy)
    numbers = [fixed] if fixed else divisors(gpus)
    fits = tuple(
        fit if fit.fits else replace(fit, hint=hint(fit, candidate, candidates, site))
        for candidate in candidates
        for fit in (site.fit(candidate, number) for number in numbers)
    )
    return CapacityPlan(
        site,
        weights,
        fits,
        (*notes(site, weights), *remarks(wanted, gpu.compute_capability)),
        tuple(stage_needs(inspection, wanted, weights, profile, draft_bytes=draft_bytes)),
    )


def candidates_of(
    inspection: CheckpointInspection,
    recipes: Iterable[Recipe],
    weights: Mapping[str, VariantWeights],
) -> list[ShardedVariant]:
    """Return the recipes' variants, ready to be fitted; `weights` has the recipes' names."""
    return [
        ShardedVariant(
            recipe,
            shards(inspection, made),
            next(find_making_faults(recipe, inspection.recipe_source, made), None)
            if recipe.quantization.quantizes
            else None,
        )
        for recipe in recipes
        for made in (weights[recipe.name],)
    ]


def divisors(gpus: int) -> list[int]:
    """Return the numbers of GPUs a replica that use all GPUs."""
    return [number for number in range(1, gpus + 1) if gpus % number == 0]


def hint(
    fit: FitResult, candidate: ShardedVariant, candidates: Sequence[ShardedVariant], site: GpuPool
) -> str:
    """Return alternatives for a variant that does not fit, the nearest first.

    Recipes of `candidates` may be suggested instead; an empty sequence suggests none.
    """
    if fit.obstacle == "cache":
        return 'start the server and read "KV cache size" in its log'
    if candidate.fault:
        return candidate.fault.hint
    if fit.obstacle == "hardware":
        found = [other_recipe(fit, candidates, site), capable_gpus(candidate)]
    elif fit.obstacle == "split":
        found = [more_or_fewer_gpus(fit, candidate, site)]
    else:
        found = [
            shorter_context(fit, candidate, site),
            more_or_fewer_gpus(fit, candidate, site),
            other_recipe(fit, candidates, site),
            larger_gpu(fit, candidate, site),
        ]
    return "; or ".join(words for words in found if words) or "no hint is known here"


def shorter_context(fit: FitResult, candidate: ShardedVariant, site: GpuPool) -> str:
    """Suggest a context that the cache can hold."""
    tokens = site.longest_context(candidate, fit) if fit.obstacle == "context" else 0
    return f"set max-model-len to at most {tokens}" if tokens else ""


def more_or_fewer_gpus(fit: FitResult, candidate: ShardedVariant, site: GpuPool) -> str:
    """Suggest the nearest number of GPUs that fits; larger numbers come first."""
    now = fit.tensor_parallel
    for number in (*range(now + 1, MAX_GPUS + 1), *range(now - 1, 0, -1)):
        if site.fit(candidate, number).fits:
            return f"--gpus-a-copy {number}"
    return ""


def other_recipe(fit: FitResult, candidates: Iterable[ShardedVariant], site: GpuPool) -> str:
    """Suggest recipes that fit on as many GPUs."""
    names = [
        c.recipe.name
        for c in candidates
        if not c.is_baseline and site.fit(c, fit.tensor_parallel).fits
    ]
    return f"recipe {' or '.join(names)}" if names else ""


def larger_gpu(fit: FitResult, candidate: ShardedVariant, site: GpuPool) -> str:
    """Suggest the smallest larger GPU type that fits, in the same number."""
    for name in catalog.gpu_names():
        gpu = catalog.load_gpu(name)
        if gpu.memory_gib <= site.gpu.memory_gib:
            continue
        if replace(site, gpu=gpu).fit(candidate, fit.tensor_parallel).fits:
            return f"a GPU such as {name}"
    return ""


def capable_gpus(candidate: ShardedVariant) -> str:
    """Suggest GPU types for the recipe."""
    names = [
        name
        for name in catalog.gpu_names()
        if not candidate.recipe.lacks_kernels_on(catalog.load_gpu(name).compute_capability)
    ]
    return f"a GPU such as {', '.join(names)}" if names else ""


def remarks(recipes: Iterable[Recipe], compute_capability: float | None) -> list[str]:
    """Return how a GPU computes otherwise than the recipes state."""
    if compute_capability is None:
        return []
    return [words for recipe in recipes if (words := recipe.remark_on(compute_capability))]


def notes(site: GpuPool, weights: dict[str, VariantWeights]) -> Iterable[str]:
    """Yield what the estimates omit, and oddities of a recipe with this checkpoint."""
    inspection = site.inspection
    source = inspection.source
    if fault := unsupported.architecture_error(source.architecture, source.config, source.where):
        yield f"`prepare model` refuses it: {fault.message}"
    if needs_own_code(source.config):
        yield (
            "`prepare model` refuses it without --trust-remote-code: it runs code of the checkpoint"
        )
    if inspection.shape.experts:
        yield (
            "an MoE model's reserve is an upper estimate from public logs of vLLM 0.10: the cache "
            "may get several GB more, so a model that lacks less than that may fit"
        )
    if (form := source.format) is not None:
        yield (
            f"the baseline has {form.label} weights, as released; "
            + ("recipes start from them in 16 bits" if form.converter else form.reason)
        )
    if "mtp" in inspection.parameters:
        yield "the head for multi-token prediction is not loaded, so not counted on the GPUs"
    if site.limits.kv_dtype.startswith("fp8") and site.gpu.compute_capability < NATIVE_FP8:
        yield f"{site.gpu.name} has no FP8: whether it serves an FP8 KV cache is not known here"
    stored = {tensor.dtype for tensor in inspection.source.tensors.values()}
    if site.gpu.compute_capability < BFLOAT16 and "BF16" in stored:
        yield f"{site.gpu.name} has no bfloat16: serve with dtype float16"
    if site.draft_bytes:
        yield (
            f"of variants' weights {site.draft_bytes / 1e9:,.2f} GB are the draft model's; its own "
            "KV cache is not counted"
        )
    for name, made in weights.items():
        if not made.forms:
            continue
        if inspection.count_unquantized(made).get("experts"):
            yield f"{name} leaves experts in 16 bits: they are stored as stacks, not as matrices"
