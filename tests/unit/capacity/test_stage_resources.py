"""Minutes, memory and disk of stages: sums done by hand, and what the store has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from finished_stage import put_record, stage_record
from published_models import LLAMA_3_8B, inspected
from sample_stages import PARAMETERS as ASKED
from sample_stages import RESULTS

from pipeline.capacity.gpu_plan import CapacityPlan, capacity_plan
from pipeline.capacity.stage_resources import check_need, stage_needs
from pipeline.core.store import Store
from pipeline.inspection.inspection import CheckpointInspection
from recipes import catalog
from recipes.gpu import GpuType
from recipes.quantization import Calibration
from recipes.quantizers.gptq import GptqQuantization

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


def planned(
    model: CheckpointInspection, gpu: GpuType | None = None, store: Path | None = None
) -> CapacityPlan:
    kind = gpu or catalog.load_gpu("h100")
    recipes = [catalog.load_recipe(name) for name in (FP8, "fp8-block", AWQ)]
    profile = catalog.profile_for_gpu(kind.driver_name)
    return capacity_plan(model, recipes, kind, 1, profile=profile, store=store)


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
    def test_a_stream_holds_two_files(self, llama: CheckpointInspection, recipe: str) -> None:
        """Here the model is one file; with a file's size known, two of that."""
        assert stage(planned(llama), recipe, "quantize")["host_bytes"] == 4 * PARAMETERS + GIB
        shards = CheckpointInspection(
            source=type(llama.source)(**{**vars(llama.source), "largest_file_bytes": 5 * 10**9}),
            shape=llama.shape,
            cache=llama.cache,
        )
        assert stage(planned(shards), recipe, "quantize")["host_bytes"] == 10**10 + GIB

    def test_checking_holds_some_rows(self, llama: CheckpointInspection) -> None:
        """Measured with two threads: 169 MB, of AutoAWQ 185."""
        plan = planned(llama)
        fp8 = stage(plan, FP8, "check_weights")["host_bytes"]
        assert 169e6 < fp8 < 3 * 169e6
        recipe = catalog.load_recipe("autoawq-w4a16")
        awq = check_need(recipe, llama.variant(recipe.quantization))
        assert awq is not None
        assert awq.host_bytes is not None
        assert max(185e6, fp8) < awq.host_bytes < 4 * 185e6
        baseline = catalog.load_recipe("baseline")
        assert check_need(baseline, llama.variant(baseline.quantization)) is None

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


class TestEstimates:
    @pytest.mark.parametrize("recipe", [FP8, "fp8-block"])
    def test_a_stream_takes_as_long_as_the_disk(
        self, llama: CheckpointInspection, recipe: str
    ) -> None:
        plan = planned(llama)
        found = stage(plan, recipe, "quantize")
        moved = 2 * PARAMETERS + plan.weights[recipe].bytes
        assert found["minutes"] == pytest.approx(moved / 1e9 / 60)
        assert found["minutes_basis"].startswith("lower estimate: 25.1 GB of disk at an assumed")

    def test_calibration_goes_by_the_gpus_published_speed(
        self, llama: CheckpointInspection
    ) -> None:
        plan = planned(llama)
        found = stage(plan, AWQ, "quantize")
        passes = 2 + 1.3 * 21
        flop = 2 * QUANTIZED * 256 * 512 * passes
        disk = (2 * PARAMETERS + plan.weights[AWQ].bytes) / 1e9
        assert found["minutes"] == pytest.approx((disk + flop / (0.3 * 989e12)) / 60)
        assert "131,072 tokens x 29 passes x 2 FLOP x 7.0 B parameters" in found["minutes_basis"]

    def test_a_gpu_without_that_figure(self, llama: CheckpointInspection) -> None:
        mine = catalog.load_gpu("h100").model_copy(update={"tflops_16_bit": None})
        found = stage(planned(llama, mine), AWQ, "quantize")
        assert (found["minutes"], found["minutes_basis"]) == (None, "not known")

    def test_what_is_not_modelled(self) -> None:
        calibration = Calibration(samples=8, max_tokens=64)
        gptq = GptqQuantization(kind="gptq", scheme="W4A16", calibration=calibration)
        assert gptq.forward_passes is None

    def test_serving_and_measuring_are_not_estimated(self, llama: CheckpointInspection) -> None:
        plan = planned(llama)
        for variant in ("baseline", FP8, AWQ):
            for name in ("serve", "measure"):
                assert stage(plan, variant, name)["minutes"] is None
        labels = [(each.variant, each.stage) for each in plan.minutes]
        assert labels[:2] == [("baseline", "serve"), ("baseline", "measure")]

    def test_every_gpu_has_its_figure(self) -> None:
        assert all(catalog.load_gpu(name).tflops_16_bit for name in catalog.gpu_names())


