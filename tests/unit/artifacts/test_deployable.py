"""What would be served: read from evidence; tags are a stranger's text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_run import SERVING, JudgedRun
from registered_version import registered

from artifacts.deployable import TRUST_OPTION, JudgedTuple, refuse_code
from artifacts.registry.registry import Version
from pipeline.core.errors import CheckpointError, EvidenceError, RegistryError
from pipeline.core.hardware import hardware
from pipeline.release.past_verdict import read_past
from pipeline.release.recheck_record import RECHECK_TAG, rechecks_of
from pipeline.release.tag_check import refuse_changed_tags, tag_differences

DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> JudgedRun:
    return JudgedRun(tmp_path_factory.mktemp("judged") / "store")


def serving(arguments: Any, environment: Any = None) -> dict[str, str]:
    told = {"engine_arguments": arguments, "environment": environment or {}}
    return {"prepare.serving": json.dumps(told)}


def members(**changes: Any) -> dict[str, Any]:
    return {
        "engine_version": "0.33.0",
        "environment.serve": "1" * 64,
        "serving": SERVING,
        "hardware": hardware("cpu"),
        **changes,
    }


def judged(*, trust_remote_code: bool = False, **changes: Any) -> JudgedTuple:
    return JudgedTuple.of_members(members(**changes), "here", trust_remote_code=trust_remote_code)


class TestTags:
    def test_as_promoted(self, run: JudgedRun) -> None:
        version = registered(run)
        past = read_past(version, Path(version.source))
        assert tag_differences(version, past) == []
        assert JudgedTuple.of(version).arguments.to_dict() == SERVING

    @pytest.mark.parametrize(
        "changes",
        [
            serving({"host": "0.0.0.0"}),
            serving({"trust-remote-code": True}),
            serving({"middleware": "evil.Middleware"}),
            serving(SERVING["engine_arguments"], {"LD_PRELOAD": "/tmp/evil.so"}),
            {"prepare.serving": DEEP},
            {"prepare.trust_remote_code": "true"},
            {"prepare.hardware": "[]"},
            {"prepare.engine_version": "\x1b[2J"},
            {"prepare.tuple": "0" * 64},
            {"prepare.verdict": "fail"},
            {"prepare.override": "they say so"},
            {"prepare.environment.evaluate": "3" * 64},
        ],
    )
    def test_a_tag_that_somebody_set(self, run: JudgedRun, changes: dict[str, str]) -> None:
        version = registered(run, **changes)
        past = read_past(registered(run), Path(version.source))
        (line,) = tag_differences(version, past)
        assert next(iter(changes)) in line
        assert len(line) < 400
        assert line.isprintable()
        with pytest.raises(RegistryError, match="are not what was judged"):
            refuse_changed_tags(version, past)

    def test_every_one_is_named(self, run: JudgedRun) -> None:
        changes = {"prepare.engine_version": "0.1", "prepare.hardware": "{}"}
        version = registered(run, **changes)
        past = read_past(registered(run), Path(version.source))
        assert [line.split()[0] for line in tag_differences(version, past)] == list(changes)

    def test_one_that_is_gone(self, run: JudgedRun) -> None:
        version = registered(run)
        tags = {k: v for k, v in version.tags.items() if k != "prepare.serving"}
        gone = Version(version.name, version.version, (), version.source, tags)
        (line,) = tag_differences(gone, read_past(version, Path(version.source)))
        assert "prepare.serving says nothing" in line


class TestMembers:
    def test_of_evidence(self) -> None:
        assert judged().arguments.to_dict() == SERVING
        assert judged().differences("1" * 64) == []

    def test_every_member_that_differs_is_named(self) -> None:
        other = {"accelerator": "cpu", "cpu": "another", "cores": 64}
        found = judged(hardware=other).differences("2" * 64)
        names = [line.partition(":")[0] for line in found]
        assert names[:1] == ["environment 'serve'"]
        assert {"hardware, cores", "hardware, cpu"} <= set(names)

    def test_a_gpu_that_is_not_here(self) -> None:
        gpu = {"accelerator": "cuda", "gpu": "NVIDIA H1000"}
        (line,) = judged(hardware=gpu).differences("1" * 64)
        assert line.startswith("hardware, gpu: judged NVIDIA H1000, here ")

    @pytest.mark.parametrize(
        "changes",
        [
            {"serving": {"engine_arguments": {name: value}, "environment": {}}}
            for name, value in [
                ("host", "0.0.0.0"),
                ("port", 1),
                ("model", "/tmp/other"),
                ("trust-remote-code", True),
                ("x\n--host", "0.0.0.0"),
                ("--host", "0.0.0.0"),
                ("dtype", ["a"]),
                ("dtype", None),
                ("max-model-len", float("inf")),
                ("middleware", "evil.Middleware"),
                ("tool-parser-plugin", "/tmp/evil.py"),
            ]
        ]
        + [
            {"serving": {"engine_arguments": [], "environment": {}}},
            {"serving": {"engine_arguments": {}, "environment": 5}},
            {"serving": {"engine_arguments": {}, "environment": {"A=B": "1"}}},
            {"serving": {"engine_arguments": {}, "environment": {"LD_PRELOAD": "/tmp/evil.so"}}},
            {"serving": {"engine_arguments": {}, "environment": {"PYTHONPATH": "/tmp/evil"}}},
            {"hardware": {}},
            {"hardware": {"accelerator": "abacus"}},
            {"engine_version": None},
        ],
    )
    def test_what_cannot_be_served(self, changes: dict[str, Any]) -> None:
        with pytest.raises(EvidenceError, match="what was judged cannot be served"):
            judged(**changes)

    def test_code_needs_consent(self) -> None:
        refuse_code(judged().trust_remote_code, "here")
        with pytest.raises(CheckpointError, match="Python code") as caught:
            refuse_code(judged(trust_remote_code=True).trust_remote_code, "here")
        assert TRUST_OPTION in caught.value.cure


TEXTS = st.text(max_size=20) | st.sampled_from(["cpu", "true", "host", "engine_arguments"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
READERS: list[Callable[[Version], object]] = [JudgedTuple.of, rechecks_of]
NAMES = [
    "prepare.serving",
    "prepare.hardware",
    "prepare.engine_version",
    "prepare.environment.serve",
    f"{RECHECK_TAG}.0",
]


@settings(max_examples=150, deadline=None)
@given(
    tags=st.dictionaries(
        st.sampled_from(NAMES), st.text(max_size=40) | JSON.map(json.dumps), max_size=5
    ),
    reader=st.sampled_from(READERS),
)
def test_tags_of_a_stranger_raise_nothing_but_our_error(
    tags: dict[str, str], reader: Callable[[Version], object]
) -> None:
    whole = {
        "prepare.engine_version": "0.33.0",
        "prepare.environment.serve": "1",
        "prepare.serving": json.dumps(SERVING),
        "prepare.hardware": json.dumps(hardware("cpu")),
    }
    with contextlib.suppress(RegistryError):
        reader(Version("m", "1", (), "s", whole | tags))


@settings(max_examples=150, deadline=None)
@given(part=st.sampled_from(["serving", "hardware", "engine_version"]), value=JSON)
def test_members_of_a_stranger_raise_nothing_but_our_error(part: str, value: Any) -> None:
    with contextlib.suppress(EvidenceError):
        judged(**{part: value})
