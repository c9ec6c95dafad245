"""Files of requests and traces: read once before anything runs, each fault with line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.digest import digest_file
from pipeline.core.errors import UsageError
from pipeline.core.untrusted.json import MAX_VALUES
from recipes.traffic_file import check_workload, read_traffic
from recipes.workload import Arrivals, RequestsWorkload, TraceWorkload

ROW = {"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1, 2]}


def trace(tmp_path: Path, *rows: Any, **keys: Any) -> TraceWorkload:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TraceWorkload(
        kind="trace", file=str(path), block_tokens=16, arrivals=Arrivals(trace=True), **keys
    )


def requests(path: Path, text: str, **keys: Any) -> RequestsWorkload:
    path.write_text(text)
    return RequestsWorkload(
        kind="requests", file=str(path), output_tokens=4, arrivals=Arrivals(rate=1.0), **keys
    )


def test_a_trace_says_when_how_long_and_what_is_shared(tmp_path: Path) -> None:
    workload = trace(tmp_path, {**ROW, "timestamp": 500}, {**ROW, "timestamp": 1500})
    found = read_traffic(workload, "w")
    assert (found.requests, found.longest, found.times, found.shares) == (2, 24, (0, 1), True)


@pytest.mark.parametrize(
    ("rows", "line", "key"),
    [
        ([ROW, {**ROW, "timestamp": 5}, {**ROW, "timestamp": 4}], 3, "timestamp"),
        ([{**ROW, "timestamp": -1}], 1, "timestamp"),
        ([{**ROW, "input_length": 0}], 1, "input_length"),
        ([{**ROW, "output_length": "4"}], 1, "output_length"),
        ([{**ROW, "output_length": True}], 1, "output_length"),
        ([{**ROW, "input_length": 20.5}], 1, "input_length"),
        ([{**ROW, "output_length": 10**400}], 1, "output_length"),
        ([{**ROW, "timestamp": 1e300}], 1, "timestamp"),
        ([{**ROW, "input_length": 40}], 1, "hash_ids"),
        ([{**ROW, "hash_ids": []}], 1, "hash_ids"),
        ([{**ROW, "hash_ids": ["a", "b"]}], 1, "hash_ids"),
        ([{"timestamp": 0}], 1, "input_length"),
    ],
)
def test_a_wrong_line_is_named_with_its_key(
    tmp_path: Path, rows: list[Any], line: int, key: str
) -> None:
    workload = trace(tmp_path, *rows)
    with pytest.raises(UsageError) as caught:
        read_traffic(workload, "w")
    assert caught.value.where == f"{workload.file}, line {line}, key {key}"


def test_an_empty_trace_a_missing_one_and_one_that_is_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_traffic(trace(tmp_path), "mine.yaml")
    assert caught.value.where.startswith("mine.yaml, key file")
    missing = trace(tmp_path).model_copy(update={"file": str(tmp_path / "no.jsonl")})
    with pytest.raises(UsageError) as caught:
        read_traffic(missing, "mine.yaml")
    assert caught.value.where == f"mine.yaml, key file: {missing.file}"
    (tmp_path / "trace.jsonl").write_text("{")
    with pytest.raises(UsageError) as caught:
        read_traffic(missing.model_copy(update={"file": str(tmp_path / "trace.jsonl")}), "w")
    assert caught.value.where == f"{tmp_path / 'trace.jsonl'}, line 1"
    with pytest.raises(UsageError) as caught:
        read_traffic(trace(tmp_path, [1]), "w")
    assert caught.value.where == f"{tmp_path / 'trace.jsonl'}, line 1"


def test_a_hit_rate_without_a_shared_prefix_is_refused(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "hash_ids": [3, 4]}]
    with pytest.raises(UsageError) as caught:
        check_workload(trace(tmp_path, *rows, hit_rate=0.5), "mine.yaml", None)
    assert caught.value.where == "mine.yaml, key hit_rate"
    check_workload(trace(tmp_path, *rows, hit_rate=0.0), "mine.yaml", None)
    check_workload(trace(tmp_path, ROW, ROW, hit_rate=0.5), "mine.yaml", None)


def test_a_trace_that_is_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check_workload(trace(tmp_path, ROW), "mine.yaml", 23)
    assert caught.value.where == "mine.yaml, key file"


def test_prompts_are_read_from_lines_and_from_conversations(tmp_path: Path) -> None:
    lines = requests(tmp_path / "a.jsonl", '{"prompt": "Hi"}\n\n{"prompt": "Hello"}\n')
    assert read_traffic(lines, "w").requests == 2
    turns = json.dumps([{"conversations": [{"from": "human", "value": "Hi"}, {"value": "x"}]}])
    assert read_traffic(requests(tmp_path / "b.json", turns), "w").requests == 1


def test_conversations_may_be_as_many_as_sharegpt_has_and_some_have_no_turn(tmp_path: Path) -> None:
    said = {"from": "human", "value": "well, " * 4_000}
    talk = json.dumps({"conversations": [said] * 3})
    silent = json.dumps({"conversations": [{"from": "human", "value": " "}]})
    text = "[" + ", ".join([talk, '{"conversations": []}', silent] * 100) + "]"
    assert text.count(",") > MAX_VALUES
    assert read_traffic(requests(tmp_path / "b.json", text), "w").requests == 100


@pytest.mark.parametrize("text", ["{", "{}", '{"prompt": "Hi"}\n{"prompt": "Hi"}\n', "[1", "[] 1"])
def test_a_file_that_is_no_list_of_conversations_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_traffic(requests(tmp_path / "b.json", text), "w")
    assert str(tmp_path / "b.json") in caught.value.where


@pytest.mark.parametrize("text", ['{"prompt": "Hi"}\n{"prompt": NaN}\n', '{"prompt": "Hi"}\n{\n'])
def test_a_damaged_line_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_traffic(requests(tmp_path / "a.jsonl", text), "w")
    assert caught.value.where == f"{tmp_path / 'a.jsonl'}, line 2"


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.jsonl", '{"prompt": "Hi"}\n{"text": "Hi"}\n', "line 2, key prompt"),
        ("a.jsonl", '{"prompt": ""}\n', "line 1, key prompt"),
        ("a.jsonl", "3\n", "line 1, key prompt"),
        ("b.json", '[{"conversations": [{}]}]', "conversation 1, key conversations[0].value"),
        ("b.json", '[{"conversations": []}, {}]', "conversation 2, key conversations[0].value"),
        ("b.json", "[1]", "conversation 1, key conversations[0].value"),
    ],
)
def test_a_prompt_that_is_none_is_named(tmp_path: Path, name: str, text: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_traffic(requests(tmp_path / name, text), "w")
    assert caught.value.where == f"{tmp_path / name}, {place}"


def test_another_content_than_was_named_is_refused(tmp_path: Path) -> None:
    workload = requests(tmp_path / "p.jsonl", '{"prompt": "Hello"}\n')
    named = workload.model_copy(update={"sha256": digest_file(workload.path)})
    assert read_traffic(named, "w").requests == 1
    workload.path.write_text('{"prompt": "Hello!"}\n')
    with pytest.raises(UsageError) as caught:
        read_traffic(named, "w")
    assert caught.value.where == f"w, key sha256: {workload.path}"
