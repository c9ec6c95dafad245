"""The shape of recipes, profiles and policies: strict, frozen, documented, with sane defaults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

import recipes.schema as schema
from recipes.schema import (
    AnySuite,
    AwqQuantization,
    Described,
    HumanEvalSuite,
    MmluSuite,
    NoQuantization,
    Policy,
    PresetQuantization,
    Promotion,
    Quantization,
    Recipe,
    RougeSuite,
    ServingProfile,
    Suite,
    ThroughputGate,
    Workload,
)

MARGINS = {"fp8": 0.01, "int4": 0.02}
CALIBRATION = {"dataset": "carried"}
quantizations: TypeAdapter[Any] = TypeAdapter(Quantization)
suites: TypeAdapter[Any] = TypeAdapter(AnySuite)


def described() -> list[type[Described]]:
    """Every model that a user's YAML is read into."""
    found = [
        kind
        for kind in vars(schema).values()
        if isinstance(kind, type) and issubclass(kind, Described) and kind is not Described
    ]
    assert len(found) >= 14
    return found


@pytest.mark.parametrize("kind", described())
def test_unknown_keys_are_forbidden_and_values_frozen(kind: type[BaseModel]) -> None:
    assert kind.model_config["extra"] == "forbid"
    assert kind.model_config["frozen"] is True
    assert kind.__doc__


def test_a_loaded_policy_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Promotion().alias = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"kind": "none"}, NoQuantization),
        ({"kind": "preset", "scheme": "FP8_DYNAMIC"}, PresetQuantization),
        ({"kind": "awq", "calibration": CALIBRATION}, AwqQuantization),
    ],
)
def test_the_kind_chooses_the_quantization(data: dict[str, Any], kind: type) -> None:
    assert type(quantizations.validate_python(data)) is kind


@pytest.mark.parametrize(
    ("kind", "model"),
    [("mmlu", MmluSuite), ("humaneval", HumanEvalSuite), ("rouge", RougeSuite)],
)
def test_the_kind_chooses_the_suite(kind: str, model: type) -> None:
    assert type(suites.validate_python({"kind": kind, "margins": MARGINS})) is model


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "preset", "scheme": "FP8_DYNAMIC", "group_size": 128},
        {"kind": "none", "scheme": "FP8_DYNAMIC"},
        {"kind": "preset", "scheme": "NVFP4"},
        {"kind": "awq"},
        {"kind": "awq", "bits": 3, "calibration": CALIBRATION},
        {"scheme": "FP8_DYNAMIC"},
    ],
)
def test_keys_of_another_kind_and_missing_ones_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        quantizations.validate_python(data)


def test_lm_head_is_left_alone_unless_said_otherwise() -> None:
    assert quantizations.validate_python({"kind": "preset", "scheme": "FP8_DYNAMIC"}).ignore == [
        "lm_head"
    ]
    awq = quantizations.validate_python({"kind": "awq", "calibration": CALIBRATION})
    assert awq.ignore == ["lm_head"]
    assert all(size < awq.group_size for size in awq.smaller_group_sizes)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_margin_lies_between_zero_and_one(margin: float) -> None:
    if 0 < margin < 1:
        assert Suite(margins={"fp8": margin}).margins["fp8"] == margin
    else:
        with pytest.raises(ValidationError, match=r"margins\.fp8 must be between 0 and 1"):
            Suite(margins={"fp8": margin})


def test_margins_are_by_a_known_family() -> None:
    with pytest.raises(ValidationError, match="'fp8' or 'int4'"):
        suites.validate_python({"kind": "mmlu", "margins": {"fp4": 0.1}})


@pytest.mark.parametrize("name", ["", "../up", "Upper", "a b", "-a", "a/b", "[red]", "a\n"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Recipe(name=name, summary="s", family="baseline", quantization=NoQuantization())


@pytest.mark.parametrize("name", schema.RESERVED_SUITE_NAMES)
def test_a_suite_does_not_take_a_stages_name(name: str) -> None:
    suite = RougeSuite(margins={"fp8": 0.01})
    gate = ThroughputGate(minimum_ratio={})
    with pytest.raises(ValidationError, match=f"cannot be called '{name}'"):
        Policy(name="p", summary="s", suites={name: suite}, throughput=gate)


@pytest.mark.parametrize("name", [*schema.ENGINE_ARGUMENTS_OF_OURS, "--dtype", "a b", ""])
def test_a_profile_does_not_set_what_is_ours(name: str) -> None:
    workload = Workload(input_tokens=1, output_tokens=1, requests=1, concurrency=1)
    with pytest.raises(ValidationError, match="not for a profile to set"):
        ServingProfile(
            name="p",
            summary="s",
            accelerator="cpu",
            engine_arguments={name: 1},
            workload=workload,
        )


def test_what_a_policy_must_say() -> None:
    with pytest.raises(ValidationError) as caught:
        Policy.model_validate({})
    missing = {error["loc"] for error in caught.value.errors() if error["type"] == "missing"}
    assert missing == {("name",), ("summary",), ("suites",), ("throughput",)}


def test_defaults_of_a_policy_are_strict() -> None:
    throughput = ThroughputGate(minimum_ratio={"cuda": 1.0})
    suite = RougeSuite(margins={"fp8": 0.01})
    policy = Policy(name="p", summary="s", suites={"rouge": suite}, throughput=throughput)
    assert policy.alpha == 0.05
    assert policy.throughput.maximum_failed_requests == 0
    assert policy.promotion == Promotion(
        alias="champion", previous_alias="previous", prefer="throughput"
    )


def test_a_policy_that_asks_nothing_is_no_policy() -> None:
    throughput = ThroughputGate(minimum_ratio={"cuda": 1.0})
    with pytest.raises(ValidationError, match="at least 1"):
        Policy(name="p", summary="s", suites={}, throughput=throughput)
