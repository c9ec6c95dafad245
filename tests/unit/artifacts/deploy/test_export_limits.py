"""Limits, rates and knees of exports: those of gates on limits that passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sample_reports import speed_gate_report

from artifacts.deploy.export import Certified, CertifiedLimit, certified_by, is_of_this_machine
from eval_gates.speed.rules import build_rule
from recipes.speed import SloGate, SpeedGate

LIMITS = {"ttft_ms_p95": 200, "tpot_ms_p50": 30, "errors": 0}


def certified(*gates: tuple[dict[str, Any], dict[str, Any], str]) -> Certified:
    rules, reports = {}, []
    for number, (changes, arrivals, verdict) in enumerate(gates):
        name = f"slo.{number}"
        keys = {"workload": "chat", "limits": LIMITS, **changes}
        speed_gate = SpeedGate(name, "chat", SloGate.model_validate(keys))
        workload = {"kind": "random", "input_tokens": 9, "output_tokens": 9, "arrivals": arrivals}
        rule = build_rule(speed_gate, 0.05, "cpu")
        gate = SimpleNamespace(workload=workload, rule=rule)
        rules[f"speed.{name}"] = SimpleNamespace(parameters=gate)
        reports.append(speed_gate_report(name=f"speed {name}", gate_kind="slo", verdict=verdict))
    past: Any = SimpleNamespace(
        bundle=SimpleNamespace(variant=SimpleNamespace(speed=[*reports, speed_gate_report()])),
        judged=SimpleNamespace(speed=rules),
    )
    return certified_by(past)


def test_the_limits_of_a_gate_that_passed() -> None:
    found = certified(({}, {"rate": 3}, "pass"))
    assert found.limits == (
        CertifiedLimit(gate="slo.0", measure="ttft", percentile=95, seconds=0.2),
        CertifiedLimit(gate="slo.0", measure="tpot", percentile=50, seconds=0.03),
    )
    assert (found.rate, found.concurrency) == (3, None)


def test_the_highest_of_several() -> None:
    found = certified(
        ({}, {"rate": 3}, "pass"),
        ({}, {"rate": 5}, "pass"),
        ({}, {"rate": 9}, "fail"),
        ({}, {"concurrency": 64}, "pass"),
    )
    assert (found.rate, found.concurrency) == (5, 64)


@pytest.mark.parametrize(
    ("source", "is_here"),
    [
        ("sqlite:////store/registry.db", True),
        ("/store", True),
        ("http://127.0.0.1:5000", True),
        ("http://127.8.0.1", True),
        ("http://localhost:5000", True),
        ("https://registry.localhost", True),
        ("oci://[::1]:5000/models/some@sha256:0", True),
        ("http://0.0.0.0:5000", True),
        ("http://mlflow.example.com:5000", False),
        ("http://10.0.0.1:5000", False),
        ("oci://registry.example.com/models/some", False),
        ("databricks-uc", False),
    ],
)
def test_an_address_that_containers_cannot_fetch_from(source: str, is_here: bool) -> None:
    assert is_of_this_machine(source) == is_here
