"""Variants of a model with fused matrices, scaled as llm-compressor and AutoAWQ scale Phi-3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow_numbers import bf16, from_bf16
from pydantic import TypeAdapter
from small_checkpoint import write_files
from sound_variants import (
    WEIGHTS,
    Tensors,
    quantization_config,
    quantized,
    recipe,
    source_files,
    write_weights,
)

from pipeline.core.errors import VerificationError
from pipeline.verification.verification import verify_variant
from recipes.quantization import AnyQuantization, Quantization

HIDDEN, WIDE, SHARED = 128, 256, 64
BLOCK = "model.layers.0"
QKV, OUT = f"{BLOCK}.self_attn.qkv_proj", f"{BLOCK}.self_attn.o_proj"
GATE_UP, DOWN = f"{BLOCK}.mlp.gate_up_proj", f"{BLOCK}.mlp.down_proj"
NORMS = {QKV: f"{BLOCK}.input_layernorm", GATE_UP: f"{BLOCK}.post_attention_layernorm"}
KINDS = ("awq", "awq-sym", "autoawq")


class Fused:
    """One block, before and after; `scale` is what the quantizers do before they round."""

    def __init__(self, *, keys: int = HIDDEN) -> None:
        self.random = np.random.default_rng(11)
        shapes = {
            QKV: (HIDDEN + 2 * keys, HIDDEN),
            OUT: (HIDDEN, HIDDEN),
            GATE_UP: (2 * WIDE, HIDDEN),
            DOWN: (HIDDEN, WIDE),
        }
        self.source: Tensors = {
            "model.embed_tokens.weight": bf16(self.random.normal(size=(32, HIDDEN))),
            **{
                f"{name}.weight": bf16(self.random.uniform(0.5, 2, HIDDEN))
                for name in NORMS.values()
            },
            **{f"{n}.weight": bf16(self.random.normal(size=s) * 0.02) for n, s in shapes.items()},
        }
        self.after = {name: from_bf16(self.source[f"{name}.weight"]).copy() for name in shapes}
        self.norms = {name: from_bf16(self.source[f"{name}.weight"]) for name in NORMS.values()}
        for name, norm in NORMS.items():
            factors = self.factors(HIDDEN)
            self.norms[norm] = self.norms[norm] / factors
            self.after[name] *= factors

    def factors(self, count: int, middle: float = 4) -> Any:
        """Far from 1 on average, as AWQ's may be."""
        factors = self.random.uniform(1, 8, count)
        return factors / np.median(factors) * middle

    def scale(self, before: str, after: str, middle: float = 4) -> None:
        """Divide the last rows of one, multiply the columns of the other."""
        factors = self.factors(self.after[after].shape[1], middle)
        self.after[before][-len(factors) :] /= factors[:, None]
        self.after[after] *= factors

    def verify(self, folder: Path, kind: str) -> None:
        """Write both, and compare them."""
        source, variant = folder / "source", folder / "variant"
        files = source_files()
        write_files(source, files)
        write_weights(source, self.source)
        config = json.loads(files["config.json"])
        config["quantization_config"] = quantization_config(kind)
        write_files(variant, files | {"config.json": json.dumps(config).encode()})
        tensors = self.source | {f"{name}.weight": bf16(norm) for name, norm in self.norms.items()}
        for name, weights in self.after.items():
            del tensors[f"{name}.weight"]
            tensors |= quantized(name, weights, kind, "BF16")
        (variant / WEIGHTS).unlink(missing_ok=True)
        write_weights(variant, tensors)
        asked: Quantization = TypeAdapter(AnyQuantization).validate_python(recipe(kind))
        verify_variant(source, variant, asked, lambda done, total: None)

    def fault(self, folder: Path, kind: str) -> str:
        """What it ends with."""
        with pytest.raises(VerificationError) as caught:
            self.verify(folder, kind)
        return caught.value.message


@pytest.mark.parametrize("kind", KINDS)
class TestFusedMatrices:
    def test_the_last_part_makes_up_for_the_layer_after(self, tmp_path: Path, kind: str) -> None:
        fused = Fused()
        fused.scale(QKV, OUT)
        fused.scale(GATE_UP, DOWN)
        fused.verify(tmp_path, kind)

    def test_shared_heads_are_left_alone(self, tmp_path: Path, kind: str) -> None:
        """As llm-compressor does: it scales `qkv_proj` where it has three equal parts only."""
        fused = Fused(keys=SHARED)
        fused.scale(GATE_UP, DOWN)
        fused.verify(tmp_path, kind)

    def test_shared_heads_that_were_scaled(self, tmp_path: Path, kind: str) -> None:
        """As AutoAWQ does, and the rows are those of queries and keys too."""
        fused = Fused(keys=SHARED)
        fused.scale(QKV, OUT, middle=1)
        assert f"'{BLOCK}.self_attn." in fused.fault(tmp_path, kind)

    @pytest.mark.parametrize(("before", "after"), [(QKV, OUT), (GATE_UP, DOWN)])
    def test_only_the_columns_were_scaled(
        self, tmp_path: Path, kind: str, before: str, after: str
    ) -> None:
        fused = Fused()
        fused.after[after] *= fused.factors(fused.after[after].shape[1])
        part = "v_proj" if before == QKV else "up_proj"
        assert fused.fault(tmp_path, kind).startswith(
            f"the rows of '{before}.{part}' and the columns of '{after}' were rescaled"
        )

    @pytest.mark.parametrize(("before", "part"), [(QKV, "k_proj"), (GATE_UP, "gate_proj")])
    def test_rows_of_another_part_were_scaled(
        self, tmp_path: Path, kind: str, before: str, part: str
    ) -> None:
        fused = Fused()
        width = WIDE if before == GATE_UP else HIDDEN
        fused.after[before][-2 * width : -width] /= fused.factors(width, 1)[:, None]
        assert f"the rows of '{before}.{part}' were rescaled" in fused.fault(tmp_path, kind)

    @pytest.mark.parametrize(("before", "part"), [(QKV, "q_proj"), (GATE_UP, "gate_proj")])
    def test_another_part_is_doubled(
        self, tmp_path: Path, kind: str, before: str, part: str
    ) -> None:
        """Its rows are all scaled alike: only against the norm does it show."""
        fused = Fused()
        fused.scale(QKV, OUT)
        fused.scale(GATE_UP, DOWN)
        fused.after[before][: WIDE if before == GATE_UP else HIDDEN] *= 2
        what = fused.fault(tmp_path, kind)
        assert f"'{before}.{part}' is scaled by " in what
        factor = float(what.partition("is scaled by ")[2].split()[0])
        assert factor == pytest.approx(2, abs=0.1)

    @pytest.mark.parametrize(("before", "after"), [(QKV, OUT), (GATE_UP, DOWN)])
    def test_the_layer_after_is_doubled(
        self, tmp_path: Path, kind: str, before: str, after: str
    ) -> None:
        fused = Fused()
        fused.scale(before, after)
        fused.after[after] *= 2
        assert f"'{before}." in fused.fault(tmp_path, kind)

    def test_the_norm_was_not_divided(self, tmp_path: Path, kind: str) -> None:
        fused = Fused()
        fused.scale(GATE_UP, DOWN)
        norm = NORMS[GATE_UP]
        fused.norms[norm] = from_bf16(fused.source[f"{norm}.weight"])
        assert f"the columns of '{GATE_UP}." in fused.fault(tmp_path, kind)
