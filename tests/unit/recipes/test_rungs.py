"""Rungs: what is given back, within which bytes, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from listener import Listener
from narrow_numbers import Stored, bf16, from_bf16, from_fp8
from small_checkpoint import checkpoint_files, write_files
from sound_variants import GROUP, quantized, safetensors_of

from prepare.errors import UsageError
from recipes.catalog import load_recipe
from recipes.checkpoints.checkpoint import Checkpoint, read_folder
from recipes.checkpoints.variant_size import variant_weights
from recipes.checkpoints.weight_files import read_headers
from recipes.fused_sets import join_layers, pattern_of_set
from recipes.module_lists import is_listed
from recipes.rungs import FusedSet, GivenBack, Rung, choose_sets, give_back, rung_of
from recipes.weight_format import WeightFormat
from recipes.weights.rounding_noise import energies, read_rows

AWQ = load_recipe("awq-w4a16")
LAYERS, WIDTH = 2, 64
SHAPES = {
    **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
    "mlp.gate_proj": (2 * WIDTH, WIDTH),
    "mlp.up_proj": (2 * WIDTH, WIDTH),
    "mlp.down_proj": (WIDTH, 2 * WIDTH),
}
SMALL = {"self_attn.o_proj": (WIDTH, WIDTH), "mlp.down_proj": (WIDTH, WIDTH)}
LARGE = {"mlp.up_proj": (16 * WIDTH, WIDTH)}
NOISY = ("model.layers.1.self_attn.k_proj", "model.layers.0.mlp.down_proj")


def written(folder: Path, *, layers: int = LAYERS, shapes: dict[str, Any] = SHAPES) -> Checkpoint:
    """Random weights; the noisy modules have an outlier in each group, which costs 4 bits most."""
    random = np.random.default_rng(5)
    tensors: dict[str, Stored] = {
        "model.embed_tokens.weight": bf16(random.normal(size=(32, WIDTH)))
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            module = f"model.layers.{layer}.{name}"
            values = random.normal(size=shape)
            if module in NOISY:
                values[:, ::32] *= 20
            tensors[f"{module}.weight"] = bf16(values)
    write_files(folder, checkpoint_files())
    (folder / "model.safetensors").write_bytes(safetensors_of(tensors))
    return read_folder(folder)


def given(
    checkpoint: Checkpoint, percent: str, name: str = "awq-w4a16", scheme: Any = "FP8_DYNAMIC"
) -> Any:
    recipe = rung_of(load_recipe(name), Rung(name, Decimal(percent)))
    assert checkpoint.here is not None
    return give_back(
        *(recipe, checkpoint.here, checkpoint.tensors, checkpoint.config),
        *(Decimal(percent), scheme, Listener()),
    )


@pytest.mark.parametrize(
    ("text", "base", "percent"),
    [
        ("awq-w4a16", "awq-w4a16", None),
        ("awq-w4a16+5", "awq-w4a16", "5"),
        ("awq-w4a16+10", "awq-w4a16", "10"),
        ("./my+own.yaml+7.5", "./my+own.yaml", "7.5"),
        ("./my+own.yaml", "./my+own.yaml", None),
        ("awq+5.0", "awq", "5"),
    ],
)
def test_names_of_rungs(text: str, base: str, percent: str | None) -> None:
    assert Rung.parse(text) == Rung(base, percent and Decimal(percent))  # type: ignore[arg-type]


@pytest.mark.parametrize("share", ["0", "0.00", "101", "999"])
def test_shares_that_are_none(share: str) -> None:
    with pytest.raises(UsageError, match="no share") as caught:
        Rung.parse(f"awq-w4a16+{share}")
    assert caught.value.where == f"--recipe awq-w4a16+{share}"


@pytest.mark.parametrize(
    "name", ["fp8-dynamic", "int8-w8a8", "nvfp4a16", "mxfp4", "autoawq-w4a16", "fp8-static"]
)
def test_recipes_that_can_give_nothing_back(name: str) -> None:
    with pytest.raises(UsageError, match="can give nothing back") as caught:
        rung_of(load_recipe(name), Rung(name, Decimal(5)))
    assert "awq-w4a16+5" in caught.value.hint


@pytest.mark.parametrize("name", ["awq-w4a16", "awq-w4a16-sym", "gptq-w4a16", "nvfp4"])
@pytest.mark.parametrize("scheme", ["FP8_DYNAMIC", "W8A16"])
def test_the_noisiest_sets_are_given_back_within_the_bytes(
    tmp_path: Path, name: str, scheme: str
) -> None:
    checkpoint = written(tmp_path)
    base = load_recipe(name)
    plain = variant_weights(checkpoint.tensors, base.quantization, checkpoint.config)
    recipe, chosen = given(checkpoint, "50", name, scheme)
    weights = variant_weights(checkpoint.tensors, recipe.quantization, checkpoint.config)
    assert plain.bytes < weights.bytes <= plain.bytes * 1.5
    assert weights.bytes - plain.bytes == chosen.more_bytes <= chosen.budget
    eight = {w.name.removesuffix(".weight") for w in weights.tensors if w.form and w.form.bits == 8}
    if name != "nvfp4":  # floats lose no more by outliers
        assert set(NOISY) <= eight
    # q, k and v are one matrix of the engine.
    for layer in range(LAYERS):
        fused = {f"model.layers.{layer}.self_attn.{leaf}_proj" for leaf in "qkv"}
        assert len(fused & eight) in (0, 3)
    assert {module for one in chosen.sets for module in one.modules} == eight
    assert recipe.name == f"{name}-plus-50"
    assert recipe.minimum_compute_capability == (8.9 if scheme == "FP8_DYNAMIC" else 7.5)
    assert given(checkpoint, "50", name, scheme) == (recipe, chosen)  # each time the same


@pytest.mark.parametrize(("percent", "layers"), [("20", {0, 8}), ("40", {0, 1, 7, 8})])
def test_outer_layers_come_before_inner_ones_of_as_much_noise(
    tmp_path: Path, percent: str, layers: set[int]
) -> None:
    checkpoint = written(tmp_path, layers=9, shapes={"self_attn.o_proj": (WIDTH, WIDTH)})
    _, chosen = given(checkpoint, percent)
    assert {one.place[1] for one in chosen.sets} == layers


def test_small_sets_come_before_a_large_one_of_as_much_relative_noise(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, layers=1, shapes={**SMALL, **LARGE})
    _, chosen = given(checkpoint, "75")
    assert chosen.budget >= 32_000  # the large one takes no more
    names = [name for one in chosen.sets for name in one.modules]
    assert names == [f"model.layers.0.{name}" for name in SMALL]


def test_the_measure_is_shown(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)
    listener = Listener()
    assert checkpoint.here is not None
    give_back(
        *(AWQ, checkpoint.here, checkpoint.tensors, checkpoint.config),
        *(Decimal(20), "FP8_DYNAMIC", listener),
    )
    assert [event[1:3] for event in listener.events] == [(n, 8) for n in range(1, 9)]


def test_too_few_bytes_for_any_set_and_enough_for_all(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, layers=1)
    with pytest.raises(UsageError, match="the smallest set of modules takes") as caught:
        given(checkpoint, "1")
    least = Decimal(caught.value.hint.split()[-2])
    assert given(checkpoint, str(least))[1].sets
    with pytest.raises(UsageError):
        given(checkpoint, str(least - Decimal("0.01")))
    with pytest.raises(UsageError, match="give back all 4 sets") as caught:
        given(checkpoint, "100")
    assert "fp8-dynamic" in caught.value.hint


def test_columns_that_no_group_divides_are_refused(tmp_path: Path) -> None:
    narrow = {"mlp.up_proj": (72, WIDTH), "mlp.down_proj": (WIDTH, 72)}
    with pytest.raises(UsageError, match="layers of 72 columns"):
        given(written(tmp_path, shapes=SHAPES | narrow), "10")


def test_what_a_recipe_names_stays(tmp_path: Path) -> None:
    """Lists of the recipe and ignored modules are not given back a second time."""
    checkpoint = written(tmp_path)
    others = {"FP8_DYNAMIC": ["*.layers.1.*"]}
    quantization = AWQ.quantization.model_copy(
        update={"other_schemes": others, "ignore": ["*.layers.0.mlp.*"]}
    )
    recipe = AWQ.model_copy(update={"quantization": quantization})
    assert checkpoint.here is not None
    made, chosen = give_back(
        *(recipe, checkpoint.here, checkpoint.tensors, checkpoint.config),
        *(Decimal(3), "FP8_DYNAMIC", Listener()),
    )
    assert {m for one in chosen.sets for m in one.modules} == {"model.layers.0.self_attn.o_proj"}
    assert chosen.of_sets == 2
    assert made.quantization.model_dump()["other_schemes"] == {
        "FP8_DYNAMIC": ["*.layers.1.*", *join_layers([chosen.sets[0].pattern])]
    }


def test_layers_share_a_pattern_so_that_the_recipe_can_be_loaded(tmp_path: Path) -> None:
    """2,400 sets, of which a list of single patterns could name 1,000."""
    layers = 600
    tiny = dict.fromkeys(SHAPES, (4, 32))
    checkpoint = written(tmp_path, layers=layers, shapes=tiny)
    recipe, chosen = given(checkpoint, "30")
    assert len(chosen.sets) > 1_000
    (words,) = recipe.quantization.model_dump()["other_schemes"].values()
    assert 1 <= len(words) <= 4
    assert all(word.startswith("re:") for word in words)
    named = {name for name in checkpoint.tensors if is_listed(name.removesuffix(".weight"), words)}
    assert named == {f"{module}.weight" for one in chosen.sets for module in one.modules}
    keys = recipe.model_dump(mode="json", exclude_defaults=True)
    keys["quantization"]["kind"] = recipe.quantization.kind
    file = tmp_path / "kept.yaml"
    file.write_text(yaml.safe_dump(keys))
    assert load_recipe(str(file)).quantization == recipe.quantization


def test_lists_that_are_too_long_with_what_is_given_back_are_refused(tmp_path: Path) -> None:
    own = [f"re:.*no_such_module_{number}$" for number in range(1_000)]
    quantization = AWQ.quantization.model_copy(update={"other_schemes": {"FP8_DYNAMIC": own}})
    recipe = AWQ.model_copy(update={"quantization": quantization, "name": "long"})
    checkpoint = written(tmp_path)
    assert checkpoint.here is not None
    with pytest.raises(UsageError, match="1,000 are the most") as caught:
        give_back(
            *(recipe, checkpoint.here, checkpoint.tensors, checkpoint.config),
            *(Decimal(50), "FP8_DYNAMIC", Listener()),
        )
    assert "long" in caught.value.where


@pytest.mark.parametrize(
    ("modules", "others"),
    [
        (["model.layers.1.mlp.down_proj", "model.layers.11.mlp.down_proj"], ["model.layers.111"]),
        (["model.layers.0.mlp.experts.3.up_proj", "model.layers.2.mlp.experts.3.up_proj"], []),
        (["model.layers.1.self_attn.k_proj", "lm_head"], ["model.layers.1.self_attn.o_proj"]),
        (["transformer.h.1.mlp.c_fc", "transformer.h.3.mlp.c_fc"], ["transformer.h.13.mlp.c_fc"]),
    ],
)
def test_joined_patterns_match_the_same_modules(modules: list[str], others: list[str]) -> None:
    joined = join_layers(map(pattern_of_set, modules))
    assert all(is_listed(module, joined) for module in modules)
    again = [module.replace(".1.", ".21.") for module in modules if ".1." in module]
    assert not any(is_listed(module, joined) for module in others + again)


def test_experts_of_a_layer_are_one_set(tmp_path: Path) -> None:
    experts = {
        f"mlp.experts.{number}.{name.removeprefix('mlp.')}": shape
        for number in range(3)
        for name, shape in SHAPES.items()
        if name.startswith("mlp.")
    }
    attention = {name: shape for name, shape in SHAPES.items() if "attn" in name}
    checkpoint = written(tmp_path, shapes=attention | experts)
    _, chosen = given(checkpoint, "40")
    for one in chosen.sets:
        modules = [module for module in one.modules if ".experts." in module]
        assert len(modules) in (0, 9)
    assert chosen.of_sets == 2 * 3


def test_experts_that_the_quantizer_renames_stay(tmp_path: Path) -> None:
    """Mixtral's: no list of modules would find them there and in the engine."""
    experts = {f"block_sparse_moe.experts.0.w{n}": (WIDTH, WIDTH) for n in (1, 2, 3)}
    attention = {name: shape for name, shape in SHAPES.items() if "attn" in name}
    _, chosen = given(written(tmp_path, shapes=attention | experts), "20")
    assert chosen.of_sets == 2 * 2
    assert not any("experts" in module for one in chosen.sets for module in one.modules)


