"""The shape of recipes and profiles: strict, frozen, documented, with sane defaults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import recipes.policy as policy
import recipes.schema as schema
from pipeline.core.plugins import QUANTIZERS, find_plugin, plugin_names
from recipes import quantization
from recipes.config_model import ConfigModel
from recipes.quantization import AnyQuantization
from recipes.quantizers.autoawq import AutoAwqQuantization
from recipes.quantizers.awq import AwqQuantization
from recipes.quantizers.gptq import GptqQuantization
from recipes.quantizers.preset import PresetQuantization
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import CpuOverride, Recipe, ServingProfile

CALIBRATION = {"dataset": "builtin"}
quantizations: TypeAdapter[Any] = TypeAdapter(AnyQuantization)


def described() -> list[type[ConfigModel]]:
    """Every model that a user's YAML is read into."""
    found = [
        kind
        for kind in {**vars(schema), **vars(quantization), **vars(policy)}.values()
        if isinstance(kind, type) and issubclass(kind, ConfigModel) and kind is not ConfigModel
    ]
    found += [find_plugin(QUANTIZERS, name).load() for name in plugin_names(QUANTIZERS)]
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
        {"kind": "preset", "scheme": "FP8_DYNAMIC", "kv_cache_scales": "tensor"},
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
    assert quantizations.validate_python(data).group_sizes == sizes


@pytest.mark.parametrize("name", ["", "../up", "Upper", "a b", "-a", "a/b", "[red]", "a\n"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe(name=name, summary="s", family="baseline", quantization=NoQuantization())
    assert caught.value.errors()[0]["loc"] == ("name",)


class TestFallbacks:
    """What a profile changes on a CPU that lacks a feature."""

    def profile(self, **changes: Any) -> ServingProfile:
        without_bf16 = CpuOverride(
            if_missing="avx512_bf16",
            reason="no bf16",
            engine_arguments={"dtype": "float32"},
            environment={"OMP_B": "2"},
        )
        cache = CpuOverride(if_missing="avx512f", reason="no FP8 cache", kv_cache_dtype="auto")
        keys: dict[str, Any] = {
            "name": "p",
            "summary": "s",
            "accelerator": "cpu",
            "engine_arguments": {"dtype": "bfloat16", "max-model-len": 9},
            "environment": {"OMP_A": "1"},
            "cpu_overrides": {"wide": without_bf16, "cache": cache},
        }
        return ServingProfile(**(keys | changes))

    def test_nothing_changes_where_nothing_lacks(self) -> None:
        profile = self.profile()
        fitted = profile.fit_to(("avx2", "avx512f", "avx512_bf16"))
        assert fitted.in_effect == {}
        assert fitted == profile

    def test_each_changes_its_own(self) -> None:
        fitted = self.profile().fit_to(("avx2", "avx512f"))
        assert list(fitted.in_effect) == ["wide"]
        assert fitted.engine_arguments == {"dtype": "float32", "max-model-len": 9}
        assert fitted.environment == {"OMP_A": "1", "OMP_B": "2"}
        assert fitted.kv_cache_dtype == "fp8"
        both = self.profile().fit_to(("avx2",))
        assert list(both.in_effect) == ["wide", "cache"]
        assert both.kv_cache_dtype == "auto"
        assert both.baseline_kv_cache_dtype == "auto"

    def test_a_file_as_it_is_has_none_in_effect(self) -> None:
        assert self.profile().in_effect == {}

    def test_never_on_a_gpu(self) -> None:
        with pytest.raises(ValidationError, match="cpu_overrides"):
            self.profile(accelerator="cuda")

    def test_a_fallback_does_not_set_what_is_ours(self) -> None:
        fallback = CpuOverride(if_missing="avx2", reason="x", engine_arguments={"host": "0.0.0.0"})
        with pytest.raises(ValidationError) as caught:
            self.profile(cpu_overrides={"open": fallback})
        assert caught.value.errors()[0]["loc"] == ("cpu_overrides",)
