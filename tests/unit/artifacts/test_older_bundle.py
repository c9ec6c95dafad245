"""Evidence of before the stage `verify` was called `check_weights`, as that prepare wrote it.

`bundle_of_verify.tar.xz` is the bundle of a run of the demo, with the registry's tags beside it:
paths of the machine replaced, logs and tables left out, manifest and digests made anew for that.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pretend_stages import edit
from spoilt_bundle import rewrite_manifest

from artifacts.evidence.bundle import BUNDLE, VERDICT
from artifacts.evidence.bundle_check import check_bundle, read_verdict
from artifacts.registry.registry import Version
from pipeline.core.errors import EvidenceError
from pipeline.plan.of_speed import find_claims
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
    with pytest.raises(EvidenceError, match="'verify'"):
        check_bundle(older / BUNDLE)


def test_its_load_test_stands_among_the_claims_on_speed(older: Path) -> None:
    awq, fp8 = sorted(read_verdict(older / BUNDLE).variants, key=lambda each: each.recipe)
    (claim,) = fp8.speed
    assert (claim.name, claim.kind, claim.verdict) == ("throughput", "load_test", "pass")
    assert (claim.estimate, claim.lower, claim.threshold) == (0.5505327144583956, None, 0.02)
    assert claim.typical("baseline") == 102.38391065510362
    assert fp8.reason == "all 4 gates passed"
    assert awq.speed[0].typical("candidate", "ttft_ms_p50") == 1313.0330714998308


def test_its_load_test_is_computed_again(older: Path) -> None:
    def faster(record: dict[str, Any]) -> None:
        record["result"]["output_tokens_per_s"] = 900.0

    for file in (older / BUNDLE / "stages" / "benchmark").glob("*/stage.json"):
        if json.loads(file.read_text())["variant"] == "fp8-dynamic":
            edit(file, faster)
    rewrite_manifest(older)
    (check,) = (c for c in check_bundle(older / BUNDLE).variants if c.recipe == "fp8-dynamic")
    found = "; ".join(check.differences)
    assert "its result is not the one that was judged" in found
    assert "speed[0].estimate: kept 0.5505327144583956, computed 8.79" in found


def test_its_smallest_ratio_is_asked_for_again_as_a_claim(older: Path) -> None:
    tags = json.loads((older / "tags.json").read_text())
    past = read_past(Version("smollm2-135m", "1", ("champion",), str(older), tags), older)
    (claim,) = find_claims(past.policy, past.profile)
    assert (claim.gate, claim.rule["minimum"]) == ("ratio.then", 0.02)
    assert claim.workload.longest == 160
    assert claim.workload.arrivals.concurrency == 8
