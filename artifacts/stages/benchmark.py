"""The stage that measures a served model's speed."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from artifacts.served_model import ServedModel, ServerRuntime
from artifacts.serving_arguments import ServingArguments
from eval_gates.drafted import Drafted
from pipeline.core.record import Record
from pipeline.core.stage import Stage
from recipes.schema import Workload


class BenchmarkParameters(ServedModel):
    """Which model of ours, under which load."""

    checkpoint: str
    serving: ServingArguments
    engine: str
    hardware: dict[str, Any]
    workload: Workload
    machine: str = Field("", description="speeds of two machines are not compared")
    beside: list[str] = Field(
        [], fail_fast=True, description="of weights that were there: both sides are measured anew"
    )


class BenchmarkRuntime(ServerRuntime):
    """How it is loaded."""

    tokenizer: str = Field("", description="folder")


class BenchmarkResult(Record):
    """The load test, times in milliseconds."""

    output_tokens_per_s: float
    requests_per_s: float | None = None
    requests: int
    failed_requests: int
    duration_seconds: float | None = None
    engine_version: str
    ttft_ms_p50: float
    ttft_ms_p99: float | None = None
    tpot_ms_p50: float
    tpot_ms_p99: float | None = None
    itl_ms_p50: float
    itl_ms_p99: float | None = None
    drafted: Drafted | None = Field(None, description="where it drafts, and counts that")


BENCHMARK = Stage("benchmark", 2, BenchmarkParameters, BenchmarkRuntime, BenchmarkResult)
