"""From options to choices, and which checkpoints are refused before any work is done.

The GPU's driver is a program on the PATH, so a test's PATH decides which GPU there is.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from listener import Listener
from quantized_checkpoint import quantization_config, source_files
from small_checkpoint import checkpoint_files, write_files

from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.errors import CheckpointError, UsageError
from pipeline.core.stage_record import StageSpec
from pipeline.environments.settings import Settings
from pipeline.plan.choices import Choices, Request, choose
from pipeline.plan.chosen_plan import find_data, make_plan
from pipeline.plan.located_checkpoint import locate, locate_draft
from recipes.catalog import RECIPES, load_profile


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH; without a driver at first."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install_driver(programs: Path, gpu: str, capability: str) -> None:
    """A driver's program that answers for this GPU, as nvidia-smi does."""
    program = programs / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'-L) echo "GPU 0: {gpu} (UUID: GPU-1)"; echo "GPU 1: {gpu} (UUID: GPU-2)";;\n'
        f'--query-gpu=name,*) echo "{gpu}, 580.9, 1 MiB"; echo "{gpu}, 580.9, 1 MiB";;\n'
        f'--query-gpu=compute_cap) echo "{capability}"; echo "{capability}";;\n'
        "*) exit 2;;\n"
        "esac\n"
    )
    program.chmod(0o755)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def request_for(checkpoint: str = "org/model", **options: Any) -> Request:
    defaults: dict[str, Any] = {
        "recipes": (),
        "profile": "auto",
        "policy": None,
        "name": None,
        "registry": None,
        "eval_data": None,
        "trust_remote_code": False,
    }
    return Request(checkpoint=checkpoint, **(defaults | options))


def refused(request: Request, settings: Settings) -> UsageError:
    with pytest.raises(UsageError) as caught:
        choose(request, settings)
    assert caught.value.where
    assert caught.value.cure
    return caught.value


class TestDefaults:
    def test_of_a_hub_checkpoint(self, settings: Settings) -> None:
        choices = choose(request_for("org/model@v1"), settings)
        assert choices.to_dict() == {
            "checkpoint": "org/model@v1",
            "recipes": ["fp8-dynamic", "awq-w4a16"],
            "ladder": [],
            "profile": "cpu",
            "fallbacks": {n: each.because for n, each in choices.profile.in_effect.items()},
            "kv_cache_note": None,
            "policy": "default",
            "asked": {
                "recipes": ["fp8-dynamic", "awq-w4a16"],
                "profile": "cpu",
                "policy": "default",
            },
            "name": "model",
            "registry": None,
            "eval_data": None,
            "trust_remote_code": False,
            "promote": True,
            "dry_run": None,
        }
        assert choices.baseline.family == "baseline"

    def test_of_the_demo(self, settings: Settings) -> None:
        choices = choose(request_for("demo:smollm2-135m"), settings)
        assert (choices.policy.name, choices.name) == ("demo", "smollm2-135m")

    def test_what_is_given_wins(self, settings: Settings, tmp_path: Path) -> None:
        request = request_for(
            "demo:smollm2-135m",
            recipes=("fp8-dynamic",),
            profile="h200",
            policy="default",
            name="mine",
            registry="http://registry.example",
            eval_data=tmp_path / "programs" / ".." / "data",
            dry_run=False,
        )
        assert choose(request, settings).to_dict() | {"checkpoint": ""} == {
            "checkpoint": "",
            "recipes": ["fp8-dynamic"],
            "ladder": [],
            "profile": "h200",
            "fallbacks": {},
            "kv_cache_note": load_profile("h200").kv_cache_note,
            "policy": "default",
            "asked": {"recipes": ["fp8-dynamic"], "profile": "h200", "policy": "default"},
            "name": "mine",
            "registry": "http://registry.example",
            "eval_data": str(tmp_path / "data"),
            "trust_remote_code": False,
            "promote": True,
            "dry_run": False,
        }

    def test_a_recipe_named_twice_is_made_once(self, settings: Settings) -> None:
        request = request_for(recipes=("awq-w4a16", "fp8-dynamic", "awq-w4a16"))
        names = [recipe.name for recipe in choose(request, settings).recipes]
        assert names == ["awq-w4a16", "fp8-dynamic"]

    def test_a_ladder_is_its_rungs(self, settings: Settings, tmp_path: Path) -> None:
        ladder = tmp_path / "mine.yaml"
        ladder.write_text("name: mine\nsummary: s\nrungs: [awq-w4a16, fp8-dynamic]\n")
        choices = choose(request_for(recipes=(str(ladder),)), settings)
        assert [recipe.name for recipe in choices.recipes] == ["awq-w4a16", "fp8-dynamic"]
        assert choices.rungs == ("awq-w4a16", "fp8-dynamic")
        assert choices.to_dict()["ladder"] == ["awq-w4a16", "fp8-dynamic"]

    def test_the_record_keeps_what_was_asked_for(self, settings: Settings, tmp_path: Path) -> None:
        policy = write_policy(tmp_path, {"margins": {"fp8": 0.01, "int4": 0.02}})
        told = choose(request_for(recipes=("awq-ladder",), policy=policy), settings).to_dict()
        assert told["asked"] == {"recipes": ["awq-ladder"], "profile": "cpu", "policy": policy}
        assert told["policy"] == "mine"
        assert told["recipes"] == told["ladder"]

    @pytest.mark.parametrize("policy", [None, "no-such-policy"])
    def test_a_folder_that_is_not_there_is_told_first(
        self, settings: Settings, tmp_path: Path, policy: str | None
    ) -> None:
        with pytest.raises(CheckpointError) as caught:
            choose(request_for(str(tmp_path / "none"), policy=policy), settings)
        assert caught.value.what == "there is no such folder"
        assert caught.value.where == str(tmp_path / "none")

    def test_nothing_is_written(self, settings: Settings) -> None:
        choose(request_for(), settings)
        assert not settings.home.exists()
        assert not settings.store.exists()


