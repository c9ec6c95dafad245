"""The evidence bundle: what is in it, that it verifies, and that no tampering goes unseen."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, judged_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_stages import edit
from some_node import NODE
from spoilt_bundle import (
    RECIPE,
    change_packed,
    found,
    rewrite_manifest,
    stage_folder,
)

from artifacts.evidence.bundle import RESOLVED, VERDICT, follow_pointer, pack
from artifacts.evidence.bundle_check import check_bundle
from artifacts.evidence.manifest import MANIFEST, ManifestFile, list_files
from pipeline.checkpoint.weights_folder_files import BUNDLE
from pipeline.core.digest import digest_file
from pipeline.core.errors import EvidenceError, UsageError
from pipeline.core.store import RECORD
from pipeline.release.evidence_stage import evidence_stage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("run") / "store")


@pytest.fixture(scope="module")
def copy_to_spoil(run: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which a test undoes what it does."""
    return Path(shutil.copytree(run.bundle(), tmp_path_factory.mktemp("byte") / "deployed"))


@pytest.fixture
def deployed(run: FakeRun, tmp_path: Path) -> Path:
    """A copy of the folder, which a test may spoil."""
    return Path(shutil.copytree(run.bundle(), tmp_path / "deployed"))


class TestContents:
    def test_it_verifies(self, deployed: Path) -> None:
        check = check_bundle(deployed)
        assert found(check) == ""
        assert check.is_sound
        assert check.weights_checked
        assert [(c.recipe, c.kept, c.computed, c.answers) for c in check.variants] == [
            ("awq-w4a16", "pass", "pass", 192),
            (RECIPE, "pass", "pass", 192),
        ]

    def test_alone_it_verifies_without_weights(self, deployed: Path, tmp_path: Path) -> None:
        alone = tmp_path / "elsewhere"
        shutil.move(deployed / BUNDLE, alone)
        check = check_bundle(alone)
        assert check.is_sound
        assert not check.weights_checked

    def test_it_has_the_evidence(self, run: FakeRun, deployed: Path) -> None:
        bundle = deployed / BUNDLE
        names = {path.name for path in bundle.rglob("*") if path.is_file()}
        assert names >= {
            "answers.jsonl.gz",
            "questions.jsonl.gz",
            "layers.jsonl.gz",
            VERDICT,
            RESOLVED,
            f"{run.report.run}.server.baseline.log.gz",
            f"{run.report.run}.server.{RECIPE}.log.gz",
        }
        parts = json.loads((bundle / RESOLVED).read_text())
        assert parts["policy"]["value"]["name"] == "p"
        assert parts["quantized"]["value"]["calibration_digest"] == "c" * 64
        assert parts["hardware"]["value"]["cpu"] == NODE.cpu
        assert parts["serving"]["value"]["engine_arguments"]["kv-cache-dtype"] == "fp8"

    def test_the_manifest_has_relative_paths_only(self, run: FakeRun, deployed: Path) -> None:
        text = (deployed / BUNDLE / MANIFEST).read_text()
        assert str(run.root.parent) not in text
        paths = [each["path"] for each in json.loads(text)["evidence_files"]]
        assert paths == sorted(paths)
        assert not any(path.startswith("/") or ".." in path for path in paths)
        assert str(run.root.parent) not in (deployed / BUNDLE / VERDICT).read_text()

    def test_weights_are_links_and_the_stage_keeps_its_own(self, run: FakeRun) -> None:
        original = run.folder("quantize", RECIPE) / "output" / "model.safetensors"
        assert original.samefile(run.bundle() / "model.safetensors")
        assert not (original.parent / BUNDLE).exists()
        assert not (original.parent / "README.md").exists()

    def test_same_evidence_same_bytes(self, run: FakeRun) -> None:
        record = run.evidence()
        first = list_files(run.store.stage_folder("evidence", record.key) / "output")
        run.store.discard("evidence", record.key)
        again = run.evidence()
        assert list_files(run.store.stage_folder("evidence", again.key) / "output") == first
        assert again.result == record.result

    def test_it_is_made_once(self, run: FakeRun) -> None:
        assert run.evidence().finished == run.evidence().finished
        later = run.report.model_copy(update={"run": "20261122-100000-000001"})
        assert evidence_stage(later, RECIPE, run.store).key == run.evidence().key

    def test_a_variant_without_verdict_counts_and_is_told(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 0}, broken=("gptq",))
        folder = run.bundle()
        assert check_bundle(folder).is_sound
        verdict = json.loads((folder / BUNDLE / VERDICT).read_text())
        assert verdict["attempted"] == [RECIPE, "gptq"]
        assert {v["recipe"]: v["verdict"] for v in verdict["variants"]}["gptq"] == "error"

    def test_one_that_was_not_judged_has_none(self, run: FakeRun) -> None:
        with pytest.raises(UsageError, match="'nothing'"):
            run.evidence("nothing")

    def test_a_stage_that_is_gone(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 0})
        shutil.rmtree(run.folder("coherence", "baseline"))
        with pytest.raises(EvidenceError, match="'coherence'"):
            run.evidence()

    def test_weights_changed_since_are_not_bundled(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 0})
        weights = run.folder("quantize", RECIPE) / "output" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
        with pytest.raises(EvidenceError) as caught:
            run.evidence()
        assert str(weights.parent).endswith(caught.value.where)
        assert not list((run.root / "stages" / "evidence").glob("[0-9a-f]*[0-9a-f]/stage.json"))


