"""Reports of gates, variants and runs with plausible figures; any field can be another."""

from __future__ import annotations

from typing import Any

from artifacts.requests import ModelRequest
from artifacts.run_record import ResolvedOptions, RunReport, StageReport, VariantReport
from eval_gates.quality_result import QualityResult
from eval_gates.speed.report import LoadSummary, SpeedGateResult

DIGEST = "0123456789abcdef" * 4
REQUEST = ModelRequest(
    checkpoint="demo:smollm2-135m",
    recipes=("fp8-dynamic",),
    profile="cpu",
    policy="demo",
    name="smollm2-135m",
    registry="sqlite:////somewhere/registry.db",
)
RESOLVED = ResolvedOptions(
    checkpoint="demo:smollm2-135m",
    recipes=("fp8-dynamic",),
    profile="cpu",
    policy="demo",
    name="smollm2-135m",
)


def gate_report(**changes: Any) -> QualityResult:
    """MMLU, passed."""
    fields: dict[str, Any] = {
        "name": "mmlu",
        "metric": "acc",
        "prompt_format": "letter",
        "tier": "critical",
        "n": 3511,
        "planned": 14042,
        "look": 1,
        "baseline": 0.6512,
        "candidate": 0.6498,
        "estimate": -0.0014,
        "bound": -0.0043,
        "upper_bound": 0.0015,
        "threshold": -0.01,
        "margin": "1 point",
        "alpha": 0.05,
        "p_value": 0.02,
        "lower": -0.0043,
        "upper": 0.0015,
        "flips": 45,
        "gains": 21,
        "noise_floor": None,
        "groups": [],
        "verdict": "pass",
        "reason": "the drop is below the margin",
    }
    fields |= changes
    n, planned = fields["n"], fields["planned"]
    counted = f"{n:,} of {planned:,}" if n < planned else f"{n:,}"
    allowed = fields["threshold"] if "kept" not in fields else -0.01 * fields["baseline"]
    return QualityResult.model_validate({"counted": counted, "allowed": allowed, **fields})


def speed_gate_report(**changes: Any) -> SpeedGateResult:
    """Half as fast again as the baseline, passed."""
    points = [load_point("baseline", 2050.2), load_point("candidate", 3075.4)]
    fields: dict[str, Any] = {
        "name": "speed ratio.chat",
        "gate_kind": "ratio",
        "description": "chat: at least 1 of the baseline's output tokens/s in the typical start",
        "tier": "critical",
        "counted": "5 blocks",
        "unit": "tokens/s",
        "scale": "ratio",
        "baseline": 2050.2,
        "candidate": 3075.4,
        "margin": "at least 1",
        "starts": "fresh",
        "n": 5,
        "estimate": 1.5,
        "lower": 1.4,
        "upper": 1.6,
        "interval": (1.4, 1.6),
        "threshold": 1.0,
        "alpha": 0.05,
        "p_value": 0.01,
        "loads": points,
        "verdict": "pass",
        "reason": "1.500 of the baseline's output tokens/s; lower bound 1.400",
    }
    fields |= changes
    same = {"bound": fields["lower"], "allowed": fields["threshold"]}
    return SpeedGateResult.model_validate({**same, **fields})


def load_point(side: str, rate: float) -> LoadSummary:
    """A load that nothing went wrong in."""
    times = {"ttft_ms_p50": 40.0, "ttft_ms_p95": 50.0, "tpot_ms_p50": 9.0, "tpot_ms_p95": 10.0}
    fields = {"block": 0, "order": 0, "server_run": 0, "failed": 0, "output_tokens_per_s": rate}
    return LoadSummary.model_validate({"side": side, **fields, **times, "within": None})


def variant_report(**changes: Any) -> VariantReport:
    """FP8, passed and promoted."""
    fields: dict[str, Any] = {
        "recipe": "fp8-dynamic",
        "weights_bytes": 163_400_000,
        "verdict": "pass",
        "reason": "all 2 gates passed",
        "p_value": 0.02,
        "promoted": True,
        "registry_version": "1",
        "gates": [gate_report()],
        "speed": [speed_gate_report()],
    }
    fields |= changes
    fields["gates"] = [*fields["gates"], *fields.pop("speed")]
    return VariantReport.model_validate(fields)


def failed_variant_report(**changes: Any) -> VariantReport:
    """One that was never made."""
    fields: dict[str, Any] = {
        "recipe": "awq-w4a16",
        "weights_bytes": None,
        "verdict": "error",
        "reason": "the worker of 'quantize' ended with exit code 137\n  where: /logs/worker.log",
        "p_value": None,
        "promoted": False,
        "registry_version": None,
        "gates": [],
        "speed": [],
    }
    return variant_report(**fields | changes)


def stage_report(**changes: Any) -> StageReport:
    """A stage that was run."""
    fields: dict[str, Any] = {
        "name": "judge",
        "stage": "judge",
        "variant": "fp8-dynamic",
        "status": "ran",
        "seconds": 1.25,
        "key": "abc",
    }
    return StageReport.model_validate(fields | changes)


def run_report(**changes: Any) -> RunReport:
    """A finished run that promoted its one variant."""
    fields: dict[str, Any] = {
        "run": "20261121-100000-000001",
        "status": "finished",
        "exit_code": 0,
        "started": "2026-11-21T10:00:00+00:00",
        "seconds": 372.4,
        "request": REQUEST,
        "resolved": RESOLVED,
        "checkpoint": {"ref": "demo:smollm2-135m", "digest": DIGEST},
        "registered_name": "smollm2-135m",
        "variants": [variant_report()],
        "stages": [stage_report(status="reused"), stage_report()],
        "notes": [],
    }
    return RunReport.model_validate(fields | changes)
