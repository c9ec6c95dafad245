"""Runs all checks and refuses the run with everything they found at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.checkpoint import refusals
from pipeline.checkpoint.folder import CODE_KEY
from pipeline.core.cpu_features import cpu_features
from pipeline.core.errors import CheckpointError, PreflightError, PrepareError
from pipeline.forecast import checks
from pipeline.forecast.machine import Machine
from pipeline.inspection.inspection import Inspection, inspect
from pipeline.inspection.source import Source
from pipeline.inspection.variant_size import variant_weights
from recipes import catalog
from recipes.schema import Recipe, ServingProfile


@dataclass(frozen=True)
class Preflight:
    """What is about to be run, and where."""

    source: Source  # config and headers of the checkpoint
    recipes: Sequence[Recipe]  # of the variants
    baseline: Recipe  # the recipe that changes nothing
    profile: ServingProfile  # says how variants are served
    machine: Machine  # that all of it happens on
    store: Path  # folder of the store, for messages
    trust_remote_code: bool = False  # run Python code from the checkpoint
    # names of recipes whose weights are there already, wherever they are: what only quantizing
    # needs is not asked of them
    made: frozenset[str] = frozenset()

    def faults(self) -> list[PrepareError]:
        """All that would make the run fail, the disk left out."""
        return [
            *self._find_checkpoint_faults(),
            *self._find_recipe_faults(),
            *self._find_memory_faults(),
        ]

    def disk_fault(self, stored: Collection[str], download: int = 0) -> list[PrepareError]:
        """Too little disk; at most one.

        Args:
            stored: recipes whose variants are in the store already, beside those in `made`.
            download: bytes of the checkpoint that have to be fetched to the store's disk.
        """
        have = self.made.union(stored)
        return drop_none(
            checks.find_disk_fault(self.weights, have, download, self.machine, str(self.store))
        )

    @property
    def architecture(self) -> str:
        """First of config.json's architectures."""
        names = self.source.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "unknown"

    @cached_property
    def weights(self) -> checks.Weights:
        """What each recipe makes of the checkpoint, the baseline's first."""
        tensors, config = self.source.tensors, self.source.config
        return {
            recipe.name: variant_weights(tensors, recipe.quantization, config)
            for recipe in (self.baseline, *self.recipes)
        }

    def notes(self) -> list[str]:
        """What could not be checked, and why."""
        found = []
        inspection = self._inspection
        if isinstance(inspection, CheckpointError):
            found.append(f"memory is not checked before the run: {inspection.what}")
        elif (gpu := self.machine.gpu) and catalog.gpu_of_driver(gpu) is None:
            found.append(
                f"GPU memory is not checked before the run: no file in recipes/gpus describes {gpu}"
            )
        return found

    def _find_checkpoint_faults(self) -> list[PrepareError]:
        source, where = self.source, self.source.where
        untrusted = CODE_KEY in source.config and not self.trust_remote_code
        return drop_none(
            refusals.architecture_error(self.architecture, where),
            refusals.quantized_error(where, source.names) if source.quantized else None,
            refusals.own_code_error(where) if untrusted else None,
        )

    def _find_recipe_faults(self) -> list[PrepareError]:
        features = cpu_features()
        return [
            *drop_none(checks.find_missing_gpus(self.profile, self.machine)),
            *drop_none(checks.find_driver_fault(self.profile, self.machine)),
            *drop_none(
                *(checks.find_gpu_fault(r, self.profile, self.machine) for r in self.recipes)
            ),
            *(
                fault
                for recipe in self.recipes
                for fault in checks.find_unsuitable(
                    recipe,
                    self.source,
                    self.weights[recipe.name],
                    self.architecture,
                    self.profile,
                    features,
                    made=recipe.name in self.made,
                )
            ),
        ]

    def _find_memory_faults(self) -> list[PrepareError]:
        inspection = self._inspection
        if isinstance(inspection, CheckpointError):
            return []  # reported by `notes`
        about = (inspection, (self.baseline, *self.recipes), self.weights)
        return [
            *checks.find_gpu_memory_faults(*about, self.profile, self.machine),
            *checks.find_memory_faults(*about, self.profile, self.machine, self.made),
        ]

    @cached_property
    def _inspection(self) -> Inspection | CheckpointError:
        """The checkpoint's shape; the error where config.json lacks a number that memory needs."""
        try:
            return inspect(self.source)
        except CheckpointError as error:
            return error


def drop_none(*faults: PrepareError | None) -> list[PrepareError]:
    """Those that are faults."""
    return [fault for fault in faults if fault is not None]


def refuse(faults: Iterable[PrepareError]) -> None:
    """Raise the only fault as it is, or one error that lists all; nothing where there is none.

    Raises:
        PrepareError: the run would fail.
    """
    found = list(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        listed = "\n".join(f"  {n}. {line(fault)}" for n, fault in enumerate(found, start=1))
        raise PreflightError(f"{len(found)} things would make this run fail\n{listed}")


def line(fault: PrepareError) -> str:
    """A fault in one line: what, and the cure."""
    return f"{fault.what}; cure: {fault.cure}" if fault.cure else fault.what
