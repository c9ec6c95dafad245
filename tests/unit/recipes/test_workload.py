"""Workloads: the kinds, their arrivals, and what cannot be asked of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from prepare.errors import UsageError
from recipes import catalog
from recipes.traffic_file import check_workload
from recipes.workload import AnyWorkload, Arrivals, RequestsWorkload, change_arrivals

workloads: TypeAdapter[Any] = TypeAdapter(AnyWorkload)

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 4, "arrivals": {"concurrency": 2}}
SHARED = {
    **{"kind": "shared_prefix", "prefix_tokens": 80, "suffix_tokens": 20, "output_tokens": 4},
    **{"hit_rate": 0.7, "arrivals": {"rate": 2.0}},
}


def written(tmp_path: Path, workload: dict[str, Any]) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "summary": "mine", "workload": workload}))
    return path


def test_a_profiles_own_come_first_and_are_named_where_there_is_none() -> None:
    profile = catalog.load_profile("cpu").model_copy(
        update={"workloads": {"chat": workloads.validate_python(RANDOM)}}
    )
    workload, where = catalog.load_workload("chat", None, profile)
    assert (workload.longest, where) == (12, "profile cpu, key workloads.chat")
    with pytest.raises(UsageError) as caught:
        catalog.load_workload("chatt", None, profile)
    assert "did you mean 'chat'" in caught.value.hint


def test_a_policys_own_come_before_all_and_its_files_lie_beside_it(tmp_path: Path) -> None:
    requests = {"kind": "requests", "file": "t.jsonl", "output_tokens": 4, "arrivals": {"rate": 1}}
    speed = {
        "slo": [{"workload": "mine", "limits": {"ttft_ms_p95": 800.0}}],
        "workloads": {"chat": RANDOM, "mine": requests},
    }
    demo = yaml.safe_load((catalog.RECIPES / "policies" / "demo.yaml").read_text())
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({**demo, "speed": speed}))
    found = catalog.load_policy(str(path)).speed
    mine, where = catalog.load_workload("mine", found)
    assert isinstance(mine, RequestsWorkload)
    assert (mine.file, mine.path) == ("t.jsonl", tmp_path / "t.jsonl")
    assert where == "policy key speed.workloads.mine"
    chat, _ = catalog.load_workload("chat", found, catalog.load_profile("cpu"))
    assert chat.longest == 12


def test_a_file_is_looked_for_beside_the_workload_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello"}\n')
    named = {"kind": "requests", "file": "prompts.jsonl", "output_tokens": 4}
    path = written(tmp_path, {**named, "arrivals": {"rate": 1.0}})
    workload, where = catalog.load_workload(str(path))
    check_workload(workload, where, None)
    assert isinstance(workload, RequestsWorkload)
    assert workload.path == tmp_path / "prompts.jsonl"
    later = change_arrivals(workload, Arrivals(rate=2.0))
    assert isinstance(later, RequestsWorkload)
    assert later.path == workload.path
    path = written(tmp_path, {**named, "file": str(workload.path), "arrivals": {"rate": 1.0}})
    same, _ = catalog.load_workload(str(path))
    assert isinstance(same, RequestsWorkload)
    # What is written down of it says nothing of this machine.
    assert (same.file, same.path) == ("prompts.jsonl", workload.path)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({**RANDOM, "arrivals": {"rate": 0.0}}, "workload.arrivals.rate"),
        ({**RANDOM, "arrivals": {"concurrency": 0}}, "workload.arrivals.concurrency"),
        ({**RANDOM, "arrivals": {}}, "workload.arrivals"),
        ({**RANDOM, "arrivals": {"rate": 1.0, "concurrency": 1}}, "workload.arrivals"),
        ({**RANDOM, "arrivals": "poisson"}, "workload.arrivals"),
        ({**RANDOM, "hit_rate": 0.5}, "workload.hit_rate"),
        ({**RANDOM, "seconds": 0.5}, "workload.seconds"),
        ({**RANDOM, "input_tokens": 0}, "workload.input_tokens"),
        ({**SHARED, "hit_rate": 0.9}, "workload"),
        ({**SHARED, "prefix_tokens": 0}, "workload.prefix_tokens"),
        ({key: SHARED[key] for key in SHARED if key != "hit_rate"}, "workload.hit_rate"),
        ({**RANDOM, "kind": "sharegpt"}, "workload"),
    ],
)
def test_what_is_wrong_is_refused_with_its_file_and_key(
    tmp_path: Path, data: dict[str, Any], key: str
) -> None:
    path = written(tmp_path, data)
    with pytest.raises(UsageError) as caught:
        catalog.load_workload(str(path))
    assert caught.value.where == f"{path}, key {key}"


@pytest.mark.parametrize(("data", "key"), [(RANDOM, "input_tokens"), (SHARED, "prefix_tokens")])
def test_a_workload_longer_than_the_context_is_refused(data: dict[str, Any], key: str) -> None:
    workload = workloads.validate_python(data)
    check_workload(workload, "mine.yaml", workload.longest)
    with pytest.raises(UsageError) as caught:
        check_workload(workload, "mine.yaml", workload.longest - 1)
    assert caught.value.where == f"mine.yaml, key {key}"