class TestOverride:
    @pytest.fixture
    def failed(self, tmp_path: Path) -> FakeRun:
        return judged_run(tmp_path / "store", lost={RECIPE: 40})

    def test_it_is_in_the_verdict(self, failed: FakeRun) -> None:
        check = check_bundle(failed.bundle(override="the team agreed"))
        assert check.is_sound
        assert (check.verdict, check.override) == ("fail", "the team agreed")

    def test_without_a_reason_it_does_not_verify(self, failed: FakeRun) -> None:
        bundle = failed.bundle(override="the team agreed")
        edit(bundle / BUNDLE / VERDICT, lambda verdict: verdict.update(override=None))
        assert "no reason is given for promoting it" in found(check_bundle(bundle))

    def test_nor_is_it_made(self, failed: FakeRun) -> None:
        with pytest.raises(EvidenceError, match="no reason is given for promoting it"):
            failed.bundle()


class TestTampering:
    """Each spoils one thing; `rewritten` is where the manifest was made to match afterwards."""

    @pytest.fixture(params=[False, True], ids=["plain", "rewritten"])
    def finish(self, request: pytest.FixtureRequest) -> Callable[[Path], str]:
        def check(deployed: Path) -> str:
            if request.param:
                rewrite_manifest(deployed)
            result = check_bundle(deployed)
            assert not result.is_sound
            return found(result)

        return check

    def test_a_byte_of_the_weights(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        weights = deployed / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
        text = finish(deployed)
        assert "model.safetensors: the file was changed" in text or "those that were judged" in text

    @pytest.mark.parametrize(
        "name",
        [
            *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
            *("modeling_x.py", "consolidated.safetensors"),
        ],
    )
    def test_a_file_beside_the_weights(
        self, deployed: Path, finish: Callable[[Path], str], name: str
    ) -> None:
        (deployed / name).write_text('{"another": "one"}')
        text = finish(deployed)
        assert "other files are not those that were judged" in text

    def test_a_byte_of_an_answer(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "evaluate") / "answers.jsonl.gz"
        change_packed(file, lambda text: text.replace(b'"x"', b'"y"', 1))
        assert "the answers are not those that were given" in finish(deployed)

    def test_a_missing_answer(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "evaluate") / "answers.jsonl.gz"
        change_packed(file, lambda text: text[: text.rindex(b"\n", 0, -1) + 1])
        assert "the answers are not those that were given" in finish(deployed)

    def test_all_answers_missing(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        (stage_folder(deployed, "evaluate") / "answers.jsonl.gz").unlink()
        assert "answers.jsonl is missing" in finish(deployed)

    def test_a_damaged_file(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "evaluate") / "answers.jsonl.gz"
        file.write_bytes(file.read_bytes()[:-5])
        assert "a file is damaged" in finish(deployed)

    def test_a_question(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "questions", "code") / "questions.jsonl.gz"
        change_packed(file, lambda text: text.replace(b"95", b"94"))
        assert "the questions are not those that were asked" in finish(deployed)

    def test_the_policy(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        def widen(record: dict[str, Any]) -> None:
            record["parameters"]["policy"]["suites"]["code"]["margins"]["fp8"]["points"] = 0.5

        edit(stage_folder(deployed, "judge") / RECORD, widen)
        text = finish(deployed)
        assert "were changed afterwards" in text
        assert "not the rule of its policy, profile and attempt: margin.points" in text
        assert "policy is not what" in text

    def test_the_resolved_policy(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        edit(deployed / BUNDLE / RESOLVED, lambda parts: parts["policy"]["value"].update(alpha=0.5))
        assert f"{RESOLVED}: policy is not what" in finish(deployed)

    def test_the_engines_version(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        edit(
            stage_folder(deployed, "coherence") / RECORD,
            lambda record: record["result"].update(engine_version="0.99"),
        )
        text = finish(deployed)
        assert "depends on another 'coherence'" in text
        assert "engine_version is not what" in text

    def test_a_record_far_from_the_verdict(
        self, deployed: Path, finish: Callable[[Path], str]
    ) -> None:
        edit(
            stage_folder(deployed, "quantize") / RECORD,
            lambda record: record["parameters"].update(environment="another"),
        )
        assert "were changed afterwards" in finish(deployed)

    def test_a_stage_that_is_left_out(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        shutil.rmtree(stage_folder(deployed, "coherence", "baseline"))
        assert "is missing" in finish(deployed)

    def test_the_verdict(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        def better(verdict: dict[str, Any]) -> None:
            verdict["variants"][0]["gates"][0]["candidate"] = 0.99

        edit(deployed / BUNDLE / VERDICT, better)
        assert "gates[0].candidate: kept 0.99" in finish(deployed)

    def test_another_variants_p_value(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        """It has a part in the correction, so its own evidence is there, too."""
        edit(
            deployed / BUNDLE / VERDICT,
            lambda verdict: verdict["variants"][0].update(p_value=0.9),
        )
        assert "p_value: kept 0.9" in finish(deployed)

    def test_of_which_variant_it_is(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        edit(deployed / BUNDLE / VERDICT, lambda verdict: verdict.update(recipe="awq-w4a16"))
        text = finish(deployed)
        assert f"is about '{RECIPE}'" in text
        assert "the weights are not those that were judged" in text


class TestOneByte:
    """Whichever byte of whichever file is changed, it is seen."""

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_anywhere(self, copy_to_spoil: Path, data: st.DataObject) -> None:
        files = sorted(p for p in copy_to_spoil.rglob("*") if p.is_file() and p.name != MANIFEST)
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        before = bytes(content)
        content[place] ^= data.draw(st.integers(1, 255))
        # The weights' copy here is a separate file, so nothing else changes with it.
        file.write_bytes(content)
        try:
            assert not check_bundle(copy_to_spoil).is_sound
        except EvidenceError:
            pass  # what says the verdict itself cannot be read any more
        finally:
            file.write_bytes(before)


class TestFiles:
    @pytest.mark.parametrize("place", ["added.py", f"{BUNDLE}/added.json", "sub/added"])
    def test_one_added(self, deployed: Path, place: str) -> None:
        (deployed / place).parent.mkdir(exist_ok=True)
        (deployed / place).write_text("x")
        assert f"{place}: the file was added" in found(check_bundle(deployed))

    def test_one_removed(self, deployed: Path) -> None:
        (deployed / "tokenizer.json").unlink()
        assert "tokenizer.json: the file is missing" in found(check_bundle(deployed))

    def test_a_card_edited(self, deployed: Path) -> None:
        (deployed / "README.md").write_text("better than ever")
        assert "README.md: the file was changed" in found(check_bundle(deployed))

    @pytest.mark.parametrize("name", [".git/hooks/x", ".github/x", ".cache/huggingface/x"])
    def test_what_git_and_the_hub_keep_is_not_covered(self, deployed: Path, name: str) -> None:
        (deployed / name).parent.mkdir(parents=True, exist_ok=True)
        (deployed / name).write_text("x")
        assert f"{name}: the file was added" in found(check_bundle(deployed))

    def test_what_the_hub_puts_into_every_repository(self, deployed: Path) -> None:
        (deployed / ".gitattributes").write_text("x")
        assert check_bundle(deployed).is_sound

    def test_a_link_is_refused(self, deployed: Path, tmp_path: Path) -> None:
        config = deployed / "config.json"
        config.rename(tmp_path / "config.json")
        config.symlink_to(tmp_path / "config.json")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(config)

    def test_evidence_that_is_a_link(self, deployed: Path, tmp_path: Path) -> None:
        shutil.move(deployed / BUNDLE, tmp_path / "another")
        (deployed / BUNDLE).symlink_to(tmp_path / "another")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE)

    @pytest.mark.parametrize("part", ["evidence_files", "model_files"])
    def test_a_path_that_is_listed_twice(self, deployed: Path, part: str) -> None:
        edit(deployed / BUNDLE / MANIFEST, lambda listed: listed[part].append(listed[part][0]))
        with pytest.raises(EvidenceError, match=r"manifest\.json"):
            check_bundle(deployed)

    def test_a_pipe_does_not_keep_it_waiting(self, deployed: Path) -> None:
        (deployed / BUNDLE / VERDICT).unlink()
        os.mkfifo(deployed / BUNDLE / VERDICT)
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE / VERDICT)

    def test_no_bundle(self, tmp_path: Path) -> None:
        with pytest.raises(EvidenceError) as caught:
            check_bundle(tmp_path)
        assert caught.value.where == str(tmp_path / BUNDLE)

    @pytest.mark.parametrize("name", [MANIFEST, VERDICT])
    def test_what_says_it_all_is_damaged(self, deployed: Path, name: str) -> None:
        (deployed / BUNDLE / name).write_text("{")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE / name)

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a"])
    def test_no_path_leads_out(self, path: str) -> None:
        with pytest.raises(ValueError, match="path"):
            ManifestFile(path=path, size=1, sha256="0" * 64)

    def test_a_manifest_whose_paths_lead_out(self, deployed: Path) -> None:
        edit(
            deployed / BUNDLE / MANIFEST,
            lambda manifest: manifest["evidence_files"][0].update(path="../../config.json"),
        )
        with pytest.raises(EvidenceError, match=r"\.\./\.\./config\.json"):
            check_bundle(deployed)


class TestPacking:
    @given(st.binary(max_size=200))
    def test_equal_content_equal_bytes(self, content: bytes) -> None:
        assert pack(content) == pack(content)
        assert gzip.decompress(pack(content)) == content

    def test_no_time_and_no_name(self) -> None:
        header = pack(b"x")[:10]
        assert header[3] == 0  # no name follows
        assert header[4:8] == b"\0\0\0\0"

    @given(st.dictionaries(st.text(), st.integers()))
    def test_pointers_find_every_key(self, data: dict[str, int]) -> None:
        for key, value in data.items():
            pointer = "/" + key.replace("~", "~0").replace("/", "~1")
            assert follow_pointer(data, pointer) == value

    def test_digest_of_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"abc")
        expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        assert digest_file(tmp_path / "x") == expected
