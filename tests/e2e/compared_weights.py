"""A source and a variant in two folders, and how they are compared; for tests of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from narrow_numbers import Stored
from pydantic import TypeAdapter
from small_checkpoint import write_files
from sound_variants import (
    WEIGHTS,
    Tensors,
    recipe,
    safetensors_of,
    source_files,
    source_tensors,
    variant_files,
    variant_tensors,
    write_weights,
)
from weight_comparer import Compare, check_variant

from pipeline.stages.check_weights import VerificationResult
from prepare.errors import VerificationError
from recipes.quantization import AnyQuantization, Quantization

INDEX = "model.safetensors.index.json"


class Verification:
    """A source and a variant."""

    def __init__(self, folder: Path, compare: Compare) -> None:
        self.source, self.variant = folder / "source", folder / "variant"
        self.compare = compare

    def write(self, kind: str, *, tied: bool = True, scale: str = "BF16") -> None:
        self.kind = kind
        write_files(self.source, source_files(tied=tied))
        write_files(self.variant, variant_files(kind, tied=tied, scale=scale))

    def write_variant_weights(self, tensors: Tensors) -> None:
        write_weights(self.variant, tensors)

    def write_changed(
        self, kind: str, changes: Mapping[str, Stored | None], *, tied: bool = True
    ) -> None:
        """A variant of that kind, some of whose tensors are others, more, or gone (None)."""
        self.write(kind, tied=tied)
        tensors = variant_tensors(kind, tied=tied) | changes
        self.write_variant_weights({name: t for name, t in tensors.items() if t is not None})

    def fault_of(
        self,
        kind: str,
        changes: Mapping[str, Stored | None],
        *,
        tied: bool = True,
        ignore: tuple[str, ...] = ("lm_head",),
    ) -> str:
        """What is told of such a variant."""
        self.write_changed(kind, changes, tied=tied)
        return self.fault(ignore).message

    def add_to_source(self, tensors: Tensors, *, tied: bool = True) -> None:
        """Give the source these tensors, in place of the original ones or in addition."""
        weights = safetensors_of(source_tensors(tied=tied) | tensors)
        (self.source / WEIGHTS).write_bytes(weights)

    def run(self, ignore: tuple[str, ...] = ("lm_head",)) -> VerificationResult:
        quantization: Quantization = TypeAdapter(AnyQuantization).validate_python(
            recipe(self.kind, ignore)
        )
        return check_variant(self.source, self.variant, quantization, self.compare)

    def fault(self, ignore: tuple[str, ...] = ("lm_head",)) -> VerificationError:
        """The error that the comparison ends with; it names where."""
        with pytest.raises(VerificationError) as caught:
            self.run(ignore)
        assert str(self.variant) in caught.value.where
        return caught.value


def shard(folder: Path, tensors: Tensors) -> list[str]:
    """Spread the weights over two files with an index; their names."""
    (folder / WEIGHTS).unlink()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    every = list(tensors)
    halves = [every[: len(every) // 2], every[len(every) // 2 :]]
    weight_map: dict[str, str] = {}
    for name, half in zip(names, halves, strict=True):
        (folder / name).write_bytes(safetensors_of({tensor: tensors[tensor] for tensor in half}))
        weight_map |= dict.fromkeys(half, name)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return names


def forget(folder: Path, forgotten: Callable[[str, str], bool]) -> set[str]:
    """Leave tensors out of the index, by tensor and file; the tensors."""
    index = folder / INDEX
    weight_map = json.loads(index.read_text())["weight_map"]
    kept = {tensor: name for tensor, name in weight_map.items() if not forgotten(tensor, name)}
    index.write_text(json.dumps({"weight_map": kept}))
    return set(weight_map) - set(kept)
