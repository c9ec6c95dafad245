from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_run import judged_run
from finished_stage import stage_record
from pretend_stages import edit
from spoilt_bundle import RECIPE, check_bundle, rename_stage, rewrite_manifest, stage_folder

from pipeline.core.errors import EvidenceError
from pipeline.core.store import RECORD
from pipeline.stages import STAGES, known_of, newest_revision, stage_code, stage_named


@pytest.mark.parametrize("name", STAGES)
def test_is_declared_and_has_its_code(name: str) -> None:
    assert stage_named(name).name == name
    assert newest_revision(name) == stage_named(name).revision >= 1
    assert callable(stage_code(name).run)


@pytest.mark.parametrize("name", ["context", "verify", "__init__", "..judge", ""])
def test_nothing_else_is_a_stage(name: str) -> None:
    with pytest.raises(KeyError):
        stage_named(name)
    with pytest.raises(KeyError):
        stage_code(name)


def test_records_of_other_versions_are_left_out() -> None:
    screen: dict[str, Any] = {"stage": "screen", "parameters": {}}
    records = [
        stage_record(**screen, key="good", result={"nats": 1.5}),
        stage_record(**screen, key="of another shape", result={"loudness": 1.5}),
        stage_record(stage="verify", key="of another name"),
    ]
    assert [kept.record.key for kept in known_of(records)] == ["good"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged_run(tmp_path_factory.mktemp("sound") / "store").bundle()


@pytest.mark.parametrize(
    ("stage", "part", "key"),
    [
        ("judge", "parameters", "family"),
        ("judge", "result", "gates"),
        ("evaluate", "result", "n"),
        ("evaluate", "parameters", "rule"),
        ("questions", "result", "guessing"),
        ("screen", "result", "nats"),
        ("screen", "parameters", "serving"),
        ("quantize", "result", "weights_digest"),
        ("check_weights", "result", "weights_digest"),
    ],
)
def test_a_bundle_with_a_record_of_another_shape(
    sound: Path, tmp_path: Path, stage: str, part: str, key: str
) -> None:
    """Every digest right, and one value of a kind that there is not."""
    folder = Path(shutil.copytree(sound, tmp_path / "deployed"))
    place = stage_folder(folder, stage, "code" if stage == "questions" else RECIPE)
    edit(place / RECORD, lambda record: record[part].update({key: [{}]}))
    rename_stage(folder, place)
    rewrite_manifest(folder)
    try:
        check = check_bundle(folder)
    except EvidenceError:
        return
    assert not check.is_sound
