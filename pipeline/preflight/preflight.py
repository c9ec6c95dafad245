"""Checks before a run, of options, machine and small files.

All faults are refused together with exit code 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rich.filesize import decimal

from eval_gates.suites.suite_kind import kind_of
from pipeline.plan.choice import Choice
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.preflight.checkpoint_faults import (
    calibration_faults,
    checkpoint_faults,
    describes_other_weights,
    longest_context,
    may_exceed_context,
)
from pipeline.preflight.generation_faults import form_notes, generation_faults, tool_notes
from pipeline.preflight.gpu_fit import gpu_remarks
from pipeline.preflight.host_memory import HostNeed, making_needs, serving_bytes
from pipeline.preflight.machine import (
    Machine,
    find_driver_fault,
    find_gpu_fault,
    find_missing_gpus,
    gpu_type,
)
from pipeline.preflight.memory import SMALL_FILES_BYTES, Division, Gpus, Model, variants_of
from pipeline.preflight.suitability import (
    find_expert_fault,
    find_loading_fault,
    find_making_faults,
    find_serving_fault,
)
from pipeline.preflight.tokenizer_faults import tokenizer_faults
from prepare.errors import (
    CheckpointError,
    PreflightError,
    PrepareError,
    UsageError,
)
from recipes import catalog
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.dequantized_source import dequantized
from recipes.checkpoints.folder import context_length
from recipes.checkpoints.tokenizer_file import TOKENIZER, added_tokens
from recipes.checkpoints.variant_size import VariantWeights
from recipes.engines import find_engine
from recipes.schema import Recipe, ServingProfile
from recipes.traffic_file import check_workload


@dataclass(frozen=True)
class Preflight:
    """A run's models, recipes, profile and machine."""

    source: Checkpoint  # of the checkpoint
    choices: Choice
    machine: Machine
    store: Path  # for messages
    # recipes whose weights exist already: checks of quantizing are skipped
    made: frozenset[str] = frozenset()
    draft_bytes: int = 0  # of the variants' draft model

    @property
    def profile(self) -> ServingProfile:
        return self.choices.profile

    @cached_property
    def adopted(self) -> Mapping[str, Checkpoint]:
        """Headers of variants that others quantized, by name."""
        return self.choices.headers

    def faults(self) -> list[PrepareError]:
        """Return all faults, in reading order."""
        features = self.choices.node.cpu_features
        faults = [
            *self._of_files(),
            find_missing_gpus(self.profile, self.machine),
            find_driver_fault(self.profile, self.machine),
            *(
                find_gpu_fault(recipe, self.profile, self.machine)
                for recipe in self.choices.recipes
            ),
            *(
                fault
                for recipe in self._to_make
                if recipe.quantization.quantizes
                for fault in find_making_faults(
                    recipe, self.recipe_source, self.weights[recipe.name]
                )
            ),
            *(
                find_serving_fault(recipe, self.weights[recipe.name], self.profile, features)
                for recipe in self._to_make
            ),
            *self._of_kv_formats(),
            *self._of_gpu_memory(),
            *self._of_memory(),
            *self._of_asking(),
        ]
        return [fault for fault in faults if fault is not None]

    def bytes_to_make(self, stored: Collection[str] = ()) -> int:
        """Return the disk that the missing variants take, with what they are made from."""
        to_make = self._to_store(stored)
        wide = self.recipe_source.weights_bytes if self.source.format and to_make else 0
        return sum(to_make.values()) + wide

    def _to_store(self, stored: Collection[str]) -> dict[str, int]:
        """Return the bytes of missing variants, by the name of their weights."""
        return {  # variants that differ by their KV cache alone share their weights
            self.choices.weights_name(name): made.bytes + SMALL_FILES_BYTES
            for name, made in self.weights.items()
            if name not in self.made.union(stored, [catalog.BASELINE])
        }

    def disk_fault(self, stored: Collection[str], download: int = 0) -> list[PrepareError]:
        """Return the fault of a disk without space for the missing variants.

        `stored` variants exist. `download` is the checkpoint's bytes on the same disk.
        """
        to_make = self._to_store(stored)
        wide = self.recipe_source.weights_bytes if self.source.format and to_make else 0
        needed = self.bytes_to_make(stored) + download
        free = self.machine.free_disk_bytes
        if needed <= free:
            return []
        parts = [f"{name} {decimal(size)}" for name, size in to_make.items()]
        if wide:
            parts.insert(0, f"the checkpoint in 16 bits {decimal(wide)}")
        if download:
            parts.insert(0, f"download {decimal(download)}")
        elsewhere = ", name another place with --store DIR, or leave recipes out"
        return [
            PreflightError(
                f"the run needs {decimal(needed)} of disk ({', '.join(parts)}), "
                f"{decimal(free)} are free",
                where=str(self.store),
                hint=f"free some space{elsewhere if to_make else ''}",
            )
        ]

    def memory_to_make(self) -> int:
        """Return the peak bytes of making or checking a variant."""
        if (model := self.model) is None:
            return 0
        weights = self.weights
        profile = self.profile
        recipes = self.choices.recipes
        every = (making_needs(model, recipe, weights[recipe.name], profile) for recipe in recipes)
        return max((need.host_bytes for needs in every for need in needs), default=0)

    def notes(self) -> list[str]:
        """Return what could not be checked."""
        notes = []
        gpu = self.machine.gpu
        why = ""
        if isinstance(self._inspected, CheckpointError):
            why = self._inspected.message
        elif gpu and self._is_pipelined:
            why = "layers are spread over stages"
        elif gpu and gpu_type(self.machine) is None:
            why = f"no file in recipes/gpus describes {gpu}"
        elif gpu:
            why = self._inspected.unknown
        if why:
            notes.append(f"memory is not checked before the run: {why}")
        notes += form_notes(self.choices.policy, self.source.generation)
        notes += tool_notes(self.choices.policy, self.profile)
        if self.profile.accelerator == "cuda":
            notes += gpu_remarks(self._served, self.machine.compute_capability)
        return notes

    @cached_property
    def recipe_source(self) -> Checkpoint:
        """The checkpoint in 16 bits."""
        return dequantized(self.source)

    @cached_property
    def weights(self) -> dict[str, VariantWeights]:
        return variants_of(self.source, self._served, self.adopted)

    @property
    def sizes(self) -> dict[str, int]:
        """Expected bytes of weights, by recipe."""
        return {name: weights.bytes for name, weights in self.weights.items()}

    @property
    def longest(self) -> int | None:
        """Most tokens of a sequence; None if unknown."""
        limit = self.profile.engine_arguments.get("max-model-len")
        if not isinstance(limit, int):
            return context_length(self.source.config)
        if may_exceed_context(self.profile):
            return limit
        return min(limit, longest_context(self.source.config) or limit)

    @property
    def model(self) -> Model | None:
        return self._inspected if isinstance(self._inspected, Model) else None

    def _of_files(self) -> Iterator[PrepareError | None]:
        source = self.source
        features = self.choices.node.cpu_features
        yield from checkpoint_faults(
            source,
            self.profile,
            quantizes=any(recipe.quantization.quantizes for recipe in self._to_make),
            trust_remote_code=self.choices.asked.trust_remote_code,
        )
        if not describes_other_weights(source):
            yield find_loading_fault(source, self.profile)
            yield find_expert_fault(source, self.profile, features)
        for name, header in self.adopted.items():
            yield find_loading_fault(header, self.profile, name)
            yield find_expert_fault(header, self.profile, features, name)
        for recipe in self._to_make:
            yield from calibration_faults(recipe, source.generation)

    def _of_kv_formats(self) -> Iterator[PrepareError]:
        """Yield formats of `--kv` and `--served-variant` that the engine lacks on such a machine.

        A CPU profile's own was checked when it was chosen.
        """
        choices = self.choices
        asked = dict[str, str]()
        for recipe in choices.recipes:
            kv_format = choices.profile_of(recipe).kv_cache_dtype
            is_of_option = recipe.name in choices.kv_formats
            where = f"--kv {kv_format}" if is_of_option else f"--served-variant {recipe.name}"
            if is_of_option or kv_format != self.profile.kv_cache_dtype:
                asked.setdefault(where, kv_format)
        for where, kv_format in asked.items():
            if lack := self._lacks_cache(kv_format):
                hint = "leave the format out, or name another profile"
                yield UsageError(lack, where=where, hint=hint)

    def _lacks_cache(self, kv_format: str) -> str:
        """Return why the engine has no such KV cache on such a machine, or an empty text."""
        engine = find_engine(self.profile.engine)
        if self.profile.accelerator == "cpu":
            return engine.lacks(self.choices.node.cpu_features, kv_format)
        gpu = gpu_type(self.machine)
        capability = gpu.compute_capability if gpu is not None else 0.0
        return engine.lacks_cache(kv_format, self.source.config, capability)

    def _of_gpu_memory(self) -> Iterator[PrepareError]:
        """Yield models that GPUs cannot divide or hold."""
        profile = self.profile
        model = self.model
        if model is None or profile.accelerator != "cuda" or self._is_pipelined:
            return
        together = self._tensor_parallel
        gpu = gpu_type(self.machine)
        if gpu is None:
            divided = Division.of(model, self.weights[catalog.BASELINE])
            if why := divided.obstacles(model, together)[0]:
                yield PreflightError(
                    f"the model cannot be served: {why}",
                    where=f"--profile {profile.name}, key engine_arguments.tensor-parallel-size",
                    hint="choose a number that divides them, with --gpus-a-copy",
                )
            return
        site = Gpus.of(
            *(model, gpu, together, profile),
            draft_bytes=self.draft_bytes,
            kv_formats=self.choices.kv_formats,
        )
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
        memory = self.machine.memory_bytes
        model = self.model
        profile = self.profile
        if model is None:
            return
        needs = []
        servers = {}
        for recipe in self._served:
            weights = self.weights[recipe.name]
            served = serving_bytes(model, recipe, weights, profile, self.draft_bytes)
            servers[recipe.name] = served
            made = making_needs(model, recipe, weights, profile)
            needs += [n for n in made if n.stage != "quantize" or recipe.name not in self.made]
            needs.append(HostNeed("serve", recipe.name, served))
        for need in needs:
            if need.host_bytes > memory:
                yield self._lacks_memory(
                    f"the stage '{need.stage}' of '{need.variant}' needs",
                    need.host_bytes,
                    *self._place(need.variant),
                )
        speed_gates = find_speed_gates(self.choices.policy, profile)
        if profile.starts != "once" or not any(
            speed_gate.rule.compares for speed_gate in speed_gates
        ):
            return
        together = sum(servers.values())
        if max(servers.values()) <= memory < together:
            yield self._lacks_memory(
                f"the servers of {', '.join(servers)}, which stay up together, need",
                together,
                "policy key speed",
                ", ask for one variant, take a profile with 'starts: fresh', or a policy without a "
                "speed ratio",
            )

    def _lacks_memory(self, what: str, needed: int, where: str, otherwise: str) -> PreflightError:
        return PreflightError(
            f"{what} about {decimal(needed)} of memory, this machine has "
            f"{decimal(self.machine.memory_bytes)}",
            where=where,
            hint="run on a machine with more memory" + otherwise,
        )

    def _of_asking(self) -> Iterator[PrepareError]:
        config = self.source.config
        generation = self.source.generation
        try:
            tokenizer = self.source.tokenizer
        except CheckpointError as fault:
            yield fault
            tokenizer = None
        if tokenizer is not None:
            yield from tokenizer_faults(self.source.small.path(TOKENIZER), tokenizer, self.source)
            tokens = {**added_tokens(tokenizer.parts), **generation.added_tokens}
            generation = replace(generation, added_tokens=tokens)
        longest = self.longest
        profile = self.profile
        policy = self.choices.policy
        yield from generation_faults(policy, generation, longest, config, profile)
        if longest is None:
            return
        for name, suite in policy.suites.items():
            try:
                kind_of(suite).fit(name, suite, longest, lambda note: None)
            except UsageError as fault:
                yield fault
        for speed_gate in find_speed_gates(policy, self.profile):
            try:
                check_workload(speed_gate.workload, speed_gate.where, longest)
            except UsageError as fault:
                yield fault

    def _place(self, variant: str) -> tuple[str, str]:
        """Return the variant's option, and how to omit it."""
        if variant == catalog.BASELINE or variant in self.made:
            return f"the server of '{variant}'", ""
        if variant in self.adopted:
            return f"--variant {variant}", "; or leave the variant out"
        return f"--recipe {variant}", "; or leave the recipe out"

    @property
    def _served(self) -> tuple[Recipe, ...]:
        return (self.choices.baseline, *self.choices.recipes)

    @property
    def _to_make(self) -> list[Recipe]:
        return [recipe for recipe in self.choices.recipes if recipe.name not in self.made]

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
