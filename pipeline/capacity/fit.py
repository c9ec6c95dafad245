"""Fit of one variant on a number of GPUs: weights, remaining cache, and the first obstacle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.capacity.serving_limits import ServingLimits
from pipeline.capacity.sharding import ShardedWeights
from pipeline.core.errors import PrepareError
from pipeline.inspection.inspection import CheckpointInspection
from pipeline.inspection.kv_cache import KvCapacity
from recipes.gpu import GpuType
from recipes.schema import Recipe, ServingProfile

# "cache": the memory of the layers' caches is not known, so neither is whether it fits.
Obstacle = Literal["", "recipe", "hardware", "split", "weights", "cache", "context"]


@dataclass(frozen=True)
class FitResult:
    """Memory and capacity of a variant on `tensor_parallel` GPUs a replica."""

    variant: str
    tensor_parallel: int  # GPUs of one replica
    replicas: int  # on all GPUs
    weights_bytes: int  # on each GPU
    reserve_bytes: int  # on each GPU, for neither weights nor cache; an estimate
    cache_bytes: int  # on each GPU, left for keys and values
    tokens: int | None  # KV cache of a replica, as vLLM counts them; None if not known
    sequences: int | None  # concurrent sequences of full context length on a replica
    tokens_per_s_at_most: float  # of one sequence, bound by memory bandwidth
    obstacle: Obstacle  # empty if it fits
    reason: str  # the obstacle as a sentence
    expert_parallel: bool = False  # the GPUs of a replica divide the experts by number
    hint: str = ""

    @property
    def fits(self) -> bool:
        return not self.obstacle

    @property
    def sequences_of_all(self) -> int:
        """Concurrent sequences of all replicas."""
        return self.replicas * (self.sequences or 0) if self.fits else 0

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "fits": self.fits, "sequences_of_all": self.sequences_of_all}


@dataclass(frozen=True)
class ShardedVariant:
    """A variant whose weights are classified for tensor parallelism."""

    recipe: Recipe
    shards: ShardedWeights
    fault: PrepareError | None = None  # why the recipe cannot make it of the checkpoint

    @property
    def is_baseline(self) -> bool:
        return self.recipe.family == "baseline"


@dataclass(frozen=True)
class GpuPool:
    """The GPUs, the checkpoint and the engine settings that variants are fitted with."""

    inspection: CheckpointInspection
    gpu: GpuType
    gpus: int
    limits: ServingLimits
    context: int  # tokens of a sequence
    draft_bytes: int = 0  # weights of the variants' draft model

    @classmethod
    def of(
        cls,
        inspection: CheckpointInspection,
        gpu: GpuType,
        gpus: int,
        profile: ServingProfile | None,
        context: int | None = None,
        draft_bytes: int = 0,
    ) -> GpuPool:
        """Read the engine settings from a profile, or use vLLM's defaults.

        The context defaults to the profile's limit, or the model's.

        Raises:
            UsageError: the profile is not for GPUs or has an invalid value.
        """
        limits = ServingLimits.of(gpu, profile)
        longest = limits.context(inspection.shape.context)
        return cls(inspection, gpu, gpus, limits, context or longest, draft_bytes)

    def fit(
        self, candidate: ShardedVariant, tensor_parallel: int, *, reserve_at_least: bool = False
    ) -> FitResult:
        """Fit one replica of the candidate on `tensor_parallel` GPUs.

        `reserve_at_least` takes the lower estimate of the reserve, to refuse only certain misfits.
        """
        whole = self._has_whole_experts(candidate, tensor_parallel)
        weights = candidate.shards.bytes_on_gpu(tensor_parallel, whole_experts=whole)
        if not candidate.is_baseline:  # vLLM splits a draft like the model
            weights += -(-self.draft_bytes // tensor_parallel)
        reserve = self.limits.reserve_bytes(
            self.inspection.shape, tensor_parallel, at_least=reserve_at_least, whole_experts=whole
        )
        if not reserve_at_least:
            reserve += candidate.shards.filling_bytes(tensor_parallel, whole_experts=whole)
        left = self.limits.usable_bytes(self.gpu) - weights - reserve
        capacity = self.capacity(candidate, tensor_parallel, left, self.context)
        obstacle, reason = self._obstacle(candidate, tensor_parallel, left, capacity)
        read = candidate.shards.read_per_token
        is_known = not self.inspection.cache.unknown
        bandwidth = self.gpu.memory_bandwidth_gb_per_s * 1e9 * tensor_parallel
        return FitResult(
            variant=candidate.recipe.name,
            tensor_parallel=tensor_parallel,
            replicas=self.gpus // tensor_parallel,
            weights_bytes=weights,
            reserve_bytes=reserve,
            cache_bytes=max(0, left),
            tokens=capacity.tokens if is_known else None,
            sequences=min(int(capacity.sequences), self.limits.sequences) if is_known else None,
            tokens_per_s_at_most=bandwidth / read if read else 0.0,
            obstacle=obstacle,
            reason=reason,
            expert_parallel=whole,
        )

    def _has_whole_experts(self, candidate: ShardedVariant, tensor_parallel: int) -> bool:
        """Return whether expert parallelism is on, or not set and the cure of an obstacle."""
        shards, setting = candidate.shards, self.limits.expert_parallel
        if tensor_parallel == 1 or not shards.experts or setting is not None:
            return bool(setting) and tensor_parallel > 1 and shards.experts > 0
        return bool(shards.obstacle(tensor_parallel)) and not shards.obstacle(
            tensor_parallel, whole_experts=True
        )

    def capacity(
        self, candidate: ShardedVariant, tensor_parallel: int, memory: int, context: int
    ) -> KvCapacity:
        """Return what the KV cache holds in `memory` bytes on each GPU."""
        return self.inspection.cache.capacity(
            memory,
            context=context,
            block_size=self.limits.block_size,
            element_bytes=self.limits.element_bytes(is_baseline=candidate.is_baseline),
            tensor_parallel=tensor_parallel,
            in_flight=self.limits.step_tokens,
            batches=self.limits.batches,
        )

    def longest_context(self, candidate: ShardedVariant, fit: FitResult) -> int:
        """Return the longest sequence that fits alone, in tokens of full blocks; 0 if none fits."""
        low, high = 0, self.context // self.limits.block_size
        while low < high:
            middle = (low + high + 1) // 2
            tokens = middle * self.limits.block_size
            found = self.capacity(candidate, fit.tensor_parallel, fit.cache_bytes, tokens)
            low, high = (middle, high) if found.sequences >= 1 else (low, middle - 1)
        return low * self.limits.block_size

    def _obstacle(
        self, candidate: ShardedVariant, tensor_parallel: int, left: int, capacity: KvCapacity
    ) -> tuple[Obstacle, str]:
        recipe = candidate.recipe
        if candidate.fault:
            return "recipe", candidate.fault.message
        if lack := recipe.lacks_kernels_on(self.gpu.compute_capability):
            return "hardware", (
                f"{recipe.name} {lack}, {self.gpu.name} has {self.gpu.compute_capability}"
            )
        whole = self._has_whole_experts(candidate, tensor_parallel)
        if reason := candidate.shards.obstacle(tensor_parallel, whole_experts=whole):
            return "split", reason
        if left <= 0:
            return "weights", f"{-left / 1e9:,.1f} GB too much on each GPU, without any cache"
        if self.inspection.cache.unknown:
            return "cache", f"the memory of its cache is not known: {self.inspection.cache.unknown}"
        if capacity.sequences < 1:
            return "context", (
                f"the cache holds {capacity.tokens:,} tokens, "
                f"less than one sequence of {self.context:,}"
            )
        return "", ""
