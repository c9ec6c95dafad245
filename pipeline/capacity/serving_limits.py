"""Memory settings of the engine on one GPU type, from a profile or vLLM's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.inspection.kv_cache import BATCHES_IN_FLIGHT, GIB, element_bytes
from pipeline.inspection.model_shape import ModelShape
from recipes.engine_arguments import EXPERT_PARALLEL
from recipes.gpu import GpuType
from recipes.schema import ServingProfile

UTILIZATION = 0.92
BLOCK_SIZE = 16
NATIVE_FP8 = 8.9
# vLLM 0.33's defaults for its OpenAI server: minimum GPU memory, tokens a step, sequences.
DEFAULTS = ((160 * GIB, 16384, 1024), (70 * GIB, 8192, 1024), (0, 2048, 256))
SMALLER_STEPS = "A100"  # always gets the last line's defaults

# The reserve. Context: the CUDA context and libraries. Graphs: what vLLM captures for decoding.
CONTEXT_BYTES = GIB // 2
GRAPH_BYTES = 3 * GIB // 4
COMMUNICATION_BYTES = GIB // 2  # buffers of all-reduce, with more than one GPU
ACTIVATION_BYTES = 2
HIDDEN_COPIES = 4  # residual, normed input, query with key and value, output
INNER_COPIES = 3  # gate, up, and their product
SAMPLER_BYTES = 16  # a vocabulary entry: float32 logit, sorted probability, 64-bit index
# The reserve of MoE models is an upper estimate: it assumes a sorting sampler, which logs of
# vLLM 0.10 without FlashInfer show at 36 to 39 bytes an entry. vLLM 0.33's sampler does not sort.
SORTING_SAMPLER_BYTES = 39
KV_SKIP = "kv-cache-dtype-skip-layers"


@dataclass(frozen=True)
class ServingLimits:
    """Engine settings that memory depends on."""

    source: str  # the profile, or vLLM's defaults
    utilization: float  # share of the GPU's memory that the engine may use
    block_size: int  # tokens of a KV block
    step_tokens: int  # max-num-batched-tokens
    batches: int  # of step_tokens, in flight concurrently
    sequences: int  # max-num-seqs
    context_limit: int | None  # max-model-len, if set
    kv_dtype: str  # of variants
    baseline_kv_dtype: str
    model_bytes: int  # bytes of an element of the model's dtype
    skips_layers: bool = False  # some layers' cache stays in 16 bits
    expert_parallel: bool | None = None  # None: not set, so that a plan may switch it on

    @classmethod
    def of(cls, gpu: GpuType, profile: ServingProfile | None) -> ServingLimits:
        """Read the profile; without one take vLLM's defaults, and an FP8 cache if the GPU has FP8.

        Raises:
            UsageError: the profile is not for GPUs, or a value has the wrong type.
        """
        if profile is not None and profile.accelerator != "cuda":
            raise UsageError(
                f"the profile '{profile.name}' is not for GPUs",
                where=f"--profile {profile.name}",
                hint="leave --profile out, or name a profile whose accelerator is cuda",
            )
        arguments = profile.engine_arguments if profile else {}
        step_tokens, sequences = _defaults(gpu)
        kv_dtype = "fp8" if gpu.compute_capability >= NATIVE_FP8 else "auto"
        return cls(
            source=f"profile {profile.name}" if profile else "vLLM's defaults",
            utilization=float(_number(arguments, "gpu-memory-utilization", UTILIZATION)),
            block_size=int(_number(arguments, "block-size", BLOCK_SIZE)),
            step_tokens=int(_number(arguments, "max-num-batched-tokens", step_tokens)),
            batches=1 if arguments.get("no-async-scheduling") is True else BATCHES_IN_FLIGHT,
            sequences=int(_number(arguments, "max-num-seqs", sequences)),
            context_limit=int(_number(arguments, "max-model-len", 0)) or None,
            kv_dtype=profile.kv_cache_dtype if profile else kv_dtype,
            baseline_kv_dtype=profile.baseline_kv_cache_dtype if profile else "auto",
            model_bytes=4 if arguments.get("dtype") in ("float32", "float") else 2,
            skips_layers=KV_SKIP in arguments,
            expert_parallel=_expert_parallel(arguments),
        )

    def element_bytes(self, *, is_baseline: bool) -> float:
        """Return bytes of an element of the cache; with layers of another type, the larger one."""
        dtype = self.baseline_kv_dtype if is_baseline else self.kv_dtype
        if self.skips_layers:
            dtype = "auto"
        return element_bytes(dtype, self.model_bytes)

    def context(self, model_context: int) -> int:
        return min(model_context, self.context_limit or model_context)

    def usable_bytes(self, gpu: GpuType) -> int:
        return int(gpu.memory_bytes * self.utilization)

    def reserve_bytes(
        self,
        shape: ModelShape,
        tensor_parallel: int,
        *,
        at_least: bool = False,
        whole_experts: bool = False,
    ) -> int:
        """Estimate the bytes of each GPU that neither weights nor cache use.

        The sum of CUDA context, graphs, communication buffers, expert workspace, and the larger of
        a step's activations and the sampler's logits. For MoE models `at_least` gives a lower
        estimate, otherwise it is an upper one. vLLM measures it at startup.
        """
        is_upper = bool(shape.experts) and not at_least
        inner = -(-INNER_COPIES * shape.inner // tensor_parallel)
        step = self.step_tokens * (HIDDEN_COPIES * shape.hidden + inner) * ACTIVATION_BYTES
        entry = SORTING_SAMPLER_BYTES if is_upper else SAMPLER_BYTES
        sampler = self.sequences * shape.vocabulary * entry
        divided = 1 if whole_experts else tensor_parallel
        kept = self.workspace_bytes(shape, divided) if is_upper else 0
        buffers = COMMUNICATION_BYTES if tensor_parallel > 1 else 0
        return CONTEXT_BYTES + GRAPH_BYTES + buffers + kept + max(step, sampler)

    def workspace_bytes(self, shape: ModelShape, tensor_parallel: int) -> int:
        """Return the bytes of each GPU that expert kernels hold permanently.

        Each expert of a token needs two buffers: gate and up share one with the output. The other
        holds
        the second product's input or the sorted tokens. Source: `workspace_shapes` in vLLM 0.33
        (Triton, CUTLASS and Marlin experts).
        """
        inner = -(-shape.expert_inner // tensor_parallel)
        width = max(2 * inner, shape.hidden) + max(inner, shape.hidden)
        return self.step_tokens * shape.experts_per_token * width * ACTIVATION_BYTES


def _defaults(gpu: GpuType) -> tuple[int, int]:
    """Return tokens a step, and sequences."""
    memory = 0 if SMALLER_STEPS in gpu.driver_name else gpu.memory_bytes
    for least, step_tokens, sequences in DEFAULTS:
        if memory >= least:
            return step_tokens, sequences
    raise AssertionError("the last line takes every GPU")


def _expert_parallel(arguments: dict[str, Any]) -> bool | None:
    if arguments.get("disable-expert-parallel") is True:
        return False
    value = arguments.get(EXPERT_PARALLEL)
    return value if isinstance(value, bool) else None


def _number(arguments: dict[str, Any], key: str, default: float) -> float:
    value = arguments.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise UsageError(
            f"{key} is {value!r}, and has to be a number",
            where=f"profile key engine_arguments.{key}",
            hint="give a number, without quotes",
        )
    return value
