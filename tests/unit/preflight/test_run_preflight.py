"""A run that would fail ends before anything is built, fetched or hashed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from published_models import LLAMA_3_8B, dense, source
from small_checkpoint import safetensors, write_files

from pipeline.core.errors import ExitCode, PrepareError
from pipeline.environments.settings import Settings
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.machine import Machine
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.preflight.run_preflight import early_faults, preflight_of
from pipeline.run.model import run_model
from pipeline.run.plan_report import forecast

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 40,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 8,
}
TENSORS = {
    "model.embed_tokens.weight": ("BF16", (8, 40)),
    "model.layers.0.mlp.up_proj.weight": ("BF16", (64, 40)),
    "model.layers.0.mlp.down_proj.weight": ("BF16", (40, 64)),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def checkpoint(folder: Path, **config: Any) -> str:
    files = {
        "config.json": json.dumps(CONFIG | config).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(TENSORS),
    }
    return str(write_files(folder, files))


def request(name: str) -> ModelRequest:
    return ModelRequest(
        checkpoint=name,
        recipes=("fp8-dynamic", "awq-w4a16"),
        profile="cpu",
        policy="demo",
        name=None,
        registry=None,
        eval_data=None,
        trust_remote_code=False,
    )


def machine_of(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    found = Machine(**({"memory_bytes": 10**12, "free_disk_bytes": 10**12} | changes))
    monkeypatch.setattr("pipeline.preflight.run_preflight.machine_of", lambda *_, **__: found)


def test_one_fault(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_of(monkeypatch)
    report = run_model(request(checkpoint(tmp_path / "model")), settings, Listener())
    assert report.status == "failed"
    assert report.exit_code == ExitCode.EXPECTED_ERROR
    assert report.error is not None
    assert "none of its group sizes divides layers of 40 columns" in report.error["message"]
    assert report.stages == []
    assert not (settings.home / "environments").exists()
    assert not (settings.store / "stages").exists()


def test_all_at_once(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_of(monkeypatch, memory_bytes=10**9)
    name = checkpoint(tmp_path / "model", quantization_config={"quant_method": "gptq"})
    report = run_model(request(name), settings, Listener())
    assert report.exit_code == ExitCode.EXPECTED_ERROR
    assert report.error is not None
    what = report.error["message"]
    for words in (
        "recipes need 16-bit weights",
        "layers of 40",
        "'quantize' of 'awq-w4a16' needs",
        "'serve'",
    ):
        assert words in what
    assert report.stages == []


def test_what_the_checkpoint_says_of_itself_is_told_before_it_is_hashed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch)
    own = {"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}
    name = checkpoint(tmp_path / "model", **own)
    (tmp_path / "model" / "hf_quant_config.json").write_text("{}")
    report = run_model(request(name), settings, Listener())
    assert report.error is not None
    for words in ("recipes need 16-bit weights", "its own Python code", "layers of 40"):
        assert words in report.error["message"]


def test_too_little_disk(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch, free_disk_bytes=1000)
    name = checkpoint(tmp_path / "model", hidden_size=32)
    wide = {tensor: (dtype, (64, 64)) for tensor, (dtype, _) in TENSORS.items()}
    write_files(tmp_path / "model", {"model.safetensors": safetensors(wide)})
    report = run_model(request(name), settings, Listener())
    assert report.error is not None
    assert "GB of disk (fp8-dynamic" in report.error["message"]
    assert report.error["where"] == str(settings.store)
    assert report.stages == []


def test_the_plan_tells_it_too(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch, free_disk_bytes=1000)
    found = forecast(request(checkpoint(tmp_path / "model")), settings, Listener())
    (groups,) = found.refusals()  # no weights are read to learn what else is lacking
    assert groups.startswith("would be refused: 'awq-w4a16' does not suit this checkpoint")
    assert "hint: choose a recipe without groups" in groups
    assert [fault["kind"] for fault in found.to_dict()["refused"]] == ["StageError"]


def test_a_policy_that_insists_on_chat_is_refused_before_anything_is_made(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch)
    policy = tmp_path / "chat.yaml"
    policy.write_text(
        "{name: chat, summary: s,"
        " suites: {code: {kind: humaneval, prompt_format: chat, margins: {fp8: "
        "0.1}}}}"
    )
    asked = replace(
        request(checkpoint(tmp_path / "model")), recipes=("fp8-dynamic",), policy=str(policy)
    )
    report = run_model(asked, settings, Listener())
    assert report.exit_code == ExitCode.USAGE
    assert report.error is not None
    assert report.error["where"].startswith("policy key suites.code.prompt_format")
    assert report.stages == []
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert forecast(asked, settings, Listener()).refusals() == []


def test_the_form_that_was_taken_stands_in_the_stages(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch)
    asked = replace(request(checkpoint(tmp_path / "model")), recipes=("fp8-dynamic",))

    def forms() -> set[tuple[str, str]]:
        choices = choose(asked, settings)
        sources = find_data(choices, settings, Listener())
        found = locate(choices, settings, lambda _: tmp_path, Listener())
        stages = make_plan(choices, found, settings, sources).stages(lambda _: None)
        suites = [
            (spec.stage, suite)
            for spec in stages
            for suite in (
                *([spec.parameters["suite"]] if "suite" in spec.parameters else []),
                *spec.parameters.get("policy", {}).get("suites", {}).values(),
            )
        ]
        return {
            (stage, suite["prompt_format"]) for stage, suite in suites if suite["kind"] != "mmlu"
        }

    roles = ("questions", "evaluate", "judge")
    assert forms() == {(role, "completion") for role in roles}
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert forms() == {(role, "chat") for role in roles}


def test_a_note_where_memory_cannot_be_checked(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch)
    listener = Listener()
    report = run_model(
        request(checkpoint(tmp_path / "model", num_attention_heads=None)), settings, listener
    )
    assert any("memory is not checked before the run" in note for note in listener.notes)
    assert report.error is not None  # of the groups


class TestDownload:
    """A checkpoint of the Hub, seen by its headers; what the Hub says is made up."""

    @pytest.fixture
    def told(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., list[PrepareError]]:
        machine_of(monkeypatch, free_disk_bytes=20 * 10**9)
        hub = "pipeline.preflight.run_preflight"
        model = source(LLAMA_3_8B, dense(LLAMA_3_8B))
        monkeypatch.setattr(f"{hub}.read_source", lambda *_: model)
        monkeypatch.setattr(f"{hub}.bytes_to_download", lambda *_: model.weights_bytes)
        monkeypatch.setattr(f"{hub}._is_on_the_same_disk", lambda _: True)

        def ask(*made: str) -> list[PrepareError]:
            choices = choose(request("org/name"), settings)
            preflight = preflight_of(choices, settings)
            assert preflight is not None
            return early_faults(replace(preflight, made=frozenset(made)), choices)

        return ask

    def test_disk_for_it_and_all_variants(self, told: Callable[..., list[PrepareError]]) -> None:
        (fault,) = told()
        assert "(download 16.1, fp8-dynamic 9.1, awq-w4a16 5.8)" in fault.message

    def test_weights_that_are_there_take_none(
        self, told: Callable[..., list[PrepareError]]
    ) -> None:
        assert told("fp8-dynamic", "awq-w4a16") == []
        (fault,) = told("fp8-dynamic")
        assert "(download 16.1, awq-w4a16 5.8)" in fault.message

    def test_the_download_alone_may_be_too_much(
        self,
        told: Callable[..., list[PrepareError]],
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        machine_of(monkeypatch, free_disk_bytes=10**10)
        # With every variant made, nothing in the store has to be waited for.
        (settings.store / "stages" / "quantize" / "abc").mkdir(parents=True)
        (fault,) = told("fp8-dynamic", "awq-w4a16")
        assert "needs 16.1 GB of disk (download 16.1)" in fault.message
        assert "recipes" not in fault.hint
        assert told("fp8-dynamic") == []

    def test_a_store_with_variants_is_left_for_later(
        self, told: Callable[..., list[PrepareError]], settings: Settings
    ) -> None:
        """Which of them are of this checkpoint is known when it is here."""
        (settings.store / "stages" / "quantize" / "abc").mkdir(parents=True)
        assert told() == []

    def test_another_disk(
        self, told: Callable[..., list[PrepareError]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = "pipeline.preflight.run_preflight._is_on_the_same_disk"
        monkeypatch.setattr(place, lambda _: False)
        assert told() == []


@pytest.mark.parametrize(
    ("recipes", "disk", "prompt_format", "code"),
    [
        (("fp8-dynamic",), 10**12, "auto", ExitCode.SUCCESS),
        (("fp8-dynamic",), 10**12, "chat", ExitCode.USAGE),
        (("awq-w4a16",), 10**12, "auto", ExitCode.EXPECTED_ERROR),
        (("fp8-dynamic",), 1000, "auto", ExitCode.EXPECTED_ERROR),
        # The first check has one fault, of usage; the disk is looked at later.
        (("fp8-dynamic",), 1000, "chat", ExitCode.USAGE),
        (("awq-w4a16",), 1000, "chat", ExitCode.EXPECTED_ERROR),
    ],
)
def test_the_plan_has_the_exit_code_of_the_run(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipes: tuple[str, ...],
    disk: int,
    prompt_format: str,
    code: ExitCode,
) -> None:
    machine_of(monkeypatch, free_disk_bytes=disk)
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{name: mine, summary: s, suites: {code: {kind: humaneval, "
        f"prompt_format: {prompt_format}, margins: {{fp8: 0.1, int4: 0.1}}}}}}}}"
    )
    asked = replace(request(checkpoint(tmp_path / "model")), recipes=recipes, policy=str(policy))
    assert forecast(asked, settings, Listener()).exit_code == code
    if code != ExitCode.SUCCESS:
        assert run_model(asked, settings, Listener()).exit_code == code