def test_a_tied_head_is_no_set(tmp_path: Path) -> None:
    quantization = AWQ.quantization.model_copy(update={"ignore": []})
    recipe = AWQ.model_copy(update={"quantization": quantization})
    checkpoint = written(tmp_path)
    head = checkpoint.tensors["model.embed_tokens.weight"]
    tensors = {**checkpoint.tensors, "lm_head.weight": head}
    assert checkpoint.here is not None
    with pytest.raises(UsageError, match="all 8 sets"):
        give_back(
            *(recipe, checkpoint.here, tensors, {"tie_word_embeddings": True}),
            *(Decimal(100), "FP8_DYNAMIC", Listener()),
        )


def test_the_choice_is_the_best_one() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        sets = [
            FusedSet(str(n), (str(n),), int(random.integers(10, 100)), float(random.random()))
            for n in range(10)
        ]
        budget = int(random.integers(10, 300))
        chosen = choose_sets(sets, budget)
        assert sum(one.more_bytes for one in chosen) <= budget
        best = max(
            sum(one.noise for one in subset)
            for number in range(11)
            for subset in combinations(sets, number)
            if sum(one.more_bytes for one in subset) <= budget
        )
        assert sum(one.noise for one in chosen) == pytest.approx(best, rel=1e-3)


def test_a_choice_among_many_alike_takes_no_time() -> None:
    """Noise for each byte differs by little, as in real models."""
    random = np.random.default_rng(2)
    sizes = random.choice([166_000, 276_000, 442_000, 885_000], 600)
    sets = [
        FusedSet(str(n), (str(n),), int(size), float(size * random.uniform(0.98, 1.02)))
        for n, size in enumerate(sizes)
    ]
    budget = int(sizes.sum() * 0.1)
    chosen = choose_sets(sets, budget)
    assert 0.98 * budget < sum(one.more_bytes for one in chosen) <= budget
    assert min(one.noise / one.more_bytes for one in chosen) > 1.01
    assert choose_sets(sets, budget) == chosen


