"""`--variant` and `--served-variant`: names, formats, families, and what is refused early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from asked_run import request_for
from foreign_variants import CONFIGS, foreign_files
from listener import Listener
from small_checkpoint import write_files
from sound_variants import RECIPES, source_files, variant_files

from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import read_served, read_variant
from pipeline.plan.choice import Choice, choose
from pipeline.plan.locator import Locator
from pipeline.preflight.survey import survey
from prepare.errors import CheckpointError, UsageError
from recipes.catalog import load_profile
from recipes.checkpoints.checkpoint import Checkpoint, read_folder
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.variant_size import stored_weights
from recipes.quantizers.adopted import AdoptedQuantization

FAMILIES = {
    "gptq": "int4",
    "gptq_v2": "int8",
    "modelopt-fp8": "fp8",
    "modelopt-nvfp4": "fp4",
    "fp8": "fp8",
    "bnb-nf4": "int4",
    "bnb-nested": "int4",
    "bnb-8": "int8",
    "gguf": "fp8",
}
OURS = {"int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4", "awq-8": "int8", "mixed": "fp4"}


def quantization_of(recipe: Any) -> AdoptedQuantization:
    assert isinstance(recipe.quantization, AdoptedQuantization)
    return recipe.quantization


class TestVariant:
    @pytest.mark.parametrize("kind", list(CONFIGS))
    def test_formats_of_other_programs(self, tmp_path: Path, kind: str) -> None:
        folder = write_files(tmp_path / "It", foreign_files(kind))
        recipe = read_variant(str(folder), Checkpoints()).recipe
        assert (recipe.name, recipe.family) == ("it", FAMILIES[kind])
        assert quantization_of(recipe).origin == "It"

    @pytest.mark.parametrize("kind", list(RECIPES))
    def test_formats_of_ours(self, tmp_path: Path, kind: str) -> None:
        folder = write_files(tmp_path / "it", variant_files(kind))
        recipe = read_variant(str(folder), Checkpoints()).recipe
        assert recipe.family == OURS.get(kind, "fp8" if kind.startswith("fp8") else "int4")

    def test_a_format_that_cannot_be_compared(self, tmp_path: Path) -> None:
        files = foreign_files("gptq")
        config = json.loads(files["config.json"])
        config["quantization_config"] = {"quant_method": "aqlm"}
        files["config.json"] = json.dumps(config).encode()
        recipe = read_variant(str(write_files(tmp_path / "it", files)), Checkpoints()).recipe
        assert recipe.family == "fp8"
        assert "cannot be compared" in quantization_of(recipe).layout

    @pytest.mark.parametrize(
        ("name", "expected"),
        [("Llama-3.1 FP8", "llama-3.1-fp8"), ("_it_", "it"), ("mine=It", "mine")],
    )
    def test_names(self, tmp_path: Path, name: str, expected: str) -> None:
        given, equals, folder = name.rpartition("=")
        write_files(tmp_path / folder, foreign_files("gptq"))
        recipe = read_variant(f"{given}{equals}{tmp_path / folder}", Checkpoints()).recipe
        assert recipe.name == expected

    @pytest.mark.parametrize("name", ["___", "baseline=it", "demo:smollm2-135m", "no such"])
    def test_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.chdir(tmp_path)
        for folder in ("___", "it"):
            write_files(tmp_path / folder, foreign_files("gptq"))
        with pytest.raises(UsageError) as caught:
            read_variant(name, Checkpoints())
        assert caught.value.hint

    def test_a_config_that_is_none(self, tmp_path: Path) -> None:
        files = foreign_files("gptq")
        config = json.loads(files["config.json"])
        config["quantization_config"] = {"quant_method": "gptq", "bits": "four"}
        files["config.json"] = json.dumps(config).encode()
        with pytest.raises(CheckpointError, match="does not describe"):
            read_variant(str(write_files(tmp_path / "it", files)), Checkpoints())

    def test_groups_that_split_a_fused_set(self, tmp_path: Path) -> None:
        files = variant_files("mixed")
        config = json.loads(files["config.json"])
        config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["re:.*q_proj"]
        files["config.json"] = json.dumps(config).encode()
        with pytest.raises(CheckpointError, match="have two formats, and vLLM would") as caught:
            read_variant(str(write_files(tmp_path / "it", files)), Checkpoints())
        assert caught.value.where.endswith("config_groups")


class TestServed:
    @pytest.mark.parametrize(
        ("words", "arguments", "family"),
        [
            ("--quantization fp8", {"quantization": "fp8"}, "fp8"),
            ("--quantization=bitsandbytes", {"quantization": "bitsandbytes"}, "int4"),
            ("--kv-cache-dtype fp8", {"kv-cache-dtype": "fp8"}, "fp8"),
            (
                "--max-num-seqs 8 --enforce-eager",
                {"max-num-seqs": 8, "enforce-eager": True},
                "fp8",
            ),
        ],
    )
    def test_arguments(self, words: str, arguments: dict[str, Any], family: str) -> None:
        recipe = read_served(f"online={words}", "org/name", load_profile("cpu")).recipe
        assert (recipe.name, recipe.family) == ("online", family)
        assert quantization_of(recipe).served_with == arguments

    @pytest.mark.parametrize(
        "text",
        [
            "--quantization fp8",
            "online=",
            "online=fp8",
            "online=--quantization fp8 --quantization fp8",
            "online=--port 80",
            "online=--api-key SECRET",
            "online=API_KEY=SECRET",
            "online=--quantization 'fp8",
            "online=--model other",
            "online=--quantization ./file",
            "online=--kv-cache-dtype ./file",
            "online=--kv-cache-dtype",
            "online=--max-model-len 4k",
            "online=--tensor-parallel-size two",
            "online=--gpu-memory-utilization most",
            "baseline=--quantization fp8",
        ],
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            read_served(text, "org/name", load_profile("cpu"))
        assert caught.value.where.startswith("--served-variant")
        assert "SECRET" not in str(caught.value)
        assert caught.value.hint


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store", environments={})


class TestChoices:
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        write_files(tmp_path / "source", source_files())
        write_files(tmp_path / "vendor", foreign_files("modelopt-fp8"))

    def choices(self, settings: Settings, **options: Any) -> Choice:
        asked = {"variants": (str(self.folder / "vendor"),), "profile": "cpu", **options}
        return choose(request_for(str(self.folder / "source"), **asked), settings)

    def located(self, settings: Settings, **options: Any) -> dict[str, Checkpoint]:
        choices = self.choices(settings, **options)
        locator = Locator(
            choices.profile, settings, lambda _: self.folder, Listener(), choices.checkpoints
        )
        return dict(locator.all(choices).adopted)

    def test_no_recipe_runs_that_nobody_asked_for(self, settings: Settings) -> None:
        assert [each.name for each in self.choices(settings).recipes] == ["vendor"]
        both = self.choices(settings, recipes=("fp8-dynamic",), served_variants=("x=--seed 1",))
        assert [each.name for each in both.recipes] == ["fp8-dynamic", "vendor", "x"]

    def test_the_command_that_repeats_it(self, settings: Settings) -> None:
        served = ("x=--quantization fp8",)
        request = self.choices(settings, served_variants=served).asked
        line = request.line()
        assert f"--variant {self.folder / 'vendor'}" in line
        assert "--served-variant 'x=--quantization fp8'" in line
        public = request.line(public=True)
        assert "--variant ./vendor" in public
        assert str(self.folder) not in public

    def test_another_model(self, settings: Settings) -> None:
        config = json.loads((self.folder / "vendor" / "config.json").read_text())
        config["hidden_size"] = 1
        write_files(self.folder / "vendor", {"config.json": json.dumps(config).encode()})
        with pytest.raises(CheckpointError, match="of another model"):
            self.located(settings)

    def test_the_source_itself(self, settings: Settings) -> None:
        write_files(self.folder / "copy", source_files())
        with pytest.raises(CheckpointError, match="is the source itself"):
            self.located(settings, variants=(str(self.folder / "copy"),))

    def test_the_plans_memory_is_of_its_own_headers(self, settings: Settings) -> None:
        preflight = survey(self.choices(settings), settings, Listener()).preflight
        assert preflight is not None
        stored = read_folder(self.folder / "vendor")
        size = sum(tensor.size for tensor in stored.tensors.values())
        assert preflight.weights["vendor"].bytes == size
        assert preflight.faults() == []


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_every_byte_of_a_variant_is_counted(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path / "source", source_files())
    write_files(tmp_path / "it", foreign_files(kind))
    source, it = (read_folder(tmp_path / name) for name in ("source", "it"))
    weights = stored_weights(source.tensors, it.tensors)
    assert weights.bytes == sum(tensor.size for tensor in it.tensors.values())
    quantized = sum(each.quantized for each in weights.tensors)
    assert quantized == (0 if kind == "gguf" else 12)


@pytest.mark.parametrize(
    ("layout", "bits", "number", "sizes"),
    [
        ("unquantized, 16 bits", 16, "float", (100, 100)),
        ("fp8", 8, "float", (400, 400)),
        ("gptq, 8-bit int", 8, "int", (200, 400)),
        ("int-quantized, 8-bit int", 8, "int", (100, 100)),
        ("modelopt-nvfp4", 4, "float", (400, 800)),
        ("awq-gemm", 4, "int", (100, 800)),
    ],
)
def test_memory_of_a_cpu_server(
    layout: str, bits: int, number: Literal["int", "float"], sizes: tuple[int, int]
) -> None:
    """The plugin widens what vLLM has no kernel for; 4-bit integers only in float32."""
    made = AdoptedQuantization(
        kind="adopted", origin="o", digest="d", layout=layout, bits=bits, number=number
    )
    assert tuple(made.bytes_on_cpu(100, wide=wide) for wide in (False, True)) == sizes
