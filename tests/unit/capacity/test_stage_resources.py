"""Minutes, memory and disk of stages: sums done by hand, and what the store has seen."""

from __future__ import annotations

from typing import Any

import pytest
from published_models import LLAMA_3_8B, inspected

from pipeline.capacity.gpu_plan import CapacityPlan, capacity_plan
from pipeline.capacity.stage_resources import check_need, stage_needs
from pipeline.inspection.inspection import CheckpointInspection
from recipes import catalog
from recipes.gpu import GpuType

FP8, AWQ = "fp8-dynamic", "awq-w4a16"
GIB = 2**30
PARAMETERS = 8_030_261_248
EMBEDDED = 2 * 128256 * 4096  # embedding and head
NORMS = 65 * 4096
QUANTIZED = PARAMETERS - EMBEDDED - NORMS
H100_NAME = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def llama() -> CheckpointInspection:
    return inspected(LLAMA_3_8B)


def planned(model: CheckpointInspection, gpu: GpuType | None = None) -> CapacityPlan:
    kind = gpu or catalog.load_gpu("h100")
    recipes = [catalog.load_recipe(name) for name in (FP8, "fp8-block", AWQ)]
    profile = catalog.profile_for_gpu(kind.driver_name)
    return capacity_plan(model, recipes, kind, 1, profile=profile)


def stage(plan: CapacityPlan, variant: str, name: str) -> dict[str, Any]:
    [found] = [s for s in plan.stages() if (s["variant"], s["stage"]) == (variant, name)]
    return found


class TestNeeds:
    def test_calibration_holds_the_model_and_the_samples(self, llama: CheckpointInspection) -> None:
        found = stage(planned(llama), AWQ, "quantize")
        between = 2 * 256 * 512 * 4096 * 2
        inside = 4 * (4 * 512) * 14336 * 4
        assert found["host_bytes"] == 2 * PARAMETERS + between + inside + GIB
        groups = QUANTIZED // 128
        matrices = 7 * 32
        awq = QUANTIZED // 2 + groups * 2 + groups // 2 + 16 * matrices + 2 * (EMBEDDED + NORMS)
        assert found["disk_bytes"] == awq + 50_000_000

    @pytest.mark.parametrize("recipe", [FP8, "fp8-block"])
    def test_a_cast_without_data_holds_parts_of_files(
        self, llama: CheckpointInspection, recipe: str
    ) -> None:
        """Here the model is one file; with a file's size known, 2.5 of that."""
        assert stage(planned(llama), recipe, "quantize")["host_bytes"] == 5 * PARAMETERS + GIB
        shards = CheckpointInspection(
            source=type(llama.source)(**{**vars(llama.source), "largest_file_bytes": 5 * 10**9}),
            shape=llama.shape,
            cache=llama.cache,
        )
        assert stage(planned(shards), recipe, "quantize")["host_bytes"] == 12_500_000_000 + GIB

    def test_checking_holds_some_rows(self, llama: CheckpointInspection) -> None:
        """Measured of FP8: 834 MB. A variant whose columns were rescaled is loaded as a whole."""
        plan = planned(llama)
        assert 834e6 < stage(plan, FP8, "check_weights")["host_bytes"] < 3 * 834e6
        recipe = catalog.load_recipe("autoawq-w4a16")
        awq = check_need(llama, recipe, llama.variant(recipe.quantization))
        assert awq is not None
        assert awq.host_bytes is not None
        assert awq.host_bytes > llama.source.weights_bytes
        baseline = catalog.load_recipe("baseline")
        assert check_need(llama, baseline, llama.variant(baseline.quantization)) is None

    def test_a_cpu_serves_fp8_in_32_bits(self, llama: CheckpointInspection) -> None:
        recipes = [catalog.load_recipe(name) for name in ("baseline", FP8)]
        weights = {recipe.name: llama.variant(recipe.quantization) for recipe in recipes}
        profile = catalog.load_profile("cpu")
        needs = stage_needs(llama, recipes, weights, profile)
        served = {n.variant: n.host_bytes for n in needs if n.stage == "serve"}
        assert served["baseline"] == 2 * PARAMETERS + 3 * GIB
        quantized = weights[FP8].bytes - 2 * (EMBEDDED + NORMS)
        assert served[FP8] == 4 * quantized + 2 * (EMBEDDED + NORMS) + 3 * GIB
        [quantize] = [n for n in needs if n.stage == "quantize"]
        assert quantize.variant == FP8
        assert stage_needs(llama, recipes, weights, profile, {FP8}) == needs[1:]

    def test_without_bf16_a_cpu_holds_all_in_32_bits(self, llama: CheckpointInspection) -> None:
        recipes = [catalog.load_recipe(name) for name in ("baseline", FP8, AWQ, "int8-w8a8")]
        weights = {recipe.name: llama.variant(recipe.quantization) for recipe in recipes}
        profile = catalog.load_profile("cpu")
        needs = stage_needs(llama, recipes, weights, profile.fit_to(("avx2",)))
        served = {n.variant: n.host_bytes for n in needs if n.stage == "serve"}
        kept = 4 * (EMBEDDED + NORMS)
        assert served["baseline"] == 4 * PARAMETERS + 3 * GIB
        for name, times in ((FP8, 4), (AWQ, 8), ("int8-w8a8", 1)):
            quantized = weights[name].bytes - 2 * (EMBEDDED + NORMS)
            assert served[name] == times * quantized + kept + 3 * GIB
        (awq,) = [n for n in needs if (n.stage, n.variant) == ("quantize", AWQ)]
        (before,) = [
            n
            for n in stage_needs(llama, recipes, weights, profile)
            if (n.stage, n.variant) == ("quantize", AWQ)
        ]
        assert awq.host_bytes == (before.host_bytes or 0) + 2 * PARAMETERS

    def test_a_gpus_server_is_not_known(self, llama: CheckpointInspection) -> None:
        assert stage(planned(llama), FP8, "serve")["host_bytes"] is None