class TestSeen:
    def remember(
        self, store: Path, stage: str, seconds: float, *, variant: str = FP8, **changes: Any
    ) -> None:
        gpu = changes.pop("gpu", H100_NAME)
        parameters = {"checkpoint": changes.pop("checkpoint", "d1")}
        if stage not in ("quantize", "check_weights"):
            parameters["hardware"] = {"accelerator": "cuda", "gpu": gpu}
        if stage == "speed":
            parameters = {"sides": {"candidate": parameters}}
        record = stage_record(
            stage=stage,
            variant=variant,
            key=f"{stage}{variant}{seconds:.0f}",
            parameters=ASKED[stage] | parameters,
            inputs={},
            input_digests={},
            seconds=seconds,
            result=RESULTS[stage] | changes.pop("result", {}),
        )
        put_record(Store(store), record)

    def fill(self, store: Path, size: int, **changes: Any) -> None:
        self.remember(store, "quantize", 90.0, result={"weights_bytes": size}, **changes)
        self.remember(store, "check_weights", 30.0, **changes)
        ready = {"server": {"ready_seconds": 120.0}}
        self.remember(store, "coherence", 3.0, result=ready, **changes)
        self.remember(store, "evaluate", 597.0, **changes)
        self.remember(store, "speed", 60.0, **changes)

    def test_the_same_model_on_the_same_gpu(
        self, llama: CheckpointInspection, tmp_path: Path
    ) -> None:
        self.fill(tmp_path, int(planned(llama).weights[FP8].bytes * 1.01))
        self.remember(tmp_path, "evaluate", 300.0, variant="baseline")
        plan = planned(llama, store=tmp_path)
        minutes = {each.stage: each.minutes for each in plan.minutes if each.variant == FP8}
        assert minutes == {"quantize": 1.5, "check_weights": 0.5, "serve": 2.0, "measure": 11.0}
        assert plan.seen.minutes("speed", FP8) == 1.0
        assert stage(plan, FP8, "quantize")["minutes_basis"] == "seen here"
        assert stage(plan, "baseline", "measure")["minutes"] == 5.0
        assert "estimate" in stage(plan, AWQ, "quantize")["minutes_basis"]

    @pytest.mark.parametrize("other", ["size", "gpu"])
    def test_others_say_nothing(
        self, llama: CheckpointInspection, tmp_path: Path, other: str
    ) -> None:
        size = planned(llama).weights[FP8].bytes
        if other == "size":
            self.fill(tmp_path, int(size * 1.1))
        else:
            self.fill(tmp_path, size, gpu="NVIDIA L4")
        plan = planned(llama, store=tmp_path)
        assert "estimate" in stage(plan, FP8, "quantize")["minutes_basis"]
        assert stage(plan, FP8, "measure")["minutes"] is None

    def test_a_damaged_record(self, llama: CheckpointInspection, tmp_path: Path) -> None:
        folder = tmp_path / "stages" / "quantize" / "x"
        folder.mkdir(parents=True)
        (folder / "stage.json").write_text("{")
        assert planned(llama, store=tmp_path).minutes
