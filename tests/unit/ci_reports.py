"""Runs that end in each of the ways that a CI job has to tell apart."""

from __future__ import annotations

from dataclasses import replace

from sample_reports import (
    REQUEST,
    failed_variant_report,
    gate_report,
    run_report,
    speed_gate_report,
    variant_report,
)

from artifacts.requests import GateRequest
from artifacts.run_record import RunReport, VariantReport


def saying_no() -> VariantReport:
    """MMLU says no, code is undecided since it was asked no more, summaries are advisory."""
    return variant_report(
        verdict="fail",
        reason="mmlu failed",
        promoted=False,
        registry_version=None,
        gates=[
            gate_report(verdict="fail", reason="lost 3 points, 100 % sure: too much"),
            gate_report(name="code", verdict="undecided", reason="needs more questions"),
            gate_report(name="rouge", verdict="fail", tier="advisory", reason="worse summaries"),
        ],
    )


def undecided() -> VariantReport:
    return variant_report(
        recipe="w8a8",
        verdict="undecided",
        reason="mmlu could not be decided",
        promoted=False,
        registry_version=None,
        gates=[
            gate_report(verdict="undecided", reason="needs more questions"),
            gate_report(
                name="code", verdict="undecided", tier="supporting", reason="needs more, too"
            ),
        ],
    )


def not_among_several() -> VariantReport:
    """Every gate passes, and the variant does not: Holm's correction."""
    return variant_report(
        verdict="undecided",
        reason="passes alone, but not with 3 variants tried",
        promoted=False,
        registry_version=None,
    )


def babbling() -> VariantReport:
    return failed_variant_report(verdict="fail", reason="it babbles")


def not_needed() -> VariantReport:
    return failed_variant_report(verdict="skipped", reason="not needed: fp8-dynamic passed")


def slow() -> VariantReport:
    slow = speed_gate_report(verdict="fail", estimate=0.8, reason="0.8 of the baseline's")
    return variant_report(
        verdict="fail",
        reason="speed ratio.chat failed",
        promoted=False,
        registry_version=None,
        speed=[slow],
    )


def refused() -> RunReport:
    """The checkpoint is not there."""
    error = {
        "kind": "CheckpointError",
        "message": "there is no such folder",
        "where": "/models/none",
        "hint": "name a folder that is there",
    }
    return run_report(
        status="failed", exit_code=1, variants=[], stages=[], checkpoint=None, error=error
    )


def not_promoted() -> RunReport:
    """`--no-promote`: two passed and none is registered."""
    passed = {"promoted": False, "registry_version": None}
    return run_report(
        variants=[variant_report(**passed), variant_report(recipe="w8a8", **passed)],
        request=replace(REQUEST, promote=False),
    )


RUNS = {
    "promoted": run_report(),
    "not promoted": not_promoted(),
    "fail": run_report(exit_code=4, variants=[saying_no(), not_needed()]),
    "undecided": run_report(exit_code=5, variants=[undecided(), not_among_several()]),
    "babbling": run_report(exit_code=4, variants=[babbling()]),
    "slow": run_report(exit_code=4, variants=[slow()]),
    "not made": run_report(exit_code=1, variants=[failed_variant_report(), saying_no()]),
    "refused": refused(),
    "gate": run_report(
        request=GateRequest(baseline="http://a:1", candidate="http://b:1"),
        variants=[
            variant_report(recipe="candidate", promoted=False, registry_version=None, speed=[])
        ],
        registered_name=None,
    ),
}
