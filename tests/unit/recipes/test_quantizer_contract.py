"""What every kind of quantization in the group `prepare.quantizers` has to fulfill."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from pydantic import TypeAdapter, ValidationError

from pipeline.environments.definition import environment_names
from prepare.plugins import QUANTIZERS, plugin_names
from recipes.quantization import AnyQuantization, Quantization, for_worker
from recipes.weights.layouts import layer_parts

CALIBRATION = {"dataset": "builtin", "samples": 4, "max_tokens": 64}
# Settings that decide over formats, floors or workers, of each kind.
SETTINGS = {
    "autoawq": [{}, {"clip_search": True}],
    "awq": [
        *({}, {"bits": 8}, {"symmetric": True}, {"observer": "mse", "group_size": 256}),
        {"other_schemes": {"FP8_DYNAMIC": ["*attn*"], "W8A16": ["*down*"]}},
    ],
    "gptq": [
        *(
            {"scheme": scheme, "smoothing_strength": strength}
            for scheme in ("W4A16", "W8A8")
            for strength in (None, 0.5)
        ),
        {"scheme": "W4A16", "other_schemes": {"W8A16": ["*attn*"]}},
    ],
    "preset": [
        {"scheme": "FP8_DYNAMIC", "calibration": None},
        {"scheme": "FP8_BLOCK", "calibration": None},
        {"scheme": "FP8_DYNAMIC", "kv_cache_scales": "tensor"},
        {"scheme": "FP8"},
        {"scheme": "NVFP4"},
        {"scheme": "NVFP4A16", "calibration": None},
        {"scheme": "MXFP4", "calibration": None},
        {"scheme": "NVFP4", "other_schemes": {"FP8_DYNAMIC": ["*attn*"]}},
    ],
}
EXAMPLES = [
    {"kind": kind, "calibration": CALIBRATION, **each}
    for kind, examples in SETTINGS.items()
    for each in examples
]
ROWS, COLUMNS = 256, 1024

quantizations: TypeAdapter[Quantization] = TypeAdapter(AnyQuantization)
every_example = pytest.mark.parametrize(
    "example",
    [quantizations.validate_python(keys) for keys in EXAMPLES],
    ids=[" ".join(str(v) for v in keys.values() if isinstance(v, str)) for keys in EXAMPLES],
)


def test_every_kind_has_examples() -> None:
    assert sorted([*SETTINGS, "none", "adopted"]) == plugin_names(QUANTIZERS)


@pytest.mark.parametrize(
    "keys",
    [
        {"other_schemes": {"NVFP4": ["*attn*"]}},  # the scheme of all
        {"other_schemes": {"FP8_DYNAMIC": []}},
        {"other_schemes": {"FP8_DYNAMIC": ["re:((("]}},
        {"other_schemes": {"W4A16": ["*attn*"]}},
        {"other_schemes": {"FP8_DYNAMIC": ["*attn*"]}, "scheme": "MXFP4", "calibration": None},
    ],
)
def test_other_schemes_that_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        quantizations.validate_python(
            {"kind": "preset", "scheme": "NVFP4", "calibration": CALIBRATION, **keys}
        )


def test_parts_and_their_modules() -> None:
    keys = {"FP8": ["*.q_proj"], "FP8_DYNAMIC": ["re:.*attn.*"]}
    mixed = quantizations.validate_python(
        {"kind": "preset", "scheme": "NVFP4", "calibration": CALIBRATION, "other_schemes": keys}
    )
    schemes = [
        mixed.for_module(f"a.{name}").model_dump()["scheme"]
        for name in ("attn.q_proj", "attn.k_proj", "mlp.up_proj")
    ]
    assert schemes == ["FP8", "FP8_DYNAMIC", "NVFP4"]
    assert [part.weight_formats[0].bits for part in mixed.parts] == [8, 8, 4]
    assert not mixed.is_streamed


@pytest.mark.parametrize("keys", [{"kind": "awq"}, {"kind": "gptq", "scheme": "W4A16"}])
def test_awq_and_gptq_take_parts_of_8_bits(keys: dict[str, object]) -> None:
    others = {"W8A16": ["*.q_proj"], "FP8_DYNAMIC": ["re:.*attn.*"]}
    plain = quantizations.validate_python(keys | {"calibration": CALIBRATION})
    mixed = quantizations.validate_python(
        keys | {"calibration": CALIBRATION, "other_schemes": others}
    )
    forms = [
        mixed.for_module(f"a.{name}").weight_formats
        for name in ("attn.q_proj", "attn.k_proj", "mlp.up_proj")
    ]
    assert [form[0].name for form in forms] == [
        "pack-quantized",
        "float-quantized",
        "pack-quantized",
    ]
    assert [form[0].bits for form in forms] == [8, 8, 4]
    assert forms[2] == plain.weight_formats == mixed.weight_formats
    assert mixed.rounding == plain.rounding  # AWQ rescales the other modules' columns, too
    assert mixed.group_sizes == plain.group_sizes
    with pytest.raises(ValidationError):
        quantizations.validate_python(
            keys | {"calibration": CALIBRATION, "other_schemes": {"NVFP4": ["*"]}}
        )


@every_example
class TestKind:
    def test_a_record_brings_it_back(self, example: Quantization) -> None:
        text = json.dumps(example.model_dump(mode="json"))
        assert quantizations.validate_json(text) == example
        assert type(quantizations.validate_json(text)) is type(example)

    def test_its_worker_is_there(self, example: Quantization) -> None:
        assert example.quantizes
        assert find_spec(example.worker) is not None
        assert example.environment in environment_names()
        plugin = for_worker(example)
        assert (plugin["group"], plugin["name"]) == (QUANTIZERS, example.kind)

    def test_its_formats_can_be_read(self, example: Quantization) -> None:
        formats = example.weight_formats
        assert len(set(formats)) == len(formats) > 0
        for form in formats:
            assert layer_parts(form, ROWS, COLUMNS)
            assert form.label