class TestProfile:
    def test_auto_without_a_gpu(self, settings: Settings) -> None:
        assert choose(request_for(), settings).profile.name == "cpu"

    @pytest.mark.parametrize(
        ("gpu", "profile"),
        [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 NVL", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA H20", "h20"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA B200", "b200"),
        ],
    )
    def test_auto_by_the_gpus_name(
        self, settings: Settings, programs: Path, gpu: str, profile: str
    ) -> None:
        install_driver(programs, gpu, "9.0")
        assert choose(request_for(), settings).profile.name == profile

    def test_auto_on_an_unknown_gpu(self, settings: Settings, programs: Path) -> None:
        install_driver(programs, "NVIDIA T4", "7.5")
        error = refused(request_for(), settings)
        assert "'NVIDIA T4'" in error.what
        assert "a100, b200, cpu, h100, h100-kv16, h20, h200, l40s" in error.cure

    def test_a_driver_that_fails_is_no_gpu(self, settings: Settings, programs: Path) -> None:
        (programs / "nvidia-smi").write_text("#!/bin/sh\necho no devices; exit 9\n")
        (programs / "nvidia-smi").chmod(0o755)
        assert choose(request_for(), settings).profile.name == "cpu"

    def test_what_is_asked_for_wins_over_the_gpu(self, settings: Settings, programs: Path) -> None:
        install_driver(programs, "NVIDIA A100", "8.0")
        assert choose(request_for(profile="cpu"), settings).profile.name == "cpu"


