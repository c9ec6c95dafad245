"""Checks before a run, of options, machine and small files.

All faults are refused together with exit code 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from eval_gates.suites.suite_kind import kind_of
from pipeline.core.errors import (
    CheckpointError,
    PreflightError,
    PrepareError,
    UsageError,
)
from pipeline.plan.chat_api import chat_faults
from pipeline.plan.checkpoint_faults import (
    calibration_faults,
    checkpoint_faults,
    describes_other_weights,
    read_tokenizer,
)
from pipeline.plan.generation_settings import form_notes, generation_faults
from pipeline.plan.gpu_fit import gpu_remarks
from pipeline.plan.host_memory import host_needs, making_needs, serving_need
from pipeline.plan.machine import (
    Machine,
    find_driver_fault,
    find_gpu_fault,
    find_missing_gpus,
    gpu_type,
)
from pipeline.plan.memory import SMALL_FILES_BYTES, Division, Gpus, Model, variants_of
from pipeline.plan.speed_plan import find_claims
from pipeline.plan.suitability import find_loading_fault, find_making_faults
from recipes import catalog
from recipes.checkpoints.dequantized_source import dequantized
from recipes.checkpoints.folder import context_length
from recipes.checkpoints.header_source import HeaderSource
from recipes.checkpoints.variant_size import VariantWeights
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile
from recipes.traffic_file import check_workload


@dataclass(frozen=True)
class Preflight:
    """A run's models, recipes, profile and machine."""

    source: HeaderSource  # of the checkpoint
    recipes: Sequence[Recipe]  # of the variants
    baseline: Recipe
    profile: ServingProfile
    machine: Machine
    store: Path  # for messages
    policy: Policy | None = None  # None: no suite is asked
    trust_remote_code: bool = False  # run Python code from the checkpoint
    # recipes whose weights exist already: checks of quantizing are skipped
    made: frozenset[str] = frozenset()
    draft_bytes: int = 0  # of the variants' draft model
    # headers of variants that others quantized, by name
    adopted: Mapping[str, HeaderSource] = field(default_factory=dict)

    def faults(self) -> list[PrepareError]:
        """Return all faults, in reading order."""
        found = [
            *self._of_files(),
            find_missing_gpus(self.profile, self.machine),
            find_driver_fault(self.profile, self.machine),
            *(find_gpu_fault(each, self.profile, self.machine) for each in self.recipes),
            *(
                fault
                for each in self._to_make
                if each.quantization.quantizes
                for fault in find_making_faults(each, self.recipe_source, self.weights[each.name])
            ),
            *self._of_gpu_memory(),
            *self._of_memory(),
            *self._of_asking(),
        ]
        return [fault for fault in found if fault is not None]

    def disk_fault(self, stored: Collection[str], download: int = 0) -> list[PrepareError]:
        """Return the fault of a disk without space for the missing variants.

        `stored` variants exist. `download` is the checkpoint's bytes on the same disk.
        """
        to_make = {
            name: made.bytes + SMALL_FILES_BYTES
            for name, made in self.weights.items()
            if name not in self.made.union(stored, [catalog.BASELINE])
        }
        wide = self.recipe_source.weights_bytes if self.source.format and to_make else 0
        needed = sum(to_make.values()) + wide + download
        free = self.machine.free_disk_bytes
        if needed <= free:
            return []
        parts = [f"{name} {size / 1e9:,.1f}" for name, size in to_make.items()]
        if wide:
            parts.insert(0, f"the checkpoint in 16 bits {wide / 1e9:,.1f}")
        if download:
            parts.insert(0, f"download {download / 1e9:,.1f}")
        elsewhere = ", name another place with --store DIR, or leave recipes out"
        return [
            PreflightError(
                f"the run needs {needed / 1e9:,.1f} GB of disk ({', '.join(parts)}), "
                f"{free / 1e9:,.1f} GB are free",
                where=str(self.store),
                hint=f"free some space{elsewhere if to_make else ''}",
            )
        ]

    def memory_to_make(self) -> int:
        """Return the peak bytes of making or checking a variant."""
        if (model := self.model) is None:
            return 0
        every = (making_needs(model, r, self.weights[r.name], self.profile) for r in self.recipes)
        return max((need.host_bytes for needs in every for need in needs), default=0)

    def notes(self) -> list[str]:
        """Return what could not be checked."""
        found, gpu, why = [], self.machine.gpu, ""
        unchecked = "GPU memory is not checked before the run"
        if isinstance(self._inspected, CheckpointError):
            why = f"memory is not checked before the run: {self._inspected.message}"
        elif gpu and self._is_pipelined:
            why = f"{unchecked}: layers are spread over stages"
        elif gpu and gpu_type(self.machine) is None:
            why = (
                f"GPU memory is not checked before the run: no file in recipes/gpus describes {gpu}"
            )
        elif gpu and self._inspected.unknown:
            why = f"room for the KV cache is not checked before the run: {self._inspected.unknown}"
        if why:
            found.append(why)
        if self.policy is not None:
            found += form_notes(self.policy, self.source.generation, self.source.config)
        if self.profile.accelerator == "cuda":
            found += gpu_remarks(self._served, self.machine.compute_capability)
        return found

    @cached_property
    def recipe_source(self) -> HeaderSource:
        """The checkpoint in 16 bits."""
        return dequantized(self.source)

    @cached_property
    def weights(self) -> dict[str, VariantWeights]:
        return variants_of(self.source, self._served, self.adopted)

    @property
    def longest(self) -> int | None:
        """Most tokens of a sequence; None if unknown."""
        limit = self.profile.engine_arguments.get("max-model-len")
        return limit if isinstance(limit, int) else context_length(self.source.config)

    @property
    def model(self) -> Model | None:
        return self._inspected if isinstance(self._inspected, Model) else None

    def _of_files(self) -> Iterator[PrepareError | None]:
        source = self.source
        yield from checkpoint_faults(
            source,
            self.profile,
            quantizes=any(each.quantization.quantizes for each in self._to_make),
            trust_remote_code=self.trust_remote_code,
        )
        if not describes_other_weights(source):
            yield find_loading_fault(source, self.profile)
        for name, header in self.adopted.items():
            yield find_loading_fault(header, self.profile, name)
        for recipe in self._to_make:
            yield from calibration_faults(recipe, source.generation)

    def _of_gpu_memory(self) -> Iterator[PrepareError]:
        """Yield models that GPUs cannot divide or hold."""
        profile, model = self.profile, self.model
        if model is None or profile.accelerator != "cuda" or self._is_pipelined:
            return
        together, gpu = self._tensor_parallel, gpu_type(self.machine)
        if gpu is None:
            divided = Division.of(model, self.weights[self.baseline.name])
            if why := divided.obstacles(model, together)[0]:
                yield PreflightError(
                    f"the model cannot be served: {why}",
                    where=f"--profile {profile.name}, key engine_arguments.tensor-parallel-size",
                    hint="choose a number that divides them, with --gpus-a-copy",
                )
            return
        site = Gpus.of(model, gpu, together, profile, draft_bytes=self.draft_bytes)
        for fit in site.fits(self.weights, [together]):
            if fit.answer == "does not fit":
                name = self.machine.gpu if gpu.name == "this-gpu" else gpu.name
                number = f"{together} x {name}" if together > 1 else f"one {name}"
                yield PreflightError(
                    f"'{fit.variant}' cannot be served on {number}: {fit.reason}",
                    where=f"--profile {profile.name}",
                    hint=fit.hint + self._place(fit.variant)[1],
                )

    def _of_memory(self) -> Iterator[PrepareError]:
        memory, model, drafted = self.machine.memory_bytes, self.model, self.draft_bytes
        if model is None:
            return
        served, profile = self._served, self.profile
        for need in host_needs(model, served, self.weights, profile, self.made, drafted):
            if need.host_bytes > memory:
                yield PreflightError(
                    f"the stage '{need.stage}' of '{need.variant}' needs about "
                    f"{need.host_bytes / 1e9:,.1f} GB of memory ({need.basis}), this machine has "
                    f"{memory / 1e9:,.1f} GB",
                    where=self._place(need.variant)[0],
                    hint="run on a machine with more memory" + self._place(need.variant)[1],
                )
        claims = find_claims(self.policy, profile) if self.policy else ()
        if profile.starts != "once" or not any(each.rule.compares for each in claims):
            return
        needs = [
            serving_need(model, each, self.weights[each.name], profile, drafted) for each in served
        ]
        first, *others = (need.host_bytes if need else 0 for need in needs)
        for recipe, alone in zip(self.recipes, others, strict=True):
            if alone <= memory < alone + first:
                yield PreflightError(
                    f"the servers of '{recipe.name}' and of the baseline need about "
                    f"{(alone + first) / 1e9:,.1f} GB of memory together, this machine has "
                    f"{memory / 1e9:,.1f} GB",
                    where="policy key speed: both servers run concurrently",
                    hint="run on a machine with more memory, serve with a smaller KV cache, or use "
                    "a policy without a speed ratio",
                )

    def _of_asking(self) -> Iterator[PrepareError]:
        if self.policy is None:
            return
        config, generation = self.source.config, self.source.generation
        file = Path(self.source.where).parent / "tokenizer.json"
        if file.is_file():
            try:
                tokens = {**read_tokenizer(file), **generation.added_tokens}
            except CheckpointError as fault:
                yield fault
            else:
                generation = replace(generation, added_tokens=tokens)
        yield from generation_faults(self.policy, generation, self.longest, config)
        yield from chat_faults(self.policy, generation, self.profile)
        yield from self._of_lengths(self.policy)

    def _of_lengths(self, policy: Policy) -> Iterator[PrepareError]:
        """Yield suites and loads with too long texts."""
        if (longest := self.longest) is None:
            return
        for name, suite in policy.suites.items():
            try:
                kind_of(suite).fit(name, suite, longest, lambda note: None)
            except UsageError as fault:
                yield fault
        for claim in find_claims(policy, self.profile):
            try:
                check_workload(claim.workload, claim.where, longest)
            except UsageError as fault:
                yield fault

    def _place(self, variant: str) -> tuple[str, str]:
        """Return the variant's option, and how to omit it."""
        if variant == self.baseline.name or variant in self.made:
            return f"the server of '{variant}'", ""
        if variant in self.adopted:
            return f"--variant {variant}", "; or leave the variant out"
        return f"--recipe {variant}", "; or leave the recipe out"

    @property
    def _served(self) -> tuple[Recipe, ...]:
        return (self.baseline, *self.recipes)

    @property
    def _to_make(self) -> list[Recipe]:
        return [each for each in self.recipes if each.name not in self.made]

    @property
    def _tensor_parallel(self) -> int:
        value = self.profile.engine_arguments.get("tensor-parallel-size", 1)
        return value if type(value) is int and value > 0 else 1

    @property
    def _is_pipelined(self) -> bool:
        return self.profile.engine_arguments.get("pipeline-parallel-size", 1) != 1

    @cached_property
    def _inspected(self) -> Model | CheckpointError:
        """The checkpoint's shape, or config.json's error."""
        try:
            return Model.of(self.source)
        except CheckpointError as error:
            return error
