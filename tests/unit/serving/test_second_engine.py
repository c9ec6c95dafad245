from __future__ import annotations

import sys
from pathlib import Path

import pytest
from outside import declare

from pipeline.serving.argument_check import engine_version
from prepare.errors import UsageError
from prepare.plugins import ENGINES
from recipes.catalog import load_profile
from recipes.schema import ServingProfile

PROFILE = """\
name: second
summary: another engine
accelerator: cpu
engine: tiny
kv_cache_dtype: auto
engine_arguments: {slots: 3}
environment: {TINY_SPEED: "9"}
"""


@pytest.fixture(autouse=True)
def second_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, ENGINES, "tiny", "tiny_engine:Tiny")


def profile(folder: Path, text: str = PROFILE) -> ServingProfile:
    (folder / "second.yaml").write_text(text)
    return load_profile(str(folder / "second.yaml"))


def test_it_tells_its_version() -> None:
    assert engine_version("tiny", Path(sys.executable)) == "0.7"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("engine", PROFILE.replace("tiny", "nosuch")),
        ("engine_arguments", PROFILE.replace("slots: 3", "listen: everywhere")),
        ("environment", PROFILE.replace("engine: tiny\n", "")),
        ("environment", PROFILE.replace("TINY_SPEED", "VLLM_SPEED")),
        ("environment", PROFILE.replace("TINY_SPEED", "TINY_SECRET")),
        (
            "cpu_overrides",
            PROFILE
            + "cpu_overrides: {f: {if_missing: amx, reason: x, environment: {VLLM_A: '1'}}}\n",
        ),
    ],
    ids=["unknown", "ours", "of the first", "variable", "key", "fallback"],
)
def test_a_profile_is_checked_by_its_engine(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile(tmp_path, text)
    assert f"'{key}" in caught.value.message
