"""The model card: its front matter as the Hub reads it, and what it says of the verdict."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_run import SERVING, FakeRun, judged_run
from huggingface_hub import ModelCard, parse_eval_result_entries

from artifacts.evidence.bundle import BundleVerdict
from artifacts.evidence.card import Card, fence
from artifacts.evidence.verify import read_verdict
from artifacts.verdict_inputs import VerdictInputs
from pipeline.core.hardware import Hardware
from pipeline.core.stage import TypedStageRecord
from pipeline.serving.serving_arguments import ServingArguments
from recipes.checkpoints.source_info import find_source, front_matter
from recipes.checkpoints.weight_files import RESULTS

RECIPE = "fp8-dynamic"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("card") / "store")
    command = {**made.report.command, "requested": {"recipes": ["awq-w4a16"]}}
    made.report = made.report.model_copy(update={"command": command})
    return made


@pytest.fixture(scope="module")
def text(run: FakeRun) -> str:
    return (run.bundle() / "README.md").read_text()


def card_of(run: FakeRun, **source: str) -> ModelCard:
    folder = run.bundle()
    verdict = read_verdict(folder / "prepare-evidence")
    judged = VerdictInputs.load_by_key(run.store.find, verdict.judges[RECIPE])
    changed = verdict.model_copy(update={"source": verdict.source.model_copy(update=source)})
    return ModelCard(text_of(run, changed, judged))


def card(
    run: FakeRun,
    *,
    verdict: BundleVerdict | None = None,
    judged: VerdictInputs | None = None,
    **members: Any,
) -> Card:
    find = run.store.find
    judged = judged or VerdictInputs.load_by_key(find, run.folder("judge", RECIPE).name)
    deployable = judged.deployable(find).model_copy(update=members)
    verdict = verdict or read_verdict(run.bundle() / "prepare-evidence")
    return Card(verdict, judged, deployable, judged.evaluations(find))


def text_of(run: FakeRun, verdict: BundleVerdict, judged: VerdictInputs) -> str:
    return card(run, verdict=verdict, judged=judged).text()


class TestFrontMatter:
    def test_as_the_hub_reads_it(self, run: FakeRun) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = card_of(run, base_model="org/model").data.to_dict()
        assert data["base_model"] == "org/model"
        assert data["base_model_relation"] == "quantized"
        assert data["license"] == "apache-2.0"
        assert data["library_name"] == "vllm"
        assert data["pipeline_tag"] == "text-generation"
        assert {"fp8", "vllm", "llmcompressor", RECIPE} <= set(data["tags"])

    def test_model_index(self, run: FakeRun) -> None:
        (result,) = card_of(run).data.eval_results
        assert result.dataset_type == "openai/openai_humaneval"
        assert result.dataset_name == "HumanEval, 96 of 164 questions"
        assert result.metric_type == "pass@1"
        assert result.metric_value == 50.0

    def test_an_unknown_base_is_left_out(self, run: FakeRun) -> None:
        data = card_of(run).data.to_dict()
        assert "base_model" not in data
        assert "base_model_relation" not in data

    def test_an_unknown_license_is_left_out_and_said(self, run: FakeRun) -> None:
        card = card_of(run, license="")
        assert "license" not in card.data.to_dict()
        assert "not known" in card.text

    def test_a_license_of_its_own(self, run: FakeRun) -> None:
        link = "https://example.org/license"
        card = card_of(run, license="other", license_name="llama3.1", license_link=link)
        data = card.data.to_dict()
        assert (data["license"], data["license_name"], data["license_link"]) == (
            "other",
            "llama3.1",
            link,
        )
        assert f"[llama3.1]({link})" in card.text


def test_a_command_stays_the_same_command_in_its_block() -> None:
    words = ["prepare", "model", "./<script>alert(1)", "it's <b>"]
    text = fence(shlex.join(words))
    assert not re.search(r"<\w", text)
    assert shlex.split(text) == words
    assert "\n" not in fence("x\n```\n# owned")


class TestBody:
    def test_deployment_has_the_judged_arguments(self, run: FakeRun, text: str) -> None:
        command = card(run).serve_command
        assert command in text
        words = command.replace("\\\n", "").split()
        assert words[:2] == ["PYTHONSAFEPATH=1", "VLLM_CPU_KVCACHE_SPACE=1"]
        assert words[-5:] == [
            "--dtype",
            "bfloat16",
            "--enforce-eager",
            "--kv-cache-dtype",
            SERVING["engine_arguments"]["kv-cache-dtype"],
        ]

    def test_it_imports_nothing_from_the_folder(self, run: FakeRun, tmp_path: Path) -> None:
        """It is given in a folder that was pulled, which may have anything in it."""
        (tmp_path / "vllm.py").write_text("open('owned', 'w').close()\n")
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "python").symlink_to(sys.executable)
        done = subprocess.run(
            ["/bin/sh", "-c", card(run).serve_command],
            cwd=tmp_path,
            env={"PATH": str(programs)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "No module named 'vllm'" in done.stderr  # it is not installed here
        assert not (tmp_path / "owned").exists()

    def test_on_a_gpu_it_is_vllm_serve(self, run: FakeRun) -> None:
        command = card(run, hardware=Hardware(accelerator="cuda")).serve_command
        assert "vllm serve . " in command

    def test_the_command_has_no_variable_that_only_prepare_reads(self, run: FakeRun) -> None:
        serving = ServingArguments({}, {"PREPARE_NVCC": "1", "VLLM_X": "1"})
        command = card(run, serving=serving).serve_command
        assert "PREPARE_NVCC" not in command
        assert "VLLM_X=1" in command

    def test_fallbacks_of_the_cpu_stand_beside_the_verdict(self, run: FakeRun, text: str) -> None:
        verdict = read_verdict(run.bundle() / "prepare-evidence")
        judged = VerdictInputs.load_by_key(run.store.find, verdict.judges[RECIPE])
        told = {"if_missing": "avx512f", "reason": "vLLM has no FP8 KV cache here"}
        other = asked_otherwise(
            judged.judge,
            profile={
                **judged.judge.record.parameters["profile"],
                "cpu_overrides": {"kv-cache-not-fp8": told},
            },
        )
        changed = replace(judged, judge=other)
        row = "| CPU override `kv-cache-not-fp8` | vLLM has no FP8 KV cache here |"
        assert row in text_of(run, verdict, changed)
        assert "CPU override" not in text

    @pytest.mark.parametrize("scales", [False, True])
    def test_fp8_attention_of_a_gpu_stands_beside_the_cache(
        self, run: FakeRun, text: str, scales: bool
    ) -> None:
        verdict = read_verdict(run.bundle() / "prepare-evidence")
        judged = VerdictInputs.load_by_key(run.store.find, verdict.judges[RECIPE])
        gpu = {"accelerator": "cuda", "gpu": "H100"}
        quantization = judged.quantize.parameters.quantization.model_dump()
        recipe = {**quantization, "kv_cache_scales": "head" if scales else None}
        changed = replace(
            judged,
            screen=asked_otherwise(judged.screen, hardware=gpu),
            quantize=asked_otherwise(judged.quantize, quantization=recipe),
        )
        card = text_of(run, verdict, changed)
        assert "| KV cache | `fp8`, and so is attention: queries are quantized as well; " in card
        assert ("keys' and values' are calibrated" in card) is scales
        assert ("the scales of queries, keys and values are 1.0" in card) is not scales
        assert "| KV cache | `fp8` |" in text  # on a CPU

    def test_no_path_of_this_machine(self, run: FakeRun, text: str) -> None:
        assert str(run.root.parent) not in text

    def test_tables_are_whole(self, text: str) -> None:
        """No blank line within a table, and each row has as many cells as its head."""
        table: list[int] = []
        for line in [*text.splitlines(), ""]:
            if line.startswith("|"):
                table.append(line.replace("\\|", "").count("|"))
            elif table:
                assert len(table) >= 3
                assert len(set(table)) == 1
                table = []

    def test_an_override_is_at_the_top(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 40})
        reason = "agreed\n\n# with <b>everybody</b>"
        text = (run.bundle(override=reason) / "README.md").read_text()
        body = text.split("---\n", 2)[2].strip().splitlines()
        assert body[0].startswith("# ")
        assert body[2].startswith("> **Promoted in spite of its verdict.** The gates said **fail**")
        assert r"agreed \# with &lt;b\>everybody&lt;/b\>" in body[3]


class TestHubResults:
    def test_part_of_a_benchmark_is_no_result_of_it(self, run: FakeRun) -> None:
        assert not (run.bundle() / RESULTS).exists()

    def test_a_whole_one_is(self, run: FakeRun, tmp_path: Path) -> None:
        verdict = read_verdict(run.bundle() / "prepare-evidence")
        gate = verdict.variant.gates[0].model_copy(update={"n": 164, "planned": 164})
        whole = verdict.model_copy(
            update={"variants": (verdict.variant.model_copy(update={"gates": [gate]}),)}
        )
        card(run, verdict=whole).write(tmp_path)
        (entry,) = parse_eval_result_entries(yaml.safe_load((tmp_path / RESULTS).read_text()))
        assert (entry.dataset_id, entry.value) == ("openai/openai_humaneval", 50.0)
        assert "fp8-dynamic" in (entry.notes or "")
        assert card(run).hub_entries() == []


class TestSource:
    def test_a_folder_gives_its_license_and_no_path(self, run: FakeRun) -> None:
        source = find_source(str(run.checkpoint.path), "d", run.checkpoint)
        assert (source.ref, source.license, source.base_model) == ("source", "apache-2.0", "")

    def test_the_hub_gives_its_id(self, run: FakeRun) -> None:
        on_hub = run.checkpoint.model_copy(
            update={"kind": "hub", "ref": "org/model@main", "revision": "abc"}
        )
        source = find_source("org/model@main", "d", on_hub)
        assert (source.base_model, source.revision) == ("org/model", "abc")

    def test_the_demo(self) -> None:
        source = find_source("demo:smollm2-135m", "d", None)
        assert source.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"

    @pytest.mark.parametrize("content", ["", "---\n: : :\n---\n", "---\n- a\n---\n", "no dashes"])
    def test_a_card_that_says_nothing(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "README.md").write_text(content)
        assert front_matter(tmp_path / "README.md") == {}


def asked_otherwise(kept: TypedStageRecord[Any, Any], **changes: Any) -> TypedStageRecord[Any, Any]:
    parameters = {**kept.record.parameters, **changes}
    return kept.stage.typed(kept.record.model_copy(update={"parameters": parameters}))
