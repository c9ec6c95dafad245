"""Which variants are tried on two layers first, in which order, and what a failure stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from quantized_checkpoint import inspected, source_files
from small_checkpoint import safetensors, write_files

from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.errors import PrepareError, StageError, VerificationError, WorkerError
from pipeline.core.events import Progress
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.plan.dry_run import WORTH_BYTES, dry_run_stage, is_worth_it
from pipeline.stages.check_weights import (
    CHECK_WEIGHTS,
    CheckWeightsParameters,
    CheckWeightsResult,
    CheckWeightsRuntime,
)
from pipeline.stages.context import StageContext
from pipeline.stages.dry_run import run as dry_run
from pipeline.stages.quantize import QUANTIZE, QuantizeParameters, QuantizeRuntime

CALIBRATION = {"samples": 256, "max_tokens": 512, "batch_size": 4, "seed": 1, "column": "text"}
AWQ = {"kind": "awq", "bits": 4, "group_size": 32, "ignore": ["lm_head"]}
FP8 = {"kind": "preset", "scheme": "FP8_DYNAMIC"}


def stages(
    checkpoint: Checkpoint, store: Path, quantization: dict[str, Any]
) -> tuple[StageSpec, StageSpec]:
    asked = {"checkpoint": checkpoint.digest, "quantization": quantization}
    quantize = QUANTIZE.spec(
        "mine",
        QuantizeParameters.model_validate(asked | {"environment": "e"}),
        {},
        QuantizeRuntime(checkpoint=checkpoint, python="python"),
        store,
    )
    check_weights = CHECK_WEIGHTS.spec(
        "mine",
        CheckWeightsParameters.model_validate(asked),
        {"weights": quantize},
        CheckWeightsRuntime(checkpoint=checkpoint),
        store,
    )
    return quantize, check_weights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    files = source_files()
    config = files["config.json"].replace(b"{", b'{"num_hidden_layers": 2, ', 1)
    return inspected(write_files(tmp_path / "model", files | {"config.json": config}))


def test_from_which_size_on() -> None:
    assert not is_worth_it(WORTH_BYTES - 1, None)
    assert is_worth_it(WORTH_BYTES, None)
    assert is_worth_it(1, True)
    assert not is_worth_it(WORTH_BYTES, False)


class TestStage:
    def test_few_samples_and_else_the_same(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        quantize, check_weights = stages(checkpoint, tmp_path, AWQ | {"calibration": CALIBRATION})
        spec = dry_run_stage(quantize, check_weights)
        assert spec is not None
        asked = quantize.parameters["quantization"]
        few = asked["calibration"] | {"samples": 4, "max_tokens": 128}
        wanted = {**quantize.parameters, "quantization": asked | {"calibration": few}}
        assert spec.parameters["quantize"] == wanted
        assert spec.parameters["check_weights"] == check_weights.parameters
        assert spec.runtime == quantize.runtime
        assert asked["calibration"]["samples"] == CALIBRATION["samples"]

    def test_no_more_samples_than_asked_for(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        own = CALIBRATION | {"samples": 2, "max_tokens": 64}
        spec = dry_run_stage(*stages(checkpoint, tmp_path, AWQ | {"calibration": own}))
        assert spec is not None
        assert spec.parameters["quantize"]["quantization"]["calibration"].items() >= own.items()

    def test_none_without_calibration(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        assert dry_run_stage(*stages(checkpoint, tmp_path, FP8)) is None


@dataclass
class StandIns:
    """For the quantize worker's process, which writes a file or fails, and for verification.

    What these do for real is in tests/e2e/test_dry_run_for_real.py.
    """

    failure: PrepareError | None = None
    unsound: PrepareError | None = None
    given: dict[str, Any] = field(default_factory=dict)
    source_files: set[str] = field(default_factory=set)

    def run_worker(
        self, context: StageContext, worker: str, spec: dict[str, Any], output: Path
    ) -> dict[str, Any]:
        assert worker == context.parameters.quantization.worker
        self.given = spec
        self.source_files = {file.name for file in Path(spec["checkpoint"]).iterdir()}
        (context.folder / "worker.log").write_text("what the library said")
        if self.failure is not None:
            raise self.failure
        context.peak_memory_bytes = 5
        write_files(output, {"model.safetensors": safetensors({"x": ("I32", (64, 8))})})
        return {"group_size": 32}

    def check_weights(
        self, context: StageContext[CheckWeightsParameters, CheckWeightsRuntime]
    ) -> CheckWeightsResult:
        if self.unsound is not None:
            raise self.unsound
        source = context.runtime.checkpoint
        assert context.input_folder("weights") / "cut" == source.path
        assert (context.input_folder("weights") / "output" / "model.safetensors").is_file()
        asked = context.parameters.model_dump(mode="json")
        assert asked == context.spec.parameters["check_weights"]
        made = QUANTIZE.result_of(context.input_record("weights"))
        return CheckWeightsResult(weights_digest=made.weights_digest)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> StandIns:
    found = StandIns()

    def run_worker(
        self: StageContext, worker: str, worker_spec: dict[str, Any], *, output: Path, **_: Any
    ) -> dict[str, Any]:
        return found.run_worker(self, worker, worker_spec, output)

    monkeypatch.setattr(StageContext, "run_worker", run_worker)
    monkeypatch.setattr("pipeline.stages.check_weights.run.run", found.check_weights)
    return found


class TestRun:
    @pytest.fixture
    def context(self, checkpoint: Checkpoint, tmp_path: Path) -> StageContext:
        spec = dry_run_stage(
            *stages(checkpoint, tmp_path / "store", AWQ | {"calibration": CALIBRATION})
        )
        assert spec is not None
        folder = tmp_path / "stage"
        folder.mkdir()
        progress: Progress = Listener()
        return StageContext(spec, folder, Store(tmp_path / "store"), progress)

    def left(self, context: StageContext) -> set[str]:
        return {path.name for path in context.folder.rglob("*")}

    def test_the_record_stays_and_the_weights_go(
        self, context: StageContext, stand_ins: StandIns
    ) -> None:
        result = dry_run.run(context)
        assert result.layers == [0, 1]
        assert result.seconds.keys() == {"cut", "quantize", "check_weights"}
        assert all(seconds >= 0 for seconds in result.seconds.values())
        assert len(result.verified.weights_digest) == 64
        assert result.weights_bytes > 64 * 8 * 4
        assert context.peak_memory_bytes == 5
        assert self.left(context) == {"worker.log", "recipe.json"}

    def test_the_worker_gets_the_cut_checkpoint(
        self, context: StageContext, stand_ins: StandIns
    ) -> None:
        dry_run.run(context)
        assert stand_ins.given["checkpoint"] == str(context.folder / "cut")
        assert stand_ins.given["quantization"]["calibration"]["samples"] == 4
        assert "tokenizer.json" in stand_ins.source_files

    def test_what_the_worker_says_is_told_as_the_dry_runs(
        self, context: StageContext, stand_ins: StandIns
    ) -> None:
        stand_ins.failure = WorkerError("ValueError: too big", where="worker.log", hint="mend")
        with pytest.raises(WorkerError) as caught:
            dry_run.run(context)
        assert caught.value.message == (
            "the dry run on 2 layers failed, the whole checkpoint was not tried: "
            "ValueError: too big"
        )
        assert (caught.value.where, caught.value.hint) == ("worker.log", "mend")
        assert self.left(context) == {"worker.log", "recipe.json"}

    def test_what_it_notes_is_told_as_the_dry_runs(
        self, context: StageContext, stand_ins: StandIns
    ) -> None:
        context.spec.runtime["left_alone"] = "mlp.gate"
        dry_run.run(context)
        (note,) = context.notes
        assert note == "dry run: left in 16 bits besides the recipe's own list: mlp.gate"
        assert isinstance(context.progress, Listener)
        assert context.progress.notes == [f"{context.spec.variant}: {note}"]

    def test_what_verification_finds(self, context: StageContext, stand_ins: StandIns) -> None:
        stand_ins.unsound = VerificationError("'down_proj.weight_scale' holds no number")
        with pytest.raises(VerificationError) as caught:
            dry_run.run(context)
        assert "dry run" in caught.value.message
        assert "down_proj.weight_scale" in caught.value.message
        assert self.left(context) == {"worker.log", "recipe.json"}

    def test_an_error_without_a_hint_names_the_way_around(
        self, context: StageContext, stand_ins: StandIns
    ) -> None:
        stand_ins.failure = StageError("no")
        with pytest.raises(StageError) as caught:
            dry_run.run(context)
        assert "--no-dry-run" in caught.value.hint
        assert caught.value.where == str(context.folder)