def test_the_words_name_layers() -> None:
    attention = [f"model.layers.{n}.self_attn." for n in (0, 1, 2, 5)]
    sets = [
        *(FusedSet(at, (f"{at}v_proj", f"{at}q_proj"), 10, 0.1) for at in attention),
        FusedSet("e", tuple(f"model.layers.3.mlp.experts.{n}.w1" for n in range(4)), 10, 0.1),
        FusedSet("h", ("lm_head",), 10, 0.1),
    ]
    words = GivenBack("FP8_DYNAMIC", tuple(sets), 9, 100).words
    assert words.endswith("self_attn.q_proj+v_proj 0-2, 5; mlp.experts 3; lm_head")


def test_sets_without_noise_are_given_back_as_well() -> None:
    sets = [FusedSet(str(n), (str(n),), 10, 0.0) for n in range(4)]
    assert len(choose_sets(sets, 25)) == 2


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("fp8-dynamic", WeightFormat("float-quantized", 8, "float", "channel")),
        ("nvfp4", WeightFormat("nvfp4-pack-quantized", 4, "float", "tensor_group", group=16)),
        ("mxfp4", WeightFormat("mxfp4-pack-quantized", 4, "float", "group", group=32)),
        ("awq", WeightFormat("pack-quantized", 4, "int", "group", group=GROUP, symmetric=False)),
        ("gptq", WeightFormat("pack-quantized", 4, "int", "group", group=GROUP)),
        ("awq-8", WeightFormat("pack-quantized", 8, "int", "group", group=GROUP, symmetric=False)),
    ],
)
def test_the_noise_is_that_of_stored_numbers(kind: str, form: WeightFormat) -> None:
    weights = from_bf16(bf16(np.random.default_rng(1).normal(size=(128, 256))))
    signal, noise = energies(weights, form)
    after = stored_numbers(quantized("x", weights, kind, "F32"), kind, weights.shape)
    assert signal == pytest.approx(np.square(weights, dtype=float).sum())
    assert noise == pytest.approx(np.square(after - weights, dtype=float).sum(), rel=0.03)