class TestUsage:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"recipes": ("fp8-dynamik",)}, "did you mean 'fp8-dynamic'"),
            ({"policy": "defualt"}, "did you mean 'default'"),
            ({"profile": "h10"}, "did you mean 'h100'"),
        ],
    )
    def test_a_slip(self, settings: Settings, options: dict[str, Any], words: str) -> None:
        assert words in refused(request_for(**options), settings).cure

    def test_an_unknown_recipe_names_the_ladders_too(self, settings: Settings) -> None:
        assert "awq-ladder" in refused(request_for(recipes=("awq",)), settings).cure

    def test_the_baseline_cannot_be_promoted(self, settings: Settings) -> None:
        error = refused(request_for(recipes=("baseline",)), settings)
        assert "changes nothing" in error.what
        assert {"awq-w4a16", "fp8-dynamic"} <= set(re.findall(r"[a-z0-9-]+", error.cure))

    def test_no_margin_for_the_recipes_family(self, settings: Settings, tmp_path: Path) -> None:
        policy = write_policy(tmp_path, {"margins": {"fp8": 0.01}})
        error = refused(request_for(policy=policy), settings)
        assert "no margin for int4" in error.what
        assert error.where == "policy key suites.mmlu.margins"
        assert choose(request_for(policy=policy, recipes=("fp8-dynamic",)), settings)
        assert choose(request_for(policy=policy, recipes=None), settings).recipes == ()

    def test_a_key_of_before_is_told_what_has_taken_its_place(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        path = Path(write_policy(tmp_path, {"margins": {"fp8": 0.01, "int4": 0.02}}))
        path.write_text(path.read_text() + "throughput: {minimum_ratio: {cpu: 0.5}}\n")
        error = refused(request_for(policy=str(path)), settings)
        assert error.where == f"{path}, key throughput"
        assert "speed: {ratio: {minimum: " in error.cure

    def test_two_ladders(self, settings: Settings, tmp_path: Path) -> None:
        names = ("one.yaml", "two.yaml")
        for name in names:
            (tmp_path / name).write_text("name: l\nsummary: s\nrungs: [awq-w4a16, fp8-dynamic]\n")
        error = refused(request_for(recipes=tuple(str(tmp_path / n) for n in names)), settings)
        assert error.what == "a run can have only one ladder"

    def test_a_rung_that_is_asked_for_beside_its_ladder(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        ladder = tmp_path / "mine.yaml"
        ladder.write_text("name: mine\nsummary: s\nrungs: [awq-w4a16, fp8-dynamic]\n")
        error = refused(request_for(recipes=("fp8-dynamic", str(ladder))), settings)
        assert "two of the recipes are called 'fp8-dynamic'" in error.what

    def test_two_recipes_of_one_name(self, settings: Settings, tmp_path: Path) -> None:
        import recipes

        text = (Path(recipes.__file__).parent / "fp8-dynamic.yaml").read_text()
        copy = tmp_path / "copy.yaml"
        copy.write_text(text.replace("[lm_head]", "[]"))
        error = refused(request_for(recipes=("fp8-dynamic", str(copy))), settings)
        assert "two of the recipes are called 'fp8-dynamic'" in error.what

    @pytest.mark.parametrize("name", ["org/model", "model:1", " "])
    def test_a_name_that_the_registry_refuses(self, settings: Settings, name: str) -> None:
        assert refused(request_for(name=name), settings).where == "--name"

    @pytest.mark.parametrize("name", ["my checkpoint", "-x", "a..b", "a--b", "x" * 97])
    @pytest.mark.parametrize("registry", ["hf://acme", "oci:///srv/models"])
    def test_a_name_that_no_repository_can_have(
        self, settings: Settings, name: str, registry: str
    ) -> None:
        assert refused(request_for(name=name, registry=registry), settings).where == "--name"
        assert choose(request_for(name=name), settings).name == name  # MLflow takes it


def write_policy(folder: Path, mmlu: dict[str, Any], speed: dict[str, Any] | None = None) -> str:
    path = folder / "policy.yaml"
    policy = {
        "name": "mine",
        "summary": "one suite",
        "suites": {"mmlu": {"kind": "mmlu", **mmlu}},
        **({"speed": speed} if speed else {}),
    }
    path.write_text(yaml.safe_dump(policy))
    return str(path)


class Checkpoints:
    """Writes a checkpoint with a config of the test's, and looks for it as a run does."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings

    def write(self, **config: Any) -> None:
        files = source_files()
        changed = json.loads(files["config.json"]) | config
        write_files(self.folder, files | {"config.json": json.dumps(changed).encode()})

    def choices(self, checkpoint: str | None = None, **options: Any) -> Choices:
        return choose(request_for(checkpoint or str(self.folder), **options), self.settings)

    def located(self, choices: Choices) -> Checkpoint:
        return locate(choices, self.settings, self.make_demo, Listener())

    def make_demo(self, spec: StageSpec) -> Path:
        assert spec.stage == "demo_checkpoint"
        return self.folder

    def fault(self, **options: Any) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            self.located(self.choices(**options))
        assert str(self.folder) in caught.value.where
        assert caught.value.cure
        return caught.value


@pytest.fixture
def checkpoints(tmp_path: Path, settings: Settings) -> Checkpoints:
    return Checkpoints(tmp_path / "model", settings)


class TestCheckpoint:
    def test_a_folder(self, checkpoints: Checkpoints) -> None:
        checkpoints.write()
        found = checkpoints.located(checkpoints.choices())
        assert (found.kind, found.path) == ("folder", checkpoints.folder)
        assert found.ref == str(checkpoints.folder)

    def test_the_demo_is_made_by_a_stage(self, checkpoints: Checkpoints) -> None:
        checkpoints.write()
        found = checkpoints.located(checkpoints.choices("demo:smollm2-135m"))
        assert (found.kind, found.ref) == ("demo", "demo:smollm2-135m")

    def test_missing(self, checkpoints: Checkpoints) -> None:
        assert "no such folder" in checkpoints.fault().what

    def test_already_quantized(self, checkpoints: Checkpoints) -> None:
        checkpoints.write(quantization_config=quantization_config("awq"))
        assert checkpoints.fault().what == "the checkpoint is already quantized"

    @pytest.mark.parametrize(
        "architecture",
        ["T5ForConditionalGeneration", "BertModel", "LlavaForConditionalGeneration"],
    )
    def test_an_architecture_that_is_not_supported(
        self, checkpoints: Checkpoints, architecture: str
    ) -> None:
        checkpoints.write(architectures=[architecture])
        assert f"'{architecture}' is not supported" in checkpoints.fault().what

    @pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "Qwen3ForCausalLM"])
    def test_architectures_that_are(self, checkpoints: Checkpoints, architecture: str) -> None:
        checkpoints.write(architectures=[architecture])
        assert checkpoints.located(checkpoints.choices()).architecture == architecture

    def test_code_of_its_own_only_when_allowed(self, checkpoints: Checkpoints) -> None:
        checkpoints.write(auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"})
        error = checkpoints.fault()
        assert "Python code of its own" in error.what
        assert "--yes-trust-remote-code" in error.cure
        allowed = checkpoints.choices(trust_remote_code=True)
        assert checkpoints.located(allowed).needs_remote_code


class TestPlan:
    def test_it_is_of_what_was_chosen(self, checkpoints: Checkpoints, settings: Settings) -> None:
        checkpoints.write()
        choices = checkpoints.choices(policy="demo", recipes=("fp8-dynamic",))
        checkpoint = checkpoints.located(choices)
        listener = Listener()
        sources = find_data(choices, settings, listener)
        plan = make_plan(choices, checkpoint, settings, sources)
        assert [variant.recipe.name for variant in plan.variants] == ["fp8-dynamic"]
        checked = plan.baseline.stages["coherence"].parameters["checkpoint"]
        assert checked == checkpoint.digest
        parameters = plan.baseline.stages["coherence"].parameters
        assert parameters["hardware"]["accelerator"] == "cpu"
        assert parameters["hardware"]["cores"] >= 1
        assert listener.notes == []
        assert not settings.store.exists()

    def test_the_gpu_is_part_of_it(
        self, checkpoints: Checkpoints, settings: Settings, programs: Path
    ) -> None:
        install_driver(programs, "NVIDIA H100 80GB HBM3", "9.0")
        checkpoints.write()
        choices = checkpoints.choices(policy="demo", recipes=("fp8-dynamic",))
        sources = find_data(choices, settings, Listener())
        plan = make_plan(choices, checkpoints.located(choices), settings, sources)
        hardware = plan.variants[0].stages["coherence"].parameters["hardware"]
        assert hardware == {"accelerator": "cuda", "gpu": "NVIDIA H100 80GB HBM3"}


class TestSpeculative:
    """A profile with speculative decoding is seen through before anything is fetched."""

    def profile(self, folder: Path, **keys: Any) -> str:
        data = yaml.safe_load((RECIPES / "profiles" / "cpu.yaml").read_text())
        file = folder / "mine.yaml"
        speculative = {"method": "ngram", "num_speculative_tokens": 4, **keys}
        file.write_text(yaml.safe_dump({**data, "speculative": speculative}))
        return str(file)

    def test_it_is_told(self, tmp_path: Path, settings: Settings) -> None:
        choices = choose(request_for(profile=self.profile(tmp_path)), settings)
        assert "ngram, 4 tokens a step" in choices.to_dict()["speculation"]

    def test_what_accepts_by_chance_is_not_promoted(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        rule = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
        asked = request_for(profile=self.profile(tmp_path, **rule))
        error = refused(asked, settings)
        assert "mine.yaml" in error.where
        assert "speculative.rejection_sample_method" in error.where
        choices = choose(replace(asked, promote=False), settings)
        assert "lossy" in choices.to_dict()["speculation"]

    @pytest.mark.parametrize("draft", ["no such thing", "./nothing-here"])
    def test_a_draft_that_is_none(self, draft: str, tmp_path: Path, settings: Settings) -> None:
        asked = request_for(profile=self.profile(tmp_path, method="draft_model", draft=draft))
        assert "speculative.draft" in refused(asked, settings).where

    def test_a_draft_is_found_as_a_checkpoint(self, tmp_path: Path, settings: Settings) -> None:
        small = tmp_path / "small"
        write_files(small, checkpoint_files())
        named = self.profile(tmp_path, method="draft_model", draft=str(small))
        choices = choose(request_for(profile=named), settings)
        draft = locate_draft(
            choices.profile, settings, lambda _: small, Listener(), trust_remote_code=False
        )
        assert draft is not None
        assert draft.path == small

    def test_what_it_accepts_is_no_claim_without_it(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        policy = yaml.safe_load((RECIPES / "policies" / "demo.yaml").read_text())
        claim = {"workload": "chat", "rate": 2, "acceptance_at_least": 1.5}
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump({**policy, "speed": {"slo": [claim]}}))
        error = refused(request_for(profile="cpu", policy=str(file)), settings)
        assert "speed.slo.0" in error.where
        choose(request_for(profile=self.profile(tmp_path), policy=str(file)), settings)
