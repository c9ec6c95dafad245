"""`prepare verify` of folders, signed and unsigned, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, judged_run
from key_pair import key_pair
from typer.testing import CliRunner

from artifacts.evidence.bundle import BundleVerdict
from artifacts.evidence.differences import VariantCheck
from artifacts.evidence.signing import sign_with_key
from artifacts.evidence.verify import BundleCheck
from artifacts.run_record import VariantReport
from pipeline.cli.main import app
from pipeline.cli.verify import print_folder
from prepare.errors import EvidenceError


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("run") / "store")


@pytest.fixture
def stored(run: FakeRun) -> Path:
    return run.bundle()


@pytest.fixture
def deployed(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "deployed"))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_pair(tmp_path)


class TestVerify:
    def test_no_value_of_a_bundle_is_a_line_of_its_own(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        forged = "x\nsignature: holds\r\u2028./folder: all as listed"
        problems = (forged, *(f"{n}{forged}" for n in range(10_000)))
        variant = VariantCheck(forged, forged, forged, 1, problems)
        report = VariantReport.model_construct(recipe=forged, verdict="fail")
        verdict = BundleVerdict.model_construct(
            run=forged, recipe=forged, override=forged, variants=(report,)
        )
        check = BundleCheck(verdict, 3, True, problems, (variant,))
        print_folder(Path("deploy"), check, "none")
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.strip().startswith("signature")] == [
            "signature: none, so this shows that everything is consistent, not who made it"
        ]
        assert not [line for line in lines if line.startswith("./folder")]
        assert len(lines) < 200

    def test_a_changed_byte_as_json(self, deployed: Path) -> None:
        (deployed / "config.json").write_text("{}")
        result = call("verify", deployed, "--json")
        data = json.loads(result.stdout)
        assert result.exit_code == 1
        assert not data["same"]
        changed, not_judged = data["problems"]
        assert "config.json: the file was changed" in changed
        assert "are not those that were judged" in not_judged

    def test_a_key_of_the_environment_is_no_fault_of_a_run(
        self, run: FakeRun, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PREPARE_PUBLIC_KEY", str(keys[1]))
        assert call("verify", run.report.run, "--store", run.root).exit_code == 0


class TestSigned:
    def test_verified_by_its_key(self, deployed: Path, keys: tuple[Path, Path]) -> None:
        private, public = keys
        sign_with_key(deployed, private)
        result = call("verify", deployed, "--public-key", public)
        assert result.exit_code == 0
        assert "signature: holds" in result.stdout
        assert "not checked" in call("verify", deployed).stdout

    def test_not_signed(self, deployed: Path, keys: tuple[Path, Path]) -> None:
        with pytest.raises(EvidenceError) as caught:
            call("verify", deployed, "--public-key", keys[1])
        assert caught.value.where == str(deployed / "model.sig")

    def test_a_forger_cannot_sign(self, deployed: Path, keys: tuple[Path, Path]) -> None:
        """All rewritten to match verifies; the signature is what is missing then."""
        private, public = keys
        sign_with_key(deployed, private)
        manifest = deployed / "prepare-evidence" / "manifest.json"
        data = json.loads(manifest.read_text())
        (deployed / "README.md").write_text("{}")
        for each in data["model_files"]:
            if each["path"] == "README.md":
                digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
                each.update(size=2, sha256=digest)
        manifest.write_text(json.dumps(data))
        assert call("verify", deployed).exit_code == 0
        with pytest.raises(EvidenceError, match=r"README\.md|manifest\.json"):
            call("verify", deployed, "--public-key", public)
