"""Evidence of before the stage `verify` was called `check_weights`, as that prepare wrote it.

`bundle_of_verify.tar.xz` is the bundle of a run of the demo, with the registry's tags beside it:
paths of the machine replaced, logs and tables left out, manifest and digests made anew for that.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from pretend_stages import edit
from spoilt_bundle import rewrite_manifest

from artifacts.evidence.bundle import BUNDLE, VERDICT
from artifacts.evidence.bundle_check import check_bundle
from artifacts.registry.registry import Version
from pipeline.core.errors import EvidenceError
from pipeline.release.past_verdict import read_past, refuse_changed_tags


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("bundle_of_verify.tar.xz")) as packed:
        packed.extractall(tmp_path, filter="data")
    assert (tmp_path / BUNDLE / "stages" / "verify").is_dir()
    return tmp_path


def test_it_still_verifies(older: Path) -> None:
    check = check_bundle(older / BUNDLE)
    assert check.is_sound
    assert {each.recipe: each.computed for each in check.variants} == {
        "fp8-dynamic": "pass",
        "awq-w4a16": "fail",
    }


def test_a_version_of_then_can_be_judged_again(older: Path) -> None:
    tags = json.loads((older / "tags.json").read_text())
    version = Version("smollm2-135m", "1", ("champion",), str(older), tags)
    past = read_past(version, older)
    refuse_changed_tags(version, past)
    assert past.recipe.quantization.kind == "preset"
    assert past.profile.accelerator == "cpu"
    assert [each.name for each in past.tried] == ["fp8-dynamic", "awq-w4a16"]


def test_a_revision_that_there_never_was_is_refused(older: Path) -> None:
    edit(older / BUNDLE / VERDICT, lambda verdict: verdict["revisions"].update(verify=[5]))
    rewrite_manifest(older)
    with pytest.raises(EvidenceError, match="'verify' is of a revision"):
        check_bundle(older / BUNDLE)