def stored_numbers(parts: dict[str, Stored], kind: str, shape: tuple[int, int]) -> Any:
    """What the parts of a matrix mean."""
    by_name = {name.removeprefix("x."): part for name, part in parts.items()}
    scale = by_name["weight_scale"]
    if kind == "fp8-dynamic":
        return from_fp8(by_name["weight"]) * scale.array
    if kind in ("nvfp4", "mxfp4"):
        pairs = by_name["weight_packed"].array
        numbers = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(shape)
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        values = table[numbers & 7] * np.where(numbers & 8, -1, 1)
        if kind == "mxfp4":
            steps = np.exp2(scale.array.astype(float) - 127)
        else:
            steps = from_fp8(scale) / by_name["weight_global_scale"].array
        return values * np.repeat(steps, shape[1] // steps.shape[1], axis=1)
    bits = 8 if kind == "awq-8" else 4
    numbers = unpack(by_name["weight_packed"].array, bits)
    zeros = np.full(scale.array.shape, 2 ** (bits - 1))
    if "weight_zero_point" in by_name:
        zeros = unpack(by_name["weight_zero_point"].array.T, bits).T
    by_group = [np.repeat(each, GROUP, axis=1) for each in (zeros, scale.array)]
    return (numbers - by_group[0]) * by_group[1]


def unpack(packed: Any, bits: int) -> Any:
    shifts = np.arange(0, 32, bits)
    unsigned = np.ascontiguousarray(packed).view(np.uint32)
    return ((unsigned[..., None] >> shifts) & (2**bits - 1)).astype(int).reshape(len(packed), -1)


def test_rows_are_read_alone(tmp_path: Path) -> None:
    checkpoint = written(tmp_path)

    [(path, header)] = read_headers(tmp_path).items()
    name = f"{NOISY[1]}.weight"
    whole = read_rows(path, header, name, 1_000)
    some = read_rows(path, header, name, 10)
    assert whole.shape == checkpoint.tensors[name].shape
    assert len(some) == 10
    assert np.array_equal(some, whole[::7])


@pytest.mark.parametrize("shape", [(0, WIDTH), (WIDTH, 0)])
def test_a_matrix_without_numbers_is_none_of_the_sets(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    checkpoint = written(tmp_path, shapes={**SHAPES, "self_attn.extra": shape})
    _, chosen = given(checkpoint, "50")
    assert not [name for one in chosen.sets for name in one.modules if "extra" in name]
