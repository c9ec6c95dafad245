from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import RECIPE, SERVING, FakeRun, judged_run
from pretend_stages import DRAFTED
from small_checkpoint import checkpoint_files, write_files

from artifacts.deploy.registered import open_version
from artifacts.deploy.serve import find_draft
from artifacts.deployable import Deployable
from artifacts.evidence.verify import check_run
from artifacts.run_outcome import side_lines
from artifacts.run_record import RunReport
from pipeline.environments.settings import Settings
from pipeline.stages.evidence import Evidence
from prepare.errors import EvidenceError, UsageError

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}


def run_with(root: Path, speculative: dict[str, Any]) -> FakeRun:
    return judged_run(
        root / "store", lost={RECIPE: 0}, serving={**SERVING, "speculative": speculative}
    )


def deployable(run: FakeRun) -> Deployable:
    judged = Evidence.of_variant(run.store, run.folder("judge", RECIPE).name)
    return Deployable.of(judged)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return run_with(tmp_path_factory.mktemp("ngram"), NGRAM)


def test_method_and_rule_are_members_of_the_tuple(run: FakeRun, tmp_path: Path) -> None:
    found = deployable(run)
    told = found.members["serving"]["speculative"]
    assert (told["method"], told["rejection_sample_method"]) == ("ngram", "standard")
    plain = deployable(judged_run(tmp_path / "store", lost={RECIPE: 0}))
    assert "speculative" not in plain.members["serving"]
    assert plain.digest != found.digest
    assert [each.member for each in plain.differences(found)] == ["serving, speculative"]
    other = found.model_copy(
        update={
            "serving": deployable(
                run_with(tmp_path / "b", {**NGRAM, "prompt_lookup_max": 3})
            ).serving
        }
    )
    assert [each.member for each in found.differences(other)] == [
        "serving, speculative, prompt_lookup_max"
    ]


def test_what_was_drafted_is_in_the_record_and_computed_again(run: FakeRun) -> None:
    (variant,) = run.report.variants
    told = DRAFTED
    assert variant.spec_decode["code"].model_dump() == told
    assert RunReport.model_validate_json(run.report.model_dump_json()) == run.report
    (check,) = check_run(run.report, run.store)
    assert check.differences == ()
    line = side_lines(run.report)[-1]
    assert "32 % of 400" in line
    assert "2.30 tokens a step" in line
    more = variant.spec_decode["code"].model_copy(update={"accepted_tokens": 400})
    changed = run.report.model_copy(
        update={"variants": [variant.model_copy(update={"spec_decode": {"code": more}})]}
    )
    (check,) = check_run(changed, run.store)
    assert "spec_decode.code.accepted_tokens" in check.differences[0]


def test_it_is_promoted_read_back_and_told(run: FakeRun, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    version = run.registered()
    past = open_version(version, Path(version.source), trust_remote_code=False)
    assert past.deployable.digest == deployable(run).digest
    assert past.profile.speculative is not None
    assert past.profile.speculative.method == "ngram"
    assert "--speculative-config" in (Path(version.source) / "README.md").read_text()
    assert find_draft(past.deployable, None, settings) is None
    with pytest.raises(UsageError) as caught:
        find_draft(past.deployable, Path("somewhere"), settings)
    assert caught.value.where == "--draft-model somewhere"


def test_what_accepts_by_chance_is_never_promoted(tmp_path: Path) -> None:
    run = run_with(tmp_path, {**NGRAM, **SYNTHETIC})
    with pytest.raises(UsageError, match="rejection_sample_method"):
        run.promote()
    with pytest.raises(EvidenceError, match="rejection_sample_method"):
        deployable(run).check_servable("here")


def test_a_draft_is_the_one_that_was_judged(run: FakeRun, tmp_path: Path) -> None:
    wanted = run.checkpoint.digest
    serving = {**SERVING, "speculative": {**NGRAM, "method": "draft_model", "model": wanted}}
    serving["speculative"].pop("prompt_lookup_max")
    judged = Deployable.model_validate({**deployable(run).members, "serving": serving})
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    assert find_draft(judged, run.checkpoint.path, settings) == run.checkpoint.path
    with pytest.raises(UsageError) as caught:
        find_draft(judged, None, settings)
    assert wanted[:12] in caught.value.message
    other = tmp_path / "other"
    write_files(other, checkpoint_files() | {"generation_config.json": b"{}"})
    with pytest.raises(UsageError, match="the draft model of digest"):
        find_draft(judged, other, settings)
