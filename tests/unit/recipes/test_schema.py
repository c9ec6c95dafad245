"""The shape of recipes and profiles: strict, frozen, documented, with sane defaults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import recipes.policy as policy
import recipes.schema as schema
from recipes import quantization
from recipes.described import Described
from recipes.group_sizes import sizes_to_try
from recipes.quantization import (
    AutoAwqQuantization,
    AwqQuantization,
    GptqQuantization,
    NoQuantization,
    PresetQuantization,
    Quantization,
)
from recipes.schema import Recipe, ServingProfile, Workload

CALIBRATION = {"dataset": "carried"}
quantizations: TypeAdapter[Any] = TypeAdapter(Quantization)


def described() -> list[type[Described]]:
    """Every model that a user's YAML is read into."""
    found = [
        kind
        for kind in {**vars(schema), **vars(quantization), **vars(policy)}.values()
        if isinstance(kind, type) and issubclass(kind, Described) and kind is not Described
    ]
    assert len(found) >= 16
    return found


@pytest.mark.parametrize("kind", described())
def test_unknown_keys_are_forbidden_and_values_frozen(kind: type[BaseModel]) -> None:
    assert kind.model_config["extra"] == "forbid"
    assert kind.model_config["frozen"] is True
    assert kind.__doc__


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"kind": "none"}, NoQuantization),
        ({"kind": "preset", "scheme": "FP8_DYNAMIC"}, PresetQuantization),
        ({"kind": "awq", "calibration": CALIBRATION}, AwqQuantization),
        ({"kind": "gptq", "scheme": "W4A16", "calibration": CALIBRATION}, GptqQuantization),
        ({"kind": "autoawq", "calibration": CALIBRATION}, AutoAwqQuantization),
    ],
)
def test_the_kind_chooses_the_quantization(data: dict[str, Any], kind: type) -> None:
    assert type(quantizations.validate_python(data)) is kind


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "preset", "scheme": "FP8_DYNAMIC", "group_size": 128},
        {"kind": "none", "scheme": "FP8_DYNAMIC"},
        {"kind": "preset", "scheme": "NVFP4"},
        {"kind": "preset", "scheme": "FP8"},
        {"kind": "preset", "scheme": "FP8_DYNAMIC", "kv_cache_scales": True},
        {"kind": "preset", "scheme": "FP8_DYNAMIC", "calibration": CALIBRATION},
        {"kind": "gptq", "scheme": "W4A16"},
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


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ({"kind": "awq", "calibration": CALIBRATION}, (128, 64, 32)),
        (
            {"kind": "gptq", "scheme": "W4A16", "group_size": 64, "smaller_group_sizes": []}
            | {"calibration": CALIBRATION},
            (64,),
        ),
        ({"kind": "gptq", "scheme": "W8A8", "calibration": CALIBRATION}, ()),
        ({"kind": "preset", "scheme": "FP8_BLOCK"}, (128,)),
        ({"kind": "preset", "scheme": "NVFP4", "calibration": CALIBRATION}, (16,)),
        ({"kind": "preset", "scheme": "FP8_DYNAMIC"}, ()),
        ({"kind": "preset", "scheme": "FP8", "calibration": CALIBRATION}, ()),
        ({"kind": "none"}, ()),
    ],
)
def test_group_sizes_are_tried_in_order(data: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert sizes_to_try(quantizations.validate_python(data).model_dump()) == sizes


@pytest.mark.parametrize("name", ["", "../up", "Upper", "a b", "-a", "a/b", "[red]", "a\n"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Recipe(name=name, summary="s", family="baseline", quantization=NoQuantization())


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
