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
from pipeline.stages.evidence import Evidence, place_of
from pipeline.stages.quantize import KvClipping
from prepare.stage import TypedStageRecord
from recipes.checkpoints.source_info import describe_source, front_matter
from recipes.checkpoints.weight_files import RESULTS

RECIPE = "fp8-dynamic"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("card") / "store")
    request = replace(made.report.request, recipes=("awq-w4a16",))
    made.report = made.report.model_copy(update={"request": request})
    return made


@pytest.fixture(scope="module")
def text(run: FakeRun) -> str:
    return (run.bundle() / "README.md").read_text()


def card_of(run: FakeRun, **source: str) -> ModelCard:
    folder = run.bundle()
    verdict = read_verdict(folder / "prepare-evidence")
    judged = Evidence.of_variant(run.store, verdict.judges[RECIPE])
    changed = verdict.model_copy(update={"source": verdict.source.model_copy(update=source)})
    return ModelCard(text_of(run, changed, judged))


def card(
    run: FakeRun,
    *,
    verdict: BundleVerdict | None = None,
    judged: Evidence | None = None,
) -> Card:
    key = run.folder("judge", RECIPE).name
    judged = judged or Evidence.of_variant(run.store, key)
    return Card(verdict or read_verdict(run.bundle() / "prepare-evidence"), judged)


def text_of(run: FakeRun, verdict: BundleVerdict, judged: Evidence) -> str:
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

    @pytest.mark.parametrize("scales", [False, True])
    def test_fp8_attention_of_a_gpu_stands_beside_the_cache(
        self, run: FakeRun, text: str, scales: bool
    ) -> None:
        verdict = read_verdict(run.bundle() / "prepare-evidence")
        judged = Evidence.of_variant(run.store, verdict.judges[RECIPE])
        gpu = {"accelerator": "cuda", "gpu": "H100"}
        quantization = judged.weights.parameters.quantization.model_dump()
        recipe = {**quantization, "kv_cache_scales": "head" if scales else None}
        changed = Evidence.of_verdict(run.store, verdict.judges[RECIPE])
        for kept in (
            asked_otherwise(judged.sanity, hardware=gpu),
            asked_otherwise(judged.weights, quantization=recipe),
        ):
            changed.stages[place_of(kept.record)] = kept.record
        card = text_of(run, verdict, changed)
        assert "| KV cache | `fp8`, and so is attention: queries are quantized as well; " in card
        assert ("keys' and values' are calibrated" in card) is scales
        assert ("the scales of queries, keys and values are 1.0" in card) is not scales
        assert "| KV cache | `fp8` |" in text  # on a CPU

    def test_what_the_scales_of_the_cache_clip(self, run: FakeRun) -> None:
        verdict = read_verdict(run.bundle() / "prepare-evidence")
        changed = Evidence.of_verdict(run.store, verdict.judges[RECIPE])
        record = Evidence.of_variant(run.store, verdict.judges[RECIPE]).weights.record
        clipping = KvClipping(
            tokens=4096, keys=0.0012, values=0.0, worst_layer="layers.3", worst_share=0.02
        )
        result = {**record.result, "kv_clipping": clipping.model_dump()}
        changed.stages[place_of(record)] = record.model_copy(update={"result": result})
        card = text_of(run, verdict, changed)
        assert "4,096 tokens" in card
        assert "clip 0.12% of the keys and 0.00% of the values" in card
        assert "2.00% of a layer's" in card

    def test_no_path_of_this_machine(self, run: FakeRun, text: str) -> None:
        assert str(run.root.parent) not in text

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
        source = describe_source(run.checkpoint).published()
        assert (source.ref, source.license, source.base_model) == ("source", "apache-2.0", "")

    @pytest.mark.parametrize("content", ["", "---\n: : :\n---\n", "---\n- a\n---\n", "no dashes"])
    def test_a_card_that_says_nothing(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "README.md").write_text(content)
        assert front_matter(tmp_path / "README.md") == {}


def asked_otherwise(kept: TypedStageRecord[Any, Any], **changes: Any) -> TypedStageRecord[Any, Any]:
    parameters = {**kept.record.parameters, **changes}
    return kept.stage.typed(kept.record.model_copy(update={"parameters": parameters}))
