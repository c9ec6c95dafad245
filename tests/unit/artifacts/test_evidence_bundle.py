"""The evidence bundle: what is in it, and that it verifies."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fake_run import FakeRun, judged_run
from hypothesis import given
from hypothesis import strategies as st
from pretend_stages import edit
from spoilt_bundle import RECIPE, check_bundle, found, opened, rewrite_manifest, stage_folder

from artifacts.evidence.bundle import VERDICT
from artifacts.evidence.manifest import MANIFEST
from pipeline.stages.packed import pack, unpack
from prepare.errors import EvidenceError
from prepare.store import RECORD
from recipes.checkpoints.weight_files import ARCHIVE, BUNDLE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("run") / "store")


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
        named = check.verdict
        assert (named.profile, named.policy, named.registered_name) == ("cpu", "demo", "model")
        everything = [path for path in deployed.rglob("*") if path.is_file()]
        assert check.files == len(everything) - 1  # the manifest does not list itself
        assert [(c.recipe, c.kept, c.computed, c.answers) for c in check.variants] == [
            ("awq-w4a16", "pass", "pass", 192),
            (RECIPE, "pass", "pass", 192),
        ]

    def test_alone_it_verifies_without_weights(self, deployed: Path, tmp_path: Path) -> None:
        edit(deployed / BUNDLE / VERDICT, lambda kept: kept.update(signer="us"))
        rewrite_manifest(deployed)
        alone = tmp_path / "elsewhere"
        shutil.move(deployed / BUNDLE, alone)
        check = check_bundle(alone)
        assert check.is_sound
        assert not check.weights_checked

    def test_it_has_the_evidence(self, deployed: Path) -> None:
        names = {path.name for path in (deployed / BUNDLE).rglob("*") if path.is_file()}
        assert names == {MANIFEST, VERDICT, "stages.tar.gz"}
        files = {path.name for path in opened(deployed).rglob("*") if path.is_file()}
        assert files == {RECORD, "answers.jsonl", "questions.jsonl"}
        judged = json.loads((stage_folder(deployed, "judge") / RECORD).read_text())
        assert judged["parameters"]["policy"]["name"] == "p"

    def test_without_the_answers_it_is_not_judged_again(self, deployed: Path) -> None:
        whole = check_bundle(deployed)
        (deployed / ARCHIVE).unlink()
        check = check_bundle(deployed)
        assert check.answers_withheld
        assert check.files == whole.files - 1
        assert found(check) == ""
        assert [each.computed for each in check.variants] == [None, None]

    def test_a_variant_without_verdict_counts_and_is_told(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 0}, broken=("gptq",))
        folder = run.bundle()
        assert check_bundle(folder).is_sound
        verdict = json.loads((folder / BUNDLE / VERDICT).read_text())
        assert verdict["attempted"] == [RECIPE, "gptq"]
        assert {v["recipe"]: v["verdict"] for v in verdict["variants"]}["gptq"] == "error"

    def test_weights_changed_since_are_not_bundled(self, tmp_path: Path) -> None:
        run = judged_run(tmp_path / "store", lost={RECIPE: 0})
        weights = run.folder("quantize", RECIPE) / "output" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
        with pytest.raises(EvidenceError) as caught:
            run.bundle()
        assert str(weights.parent).endswith(caught.value.where)
        assert not list((run.root / "versions").iterdir())


class TestOverride:
    @pytest.fixture
    def failed(self, tmp_path: Path) -> FakeRun:
        return judged_run(tmp_path / "store", lost={RECIPE: 40})

    def test_it_is_in_the_verdict(self, failed: FakeRun) -> None:
        check = check_bundle(failed.bundle(override="the team agreed"))
        assert check.is_sound
        assert (check.verdict.variant.verdict, check.verdict.override) == (
            "fail",
            "the team agreed",
        )

    def test_nor_is_it_made(self, failed: FakeRun) -> None:
        with pytest.raises(EvidenceError, match="no reason is given for promoting it"):
            failed.bundle()


class TestPacking:
    @pytest.mark.parametrize(
        "name",
        [
            *("../x", "/x", "stages/a", "stages/../a/b/c", "stages/a/b/.x", "stages/a/b/c/d"),
            *("x", "stages/judge/k/a b", "stages/judge/k/" + "x" * 101),
        ],
    )
    def test_a_name_that_leads_elsewhere(self, tmp_path: Path, name: str) -> None:
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
            tar.addfile(tarfile.TarInfo(name))
        with pytest.raises(EvidenceError):
            unpack(tmp_path / "a.tar.gz", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3"])
    def test_what_is_no_file(self, tmp_path: Path, kind: bytes) -> None:
        member = tarfile.TarInfo("stages/judge/k/stage.json")
        member.type, member.linkname = kind, "/etc/passwd"
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
            tar.addfile(member)
        with pytest.raises(EvidenceError):
            unpack(tmp_path / "a.tar.gz", tmp_path / "out")

    def test_a_name_twice(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
            for _ in range(2):
                tar.addfile(tarfile.TarInfo("stages/judge/k/stage.json"))
        with pytest.raises(EvidenceError, match="twice"):
            unpack(tmp_path / "a.tar.gz", tmp_path / "out")

    @given(st.binary(max_size=200))
    def test_equal_content_equal_bytes(self, content: bytes) -> None:
        with TemporaryDirectory() as folder:
            file, name = Path(folder) / "file", "stages/judge/k/file"
            file.write_bytes(content)
            pack(Path(folder) / "a", {name: file})
            os.utime(file, (1, 1))
            pack(Path(folder) / "b", {name: file})
            assert (Path(folder) / "a").read_bytes() == (Path(folder) / "b").read_bytes()
            assert unpack(Path(folder) / "a", Path(folder)) == {name}
            assert (Path(folder) / name).read_bytes() == content
