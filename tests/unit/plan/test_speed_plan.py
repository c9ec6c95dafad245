"""A policy's speed gates become stages, or are refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval_gates.speed.rules import SpeedRule
from pipeline.plan.build import Builder
from pipeline.plan.plan import Arm
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.serving.served_model import ServedModel
from prepare.errors import UsageError
from prepare.stage import StageSpec
from recipes.catalog import load_policy, load_profile, policy_names, profile_names
from recipes.policy import Policy
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import Recipe, ServingProfile
from recipes.speed import SpeedPolicy

SMALL = {"kind": "random", "input_tokens": 8, "output_tokens": 4, "arrivals": {"concurrency": 2}}
SLO = {"workload": "chat", "rate": 2.0, "limits": {"ttft_ms_p95": 800.0}}

REQUESTS = {"kind": "requests", "output_tokens": 4, "arrivals": {"rate": 2.0}}
PROMPT = '{"prompt": "Hello"}\n'


def policy(**speed: Any) -> Policy:
    return load_policy("demo").model_copy(update={"speed": SpeedPolicy.model_validate(speed)})


def profile(name: str = "cpu", **workloads: Any) -> ServingProfile:
    loaded = load_profile(name).model_dump(exclude={"cpu_overrides"})
    return ServingProfile.model_validate({**loaded, "workloads": workloads})


def test_each_ratio_and_each_objective_is_a_claim_with_its_rule() -> None:
    ratio = {"min_ratio": {"cpu": 0.5, "cuda": 1.0}, "workloads": ["chat", "support"]}
    speed_gates = find_speed_gates(policy(ratio=ratio, slo=[SLO]), profile(chat=SMALL), alpha=0.01)
    assert [speed_gate.gate for speed_gate in speed_gates] == [
        "ratio.chat",
        "ratio.support",
        "slo.0",
    ]
    chat, support, slo = speed_gates
    assert (chat.workload.longest, chat.where) == (12, "profile cpu, key workloads.chat")
    common: dict[str, Any] = {"alpha": 0.01, "hit_rate": 0.0, "starts": "once"}
    assert chat.rule == SpeedRule(kind="ratio", min_ratio=0.5, blocks=7, **common)
    assert slo.rule == SpeedRule(kind="slo", limits={"ttft_ms_p95": 800.0}, blocks=6, **common)
    assert support.rule.hit_rate == 0.88
    assert slo.workload.arrivals.rate == 2.0
    assert [speed_gate.rule.compares for speed_gate in speed_gates] == [True, True, False]


@pytest.mark.parametrize("name", policy_names())
def test_what_carried_policies_claim_can_be_asked_with_every_carried_profile(name: str) -> None:
    for served in map(load_profile, profile_names()):
        gates = [
            speed_gate.gate
            for speed_gate in find_speed_gates(load_policy(name), served, max_length=2048)
        ]
        assert any(gate.startswith("ratio.") for gate in gates)
        assert ("slo.0" in gates) == (name == "strict")


def test_a_ratio_claims_nothing_on_a_machine_that_its_minimum_does_not_name() -> None:
    by_machine = policy(ratio={"min_ratio": {"cpu": 0.5, "cuda": 1.0}, "workloads": ["chat"]})
    (speed_gate,) = find_speed_gates(by_machine, None)  # endpoints count as GPUs
    assert speed_gate.rule.min_ratio == 1.0
    assert by_machine.gates_on("cpu") == by_machine.gates_on("cuda") != ()
    only = policy(ratio={"min_ratio": {"cuda": 1.0}, "workloads": ["chat"]}, slo=[SLO])
    assert [speed_gate.gate for speed_gate in find_speed_gates(only, profile(chat=SMALL))] == [
        "slo.0"
    ]
    assert [speed_gate.name for speed_gate in only.gates_on(None)] == ["ratio.chat", "slo.0"]
    assert only.gates_on("cuda")[0].name == "ratio.chat"


@pytest.mark.parametrize("name", policy_names())
def test_endpoints_are_judged_by_the_ratio_of_a_carried_policy(name: str) -> None:
    speed_gates = find_speed_gates(load_policy(name), None)
    assert any(
        speed_gate.rule.kind == "ratio" and speed_gate.rule.min_ratio >= 0.8
        for speed_gate in speed_gates
    )


@pytest.mark.parametrize(
    ("speed_gate", "workload", "where"),
    [
        (
            {"ratio": {"min_ratio": 0.1, "workloads": ["w"]}},
            {"arrivals": {"rate": 4.0}},
            "arrivals",
        ),
        (
            {"ratio": {"min_ratio": 0.1, "workloads": ["w"]}},
            {"arrivals": {"concurrency": 100_000}},
            "arrivals",
        ),
        ({"slo": [{**SLO, "limits": {"ttft_ms_p99": 9.0}, "workload": "w"}]}, {}, "seconds"),
        (
            {"slo": [{**SLO, "limits": {"tpot_ms_p50": 9.0}, "workload": "w"}]},
            {"output_tokens": 1},
            "output_tokens",
        ),
    ],
)
def test_a_workload_that_cannot_show_a_gate_is_refused_with_its_key(
    speed_gate: dict[str, Any], workload: dict[str, Any], where: str
) -> None:
    own = {"workloads": {"w": {**SMALL, **workload}}}
    with pytest.raises(UsageError) as caught:
        find_speed_gates(policy(**speed_gate, **own), profile())
    assert caught.value.where.endswith(f"policy key speed.workloads.w, key {where}")


RATIO = {"ratio": {"min_ratio": 0.1, "workloads": ["w"]}}


def of_latency(limit: str, rate: float) -> dict[str, Any]:
    return {"slo": [{**SLO, "limits": {limit: 900.0}, "rate": rate, "workload": "w"}]}


@pytest.mark.parametrize(
    ("refused", "hint", "accepted"),
    [
        (
            (RATIO, {"arrivals": {"concurrency": 100_000}}),
            "of at most 5,000",
            (RATIO, {"arrivals": {"concurrency": 5_000}}),
        ),
        (
            (of_latency("ttft_ms_p50", 0.001), {}),
            "a rate of at least 0.00214, and 'seconds: 3600'",
            (of_latency("ttft_ms_p50", 0.00214), {"seconds": 3_600}),
        ),
        (
            (of_latency("tpot_ms_p50", 4.0), {"output_tokens": 1}),
            "limit ttft_ms_p50 alone",
            (of_latency("ttft_ms_p50", 4.0), {"output_tokens": 1, "seconds": 100}),
        ),
    ],
)
def test_what_the_hint_says_is_accepted(
    refused: tuple[Any, Any], hint: str, accepted: tuple[Any, Any]
) -> None:
    def find(speed_gate: dict[str, Any], workload: dict[str, Any]) -> None:
        own = {"workloads": {"w": {**SMALL, **workload}}}
        find_speed_gates(policy(**speed_gate, **own), profile())

    with pytest.raises(UsageError) as caught:
        find(*refused)
    assert hint in caught.value.hint
    find(*accepted)


def test_a_workload_longer_than_the_context_is_refused() -> None:
    speed_gates = policy(ratio={"min_ratio": 1.0, "workloads": ["chat"]})
    find_speed_gates(speed_gates, profile(chat=SMALL), max_length=12)
    with pytest.raises(UsageError) as caught:
        find_speed_gates(speed_gates, profile(chat=SMALL), max_length=11)
    assert caught.value.where == "profile cpu, key workloads.chat, key input_tokens"


@pytest.mark.parametrize(
    ("limit", "rate", "refused"),
    [("ttft_ms_p95", 1.0, True), ("ttft_ms_p95", 2.0, False), ("ttft_ms_p99", 2.0, True)],
)
def test_a_percentile_of_rounds_with_few_requests_is_refused(
    limit: str, rate: float, refused: bool
) -> None:
    speed_gates = policy(slo=[{"workload": "chat", "rate": rate, "limits": {limit: 800.0}}])
    if not refused:
        find_speed_gates(speed_gates, profile(chat=SMALL))
        return
    with pytest.raises(UsageError) as caught:
        find_speed_gates(speed_gates, profile(chat=SMALL))
    assert caught.value.where == "profile cpu, key workloads.chat, key seconds"


def side(name: str) -> Arm:
    family: Any = "baseline" if name == "baseline" else "fp8"
    recipe = Recipe(name=name, summary="s", family=family, quantization=NoQuantization())
    return Arm(recipe, ServedModel(checkpoint=name), Path("tokenizer"), max_length=2048)


def stages(tmp_path: Path, claimed: Policy | None = None, **changes: Any) -> dict[str, StageSpec]:
    both = policy(ratio={"min_ratio": 1.0, "workloads": ["chat"]}, slo=[SLO])
    plan = Builder(
        policy=(claimed or both).model_copy(update={"suites": {}}),
        baseline=side("baseline"),
        variants=[changes.get("candidate", side("fp8"))],
        reference={},
        sources=None,  # type: ignore[arg-type]  # no suite is asked
        identities={"evaluate": "e", "serve": changes.get("serve", "s")},
        store=tmp_path / "store",
        machine="m",
        profile=changes.get("profile", profile()),
    ).build()
    (variant,) = plan.variants
    return {role: spec for role, spec in variant.stages.items() if spec.stage == "speed"}


def test_the_stage_rests_on_the_sides_that_it_measures(tmp_path: Path) -> None:
    found = stages(tmp_path)
    assert list(found) == ["speed.ratio.chat", "speed.slo.0"]
    both, alone = found.values()
    assert (alone.stage, alone.variant, set(alone.inputs)) == ("speed", "fp8", {"candidate"})
    assert set(both.inputs) == set(both.parameters["sides"]) == {"baseline", "candidate"}
    assert both.runtime["gate"] == "ratio.chat"


def test_another_tuple_or_generator_is_another_measurement(tmp_path: Path) -> None:
    keys = {spec.key for spec in stages(tmp_path).values()}
    other = side("awq")
    assert keys.isdisjoint(spec.key for spec in stages(tmp_path, candidate=other).values())
    assert keys.isdisjoint(spec.key for spec in stages(tmp_path, serve="f").values())
    moved = replace(side("fp8"), folder=tmp_path / "moved")
    assert keys == {spec.key for spec in stages(tmp_path, candidate=moved).values()}


def test_a_file_is_known_by_what_it_holds_not_by_where_it_lies(tmp_path: Path) -> None:
    keys = []
    for name, text in (("a.jsonl", PROMPT), ("b.jsonl", PROMPT), ("c.jsonl", PROMPT * 2)):
        (tmp_path / name).write_text(text)
        slo = {"workload": "mine", "rate": 2.0, "limits": {"ttft_ms_p95": 800.0}}
        requests = {**REQUESTS, "file": str(tmp_path / name)}
        (stage,) = stages(tmp_path, policy(slo=[slo]), profile=profile(mine=requests)).values()
        assert stage.runtime["file"] == str(tmp_path / name)
        keys.append(stage.key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "speed",
    [
        {"slo": [{**SLO, "rate": 900.0, "starts": 20}]},
        {"slo": [{**SLO, "rate": 200.0, "starts": 100}]},
    ],
)
def test_what_would_be_measured_for_hours_and_could_not_be_read_is_refused(
    speed: dict[str, Any],
) -> None:
    with pytest.raises(UsageError) as caught:
        find_speed_gates(policy(**speed), profile(chat=SMALL))
    assert caught.value.where == "policy key speed.slo.0"
