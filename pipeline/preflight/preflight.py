"""Runs all checks and refuses the run with all faults together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline.checkpoint import unsupported
from pipeline.checkpoint.folder import context_length, needs_own_code
from pipeline.core.errors import CheckpointError, PreflightError, PrepareError
from pipeline.inspection.dequantized_source import dequantized
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.variant_size import VariantWeights
from pipeline.plan.gpu_fit import gpu_remarks
from pipeline.plan.host_memory import (
    SMALL_FILES_BYTES,
    check_need,
    quantize_need,
    serve_need,
    stage_needs,
)
from pipeline.plan.machine import Machine, gpu_type
from pipeline.plan.memory import Gpus, Model, variants_of
from pipeline.preflight import checks
from recipes import catalog
from recipes.schema import Recipe, ServingProfile


@dataclass(frozen=True)
class PreflightInput:
    """A run's models, recipes, profile and machine."""

    source: HeaderSource  # config and headers of the checkpoint
    recipes: Sequence[Recipe]  # of the variants
    baseline: Recipe
    profile: ServingProfile
    machine: Machine
    store: Path  # for messages
    trust_remote_code: bool = False  # run Python code from the checkpoint
    # recipes whose weights exist already: checks of quantizing are skipped
    made: frozenset[str] = frozenset()
    draft_bytes: int = 0  # weights of the variants' draft model
    # headers of variants that others quantized, by name
    adopted: Mapping[str, HeaderSource] = field(default_factory=dict)

    def faults(self) -> list[PrepareError]:
        found = [
            *self._find_checkpoint_faults(),
            checks.find_missing_gpus(self.profile, self.machine),
            checks.find_driver_fault(self.profile, self.machine),
            *(checks.find_gpu_fault(each, self.profile, self.machine) for each in self.recipes),
            *(
                fault
                for recipe in self.recipes
                for fault in checks.find_unsuitable(
                    recipe,
                    self.recipe_source,
                    self.weights[recipe.name],
                    made=recipe.name in self.made,
                )
            ),
            *self._find_gpu_memory_faults(),
            *self._find_memory_faults(),
        ]
        return [fault for fault in found if fault is not None]

    def disk_fault(self, stored: Collection[str], download: int = 0) -> list[PrepareError]:
        """Return at most one fault: the missing variants need more space than the store's disk has.

        `stored` names further recipes that are in the store. `download` are bytes of the checkpoint
        on
        the same disk.
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

    def pair_faults(self) -> list[PrepareError]:
        """Return the variants that cannot be served next to the baseline, as speed ratios need."""
        if (model := self.model) is None:
            return []
        memory = self.machine.memory_bytes
        needs = {
            recipe.name: serve_need(
                model, recipe, self.weights[recipe.name], self.profile, self.draft_bytes
            )
            for recipe in self._served
        }
        baseline = needs.pop(self.baseline.name).host_bytes or 0
        return [
            PreflightError(
                f"the servers of '{name}' and of the baseline need about "
                f"{(need.host_bytes + baseline) / 1e9:,.1f} GB of memory together, this machine "
                f"has {memory / 1e9:,.1f} GB",
                where="policy key speed: both servers run concurrently",
                hint="run on a machine with more memory, serve with a smaller KV cache, or use a "
                "policy without a speed ratio",
            )
            for name, need in needs.items()
            if need.host_bytes is not None
            and need.host_bytes <= memory < need.host_bytes + baseline
        ]

    def memory_to_make(self) -> dict[tuple[str, str], int]:
        if (model := self.model) is None:
            return {}
        needs = [
            need
            for recipe in self.recipes
            for need in (
                quantize_need(model, recipe, self.weights[recipe.name], self.profile),
                check_need(model, recipe, self.weights[recipe.name]),
            )
        ]
        return {
            (each.stage, each.variant): each.host_bytes
            for each in needs
            if each and each.host_bytes
        }

    @property
    def architecture(self) -> str:
        return self.source.architecture

    @cached_property
    def recipe_source(self) -> HeaderSource:
        """What recipes start from: the checkpoint in 16 bits."""
        return dequantized(self.source)

    @cached_property
    def weights(self) -> dict[str, VariantWeights]:
        return variants_of(self.source, self._served, self.adopted)

    def notes(self) -> list[str]:
        found = []
        if isinstance(self._inspected, CheckpointError):
            found.append(f"memory is not checked before the run: {self._inspected.message}")
        elif self.machine.gpu and checks.is_pipelined(self.profile):
            found.append("GPU memory is not checked before the run: layers are spread over stages")
        elif (gpu := self.machine.gpu) and gpu_type(self.machine) is None:
            found.append(
                f"GPU memory is not checked before the run: no file in recipes/gpus describes {gpu}"
            )
        elif gpu and self.model and self.model.unknown:
            found.append(
                f"room for the KV cache is not checked before the run: {self.model.unknown}"
            )
        if self.profile.accelerator == "cuda":
            found += gpu_remarks(self._served, self.machine.compute_capability)
        return found

    def _find_checkpoint_faults(self) -> Iterator[PrepareError | None]:
        source, where = self.source, self.source.where
        yield unsupported.architecture_error(self.architecture, source.config, where)
        to_make = (each for each in self.recipes if each.quantization.quantizes)
        if any(recipe.name not in self.made for recipe in to_make):
            yield unsupported.dequantization_error(where, source.format)
        yield checks.find_loading_fault(source, self.profile)
        for name, header in self.adopted.items():
            yield checks.find_loading_fault(header, self.profile, name)
        if needs_own_code(source.config) and not self.trust_remote_code:
            yield unsupported.own_code_error(where)

    def _find_gpu_memory_faults(self) -> Iterator[PrepareError]:
        """Yield the models that the engine could not start on this machine's GPUs.

        GPUs of unknown memory are not checked.
        """
        profile, model = self.profile, self.model
        gpu = gpu_type(self.machine)
        if model is None or gpu is None or profile.accelerator != "cuda":
            return
        if checks.is_pipelined(profile):
            return
        together = checks.tensor_parallel(profile)
        site = Gpus.of(model, gpu, together, profile, draft_bytes=self.draft_bytes)
        for fit in site.fits(self.weights, [together]):
            if fit.answer == "does not fit":
                name = self.machine.gpu if gpu.name == "this-gpu" else gpu.name
                number = f"{together} x {name}" if together > 1 else f"one {name}"
                yield PreflightError(
                    f"'{fit.variant}' cannot be served on {number}: {fit.reason}",
                    where=f"--profile {profile.name}",
                    hint=fit.hint
                    + ("" if fit.variant == self.baseline.name else "; or leave the recipe out"),
                )

    def _find_memory_faults(self) -> Iterator[PrepareError]:
        memory, model = self.machine.memory_bytes, self.model
        if model is None:
            return
        for need in stage_needs(
            model,
            self._served,
            self.weights,
            self.profile,
            self.made,
            draft_bytes=self.draft_bytes,
        ):
            if need.host_bytes is not None and need.host_bytes > memory:
                yield PreflightError(
                    f"the stage '{need.stage}' of '{need.variant}' needs about "
                    f"{need.host_bytes / 1e9:,.1f} GB of memory ({need.basis}), this machine has "
                    f"{memory / 1e9:,.1f} GB",
                    where=f"--recipe {need.variant}",
                    hint="run on a machine with more memory"
                    + (", or leave the recipe out" if need.variant != catalog.BASELINE else ""),
                )

    @property
    def _served(self) -> tuple[Recipe, ...]:
        return (self.baseline, *self.recipes)

    @cached_property
    def _inspected(self) -> Model | CheckpointError:
        """The checkpoint's shape, or the error if config.json lacks a required number."""
        try:
            return Model.of(self.source)
        except CheckpointError as error:
            return error

    @property
    def longest(self) -> int | None:
        """Tokens of a sequence, at most: the engine's limit, or the model's; None if unknown."""
        limit = self.profile.engine_arguments.get("max-model-len")
        return limit if isinstance(limit, int) else context_length(self.source.config)

    @property
    def model(self) -> Model | None:
        return self._inspected if isinstance(self._inspected, Model) else None


def refuse(faults: Iterable[PrepareError]) -> None:
    """Raise the only fault, or one error that lists all; return if there is none.

    Raises:
        PrepareError: the run would fail.
    """
    if (found := refusal(list(faults))) is not None:
        raise found


def refusal(faults: Sequence[PrepareError]) -> PrepareError | None:
    """Return the only fault, or one error that lists all; None if there is none."""
    if len(faults) < 2:
        return next(iter(faults), None)
    listed = "\n".join(f"  {n}. {line(fault)}" for n, fault in enumerate(faults, start=1))
    return PreflightError(f"{len(faults)} things would make this run fail\n{listed}")


def line(fault: PrepareError) -> str:
    """Return message, place and hint in one line."""
    place = f"; where: {fault.where}" if fault.where else ""
    return f"{fault.message}{place}" + (f"; hint: {fault.hint}" if fault.hint else "")
