"""The catalog: all that the package carries loads, and a wrong name or file is explained."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prepare.errors import ExitCode, UsageError
from recipes import catalog
from recipes.config_model import ConfigModel
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile

Loader = Callable[[str], ConfigModel]
LOADERS: dict[str, Loader] = {
    "recipe": catalog.load_recipe,
    "profile": catalog.load_profile,
    "policy": catalog.load_policy,
}


def carried(noun: str) -> list[str]:
    names = {
        "recipe": [*catalog.recipe_names(), catalog.BASELINE],
        "profile": catalog.profile_names(),
        "policy": catalog.policy_names(),
    }
    return names[noun]


CARRIED = [(noun, name) for noun in LOADERS for name in carried(noun)]


def file_of(noun: str, name: str) -> Path:
    folder = {"recipe": "", "profile": "profiles", "policy": "policies"}[noun]
    return catalog.RECIPES / folder / f"{name}.yaml"


def contents(noun: str, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file_of(noun, name).read_text())
    return copy.deepcopy(loaded)


def complaint(tmp_path: Path, noun: str, data: object) -> UsageError:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UsageError) as caught:
        LOADERS[noun](str(path))
    assert str(path) in caught.value.where
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint
    return caught.value


# --- what the package carries -------------------------------------------------------------------


@pytest.mark.parametrize(("noun", "name"), CARRIED)
def test_everything_carried_loads_under_its_own_name(noun: str, name: str) -> None:
    loaded = LOADERS[noun](name)
    assert loaded.model_dump()["name"] == name
    assert loaded.model_dump()["summary"]


@pytest.mark.parametrize(
    "data",
    [
        *(catalog.load_policy(name) for name in catalog.policy_names()),
        *(catalog.load_recipe(name) for name in catalog.recipe_names()),
        *(catalog.load_profile(name) for name in catalog.profile_names()),
    ],
    ids=lambda data: data.name,
)
def test_what_a_record_keeps_reads_back_to_the_byte(data: ConfigModel) -> None:
    """Keys are digests of it, and 10 is not 10.0 there."""
    kept = json.dumps(data.model_dump())
    assert json.dumps(type(data).model_validate_json(kept).model_dump()) == kept


@pytest.mark.parametrize("policy", catalog.policy_names())
def test_every_suite_has_a_margin_for_every_recipe(policy: str) -> None:
    families = {catalog.load_recipe(name).family for name in catalog.recipe_names()}
    assert families
    for name, suite in catalog.load_policy(policy).suites.items():
        assert families <= set(suite.margins), f"{policy}: {name}"


@pytest.mark.parametrize("profile", catalog.profile_names())
def test_every_policy_says_how_fast_on_every_profiles_machine(profile: str) -> None:
    accelerator = catalog.load_profile(profile).accelerator
    for policy in catalog.policy_names():
        speed = catalog.load_policy(policy).speed
        assert speed is not None
        assert speed.ratio is not None
        assert accelerator in speed.ratio.min_ratio


@pytest.mark.parametrize(
    ("gpu", "profile"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_a_profile_by_the_gpus_name(gpu: str, profile: str | None) -> None:
    found = catalog.profile_for_gpu(gpu)
    assert (found.name if found else None) == profile


# --- wrong names --------------------------------------------------------------------------------


@pytest.mark.parametrize("noun", LOADERS)
def test_an_unknown_name_names_the_known_ones(noun: str) -> None:
    with pytest.raises(UsageError, match="'nonsense'") as caught:
        LOADERS[noun]("nonsense")
    assert caught.value.where == f"--{noun} nonsense"
    for name in carried(noun):  # the baseline is served anyway, and --recipe refuses it
        assert (f"{name}," in f"{caught.value.hint},".replace(";", ",")) is (name != "baseline")


# --- files of the user's own --------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_file_of_the_users_own(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_text(yaml.safe_dump(contents("recipe", "fp8-dynamic") | {"name": "mine"}))
    assert catalog.load_recipe(str(path)).name == "mine"
    monkeypatch.chdir(tmp_path)
    assert catalog.load_recipe(f"mine{suffix}").name == "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.load_recipe(f"~/mine{suffix}").name == "mine"


@pytest.mark.parametrize(("noun", "name"), CARRIED)
def test_an_unknown_key_is_named(tmp_path: Path, noun: str, name: str) -> None:
    error = complaint(tmp_path, noun, contents(noun, name) | {"sumary": "misspelt"})
    assert "'sumary'" in error.message
    assert error.where.endswith("key sumary")
    assert "summary" in error.hint  # the known keys are named


RECIPE_FAULTS = [
    ("quantization.group_size", "many"),
    ("quantization.bits", 3),
    ("quantization.grid_points", 0),
    ("quantization.grid_points", 2),
    ("quantization.smaller_group_sizes", [64, "half"]),
    ("quantization.calibration.samples", -1),
    ("family", "int3"),
    ("minimum_compute_capability", "new"),
    ("quantization", {"kind": "hqq"}),
]
POLICY_FAULTS = [
    ("alpha", 0.5),
    ("alpha", 0),
    ("suites.mmlu.num_fewshot", 6),
    ("suites.mmlu.questions", 0),
    ("suites.mmlu.margins.fp8", "small"),
    ("suites.mmlu.margins.fp8", 0),
    ("suites.mmlu.margins.fp8", {}),
    ("suites.mmlu.margins.fp9", 0.1),
    ("suites.mmlu", {"kind": "mmlu-por"}),
    ("suites.mmlu", {"margins": {}}),
    ("suites.rouge.metric", "meteor"),
    ("suites.mmlu.tier", "critcal"),
    ("suites.mmlu.margins.int4", {"recovery": 1.2}),
    ("suites.mmlu.margins.fp8", {"points": 0.1, "recovery": 0.9}),
    ("speed.ratio.minimum", "fast"),
    ("promotion.prefer", "newest"),
]
PROFILE_FAULTS = [
    ("accelerator", "tpu"),
    ("ready_timeout_seconds", 0),
    ("workloads.chat.seconds", 0),
    ("engine_arguments.max-num-seqs", [1]),
    ("environment.VLLM_CPU_KVCACHE_SPACE", 1),
]
FAULTS = [
    *(("recipe", "awq-w4a16", key, value) for key, value in RECIPE_FAULTS),
    *(("policy", "default", key, value) for key, value in POLICY_FAULTS),
    *(("profile", "cpu", key, value) for key, value in PROFILE_FAULTS),
]


@pytest.mark.parametrize(("noun", "name", "key", "value"), FAULTS)
def test_a_wrong_value_names_file_and_key(
    tmp_path: Path, noun: str, name: str, key: str, value: object
) -> None:
    data = contents(noun, name)
    *parents, last = key.split(".")
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value
    # As the user wrote it: without the words that pydantic puts between for a `kind`.
    found = complaint(tmp_path, noun, data).where.partition(", key ")[2]
    assert found == key or found.startswith(f"{key}.")


@pytest.mark.parametrize(
    ("path", "misspelt", "known"),
    [
        ("suites.mmlu", "num_fewshots", "num_fewshot"),
        ("suites.mmlu.margins.fp8", "recovry", "recovery"),
        ("speed.ratio", "min_ratios", "min_ratio"),
    ],
)
def test_a_misspelt_key_inside_is_guessed_among_its_neighbours(
    tmp_path: Path, path: str, misspelt: str, known: str
) -> None:
    data = contents("policy", "default")
    data["suites"]["mmlu"]["margins"]["fp8"] = {"points": 0.01}
    place = data
    for key in path.split("."):
        place = place[key]
    place[misspelt] = 1
    error = complaint(tmp_path, "policy", data)
    assert error.where.endswith(f"key {path}.{misspelt}")
    assert error.hint.startswith(f"did you mean '{known}'? keys known in {path.split('.')[-1]}: ")
    assert "summary" not in error.hint  # a key of the whole file


@pytest.mark.parametrize("text", ["", "just words", "- a\n- list\n", "42\n"])
def test_a_file_without_keys_is_explained(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        catalog.load_recipe(str(path))
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("name: p\nsuites: {}\n", Policy),
        ("name: p\nattempts: 2\n", Policy),
        ("name: p\nextends: h100\nstarts: once\n", ServingProfile),
        ("name: p\nextends: h100\n", ServingProfile),
        ("name: p\nextends: base.yaml\n", ServingProfile),
        ("name: p\nextends: awq-w4a16\n", Recipe),
    ],
)
def test_a_shown_file_is_what_its_keys_say(tmp_path: Path, text: str, kind: Any) -> None:
    (tmp_path / "base.yaml").write_text("name: base\nextends: h100\n")
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert catalog._kind_of(file) is kind


@pytest.mark.parametrize("text", ["a: [", "- a\n- list\n", "name: x\nsummary: y\n", "\xff"])
def test_a_shown_file_that_is_nothing_is_called_no_recipe(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        catalog.load_shown(str(file))
    assert caught.value.where == str(file)
    assert caught.value.message.startswith("the file ")


@pytest.mark.parametrize("name", ["no-such", "no/such.yaml"])
def test_a_shown_name_that_nothing_has(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.load_shown(name)
    assert "--recipe" not in f"{caught.value}{caught.value.where}"


class TestProfilesThatExtend:
    def test_keys_are_merged(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("name: mine\nextends: h100\nengine_arguments: {tensor-parallel-size: 8}\n")
        mine, base = catalog.load_profile(str(file)), catalog.load_profile("h100")
        assert mine.engine_arguments == {**base.engine_arguments, "tensor-parallel-size": 8}
        assert mine.environment == base.environment
        assert "extends" not in mine.model_dump()
        assert catalog.load_shown(str(file)) == mine
