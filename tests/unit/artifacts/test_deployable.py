"""The deployable tuple: its digest and differences; evidence and tags are a stranger's text."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_run import IDENTITIES, SERVING, FakeRun, judged_run
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.deploy.registered import open_version
from artifacts.deployable import Deployable
from artifacts.registry import TUPLE_TAG
from pipeline.stages.evidence import Evidence, place_of
from prepare.digest import digest_json
from prepare.errors import EvidenceError, RegistryError

DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("judged") / "store")


def serving(arguments: Any, environment: Any = None) -> dict[str, str]:
    told = {"engine_arguments": arguments, "environment": environment or {}}
    return {"prepare.serving": json.dumps(told)}


def members(**changes: Any) -> dict[str, Any]:
    return {
        "weights": "a" * 64,
        "engine_version": "0.33.0",
        "environment.quantize": "0" * 64,
        "environment.serve": "1" * 64,
        "environment.evaluate": "2" * 64,
        "serving": SERVING,
        "hardware": {"accelerator": "cpu", "cpu": "a processor", "cores": 2, "cpu_features": []},
        **changes,
    }


def deployable(**changes: Any) -> Deployable:
    return Deployable.model_validate(members(**changes))


def read(run: FakeRun, **changes: Any) -> Deployable:
    judged = Evidence.of_variant(run.store, run.folder("judge", "fp8-dynamic").name)
    result = {k: v for k, v in changes.items() if k == "engine_version"}
    parameters = {k: v for k, v in changes.items() if k != "engine_version"}
    heard = judged.sanity.record
    record = heard.model_copy(
        update={
            "parameters": {**heard.parameters, **parameters},
            "result": {**heard.result, **result},
        }
    )
    heard_so = Evidence.of_verdict(run.store, judged.judge.record.key)
    heard_so.stages[place_of(record)] = record
    found = Deployable.of(heard_so)
    found.check_servable("here")
    return found


class TestTags:
    def test_as_promoted(self, run: FakeRun) -> None:
        version = run.registered()
        past = open_version(version, Path(version.source), trust_remote_code=False)
        assert past.deployable.serving.to_dict() == SERVING
        assert past.deployable.digest == version.tags[TUPLE_TAG]

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
    def test_a_tag_that_somebody_set(self, run: FakeRun, changes: dict[str, str]) -> None:
        version = run.registered(**changes)
        with pytest.raises(RegistryError, match=next(iter(changes))) as caught:
            open_version(version, Path(version.source), trust_remote_code=False)
        assert len(caught.value.message) < 400
        assert caught.value.message.isprintable()

    def test_one_that_is_gone(self, run: FakeRun) -> None:
        version = run.registered()
        tags = {k: v for k, v in version.tags.items() if k != "prepare.serving"}
        gone = replace(version, tags=tags)
        with pytest.raises(RegistryError, match=r"prepare\.serving says nothing"):
            open_version(gone, Path(version.source), trust_remote_code=False)


class TestDifferences:
    def test_every_member_that_differs_is_named(self) -> None:
        serving = {**SERVING, "environment": {"OMP_A": "1"}}
        other = {"accelerator": "cpu", "cpu": "another", "cores": 64, "cpu_features": ["avx2"]}
        here = deployable(
            **{"engine_version": "0.34.0", "environment.serve": "3" * 64, "serving": serving},
            hardware=other,
        )
        assert [str(change) for change in deployable().differences(here)] == [
            "engine version: judged 0.33.0, here 0.34.0",
            f"environment 'serve': judged {'1' * 12}, here {'3' * 12}",
            "serving, environment, OMP_A: judged none, here 1",
            "serving, environment, VLLM_CPU_KVCACHE_SPACE: judged 1, here none",
            "hardware, cores: judged 2, here 64",
            "hardware, cpu: judged a processor, here another",
            "hardware, cpu_features: judged [], here ['avx2']",
        ]

    def test_what_nobody_looked_at_then(self) -> None:
        facts = members()["hardware"]
        then = {name: fact for name, fact in facts.items() if name != "cpu_features"}
        assert deployable(hardware=then).differences(deployable()) == []
        assert len(deployable(hardware=facts).differences(deployable(hardware=then))) == 1


class TestKernels:
    JUDGED: ClassVar = {"attention": "FLASH_ATTN", "linear_kernel": "B, A"}

    def test_each_that_differs_is_named(self) -> None:
        judged = deployable(kernels=self.JUDGED)
        found = judged.kernel_differences({"attention": "FLASHINFER", "fusions": "rms_quant"})
        assert [str(each) for each in found] == [
            "kernels, linear kernel: judged B, A, here none",
            "kernels, attention: judged FLASH_ATTN, here FLASHINFER",
            "kernels, fusions: judged none, here rms_quant",
        ]


class TestEvidence:
    def test_as_judged(self, run: FakeRun) -> None:
        found = read(run)
        assert found.serving.to_dict() == SERVING
        assert found.serve_environment == IDENTITIES["serve"]

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
                ("dtype", [5]),
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
    def test_what_cannot_be_served(self, run: FakeRun, changes: dict[str, Any]) -> None:
        with pytest.raises(EvidenceError, match=r"cannot be served|not supported by this version"):
            read(run, **changes)


TEXTS = st.text(max_size=20) | st.sampled_from(["cpu", "true", "host", "engine_arguments"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(part=st.sampled_from(["serving", "hardware", "engine", "engine_version"]), value=JSON)
def test_evidence_of_a_stranger_raises_nothing_but_our_error(
    run: FakeRun, part: str, value: Any
) -> None:
    with contextlib.suppress(EvidenceError):
        read(run, **{part: value})


NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": TEXTS,
        "cpu": TEXTS,
        "cores": st.integers(1, 1_000_000),
        "cpu_features": st.lists(TEXTS, max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(arguments=st.dictionaries(TEXTS, NUMBERS | TEXTS, max_size=4), facts=FACTS)
def test_the_digest_is_that_of_the_plain_members(
    arguments: dict[str, Any], facts: dict[str, Any]
) -> None:
    """To the byte: 1, 1.0 and true stay what they were."""
    plain = members(
        serving={"engine_arguments": arguments, "environment": {}},
        hardware={**facts, "accelerator": "cuda"},
    )
    assert deployable(**plain).digest == digest_json(plain)
