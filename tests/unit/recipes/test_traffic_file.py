"""Files of requests: read once before anything runs, each fault with line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepare.digest import digest_file
from prepare.errors import UsageError
from prepare.untrusted import MAX_VALUES
from recipes.traffic_file import check_workload, read_traffic
from recipes.workload import Arrivals, RequestsWorkload


def requests(path: Path, text: str, **keys: Any) -> RequestsWorkload:
    path.write_text(text)
    return RequestsWorkload(
        kind="requests", file=str(path), output_tokens=4, arrivals=Arrivals(rate=1.0), **keys
    )


def test_an_empty_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    empty = requests(tmp_path / "a.jsonl", "\n")
    missing = empty.model_copy(update={"file": str(tmp_path / "no.jsonl")})
    for workload in (empty, missing):
        with pytest.raises(UsageError) as caught:
            read_traffic(workload, "mine.yaml")
        assert caught.value.where == f"mine.yaml, key file: {workload.file}"


def test_a_hit_rate_without_a_shared_prefix_is_refused(tmp_path: Path) -> None:
    other, same = ("".join(f'{{"prompt": "{word}"}}\n' for word in words) for words in ("ab", "aa"))
    with pytest.raises(UsageError) as caught:
        check_workload(requests(tmp_path / "a.jsonl", other, hit_rate=0.5), "mine.yaml", None)
    assert caught.value.where == "mine.yaml, key hit_rate"
    check_workload(requests(tmp_path / "a.jsonl", other, hit_rate=0.0), "mine.yaml", None)
    check_workload(requests(tmp_path / "a.jsonl", same, hit_rate=0.5), "mine.yaml", None)


def test_prompts_are_read_from_lines_and_from_conversations(tmp_path: Path) -> None:
    lines = requests(tmp_path / "a.jsonl", '{"prompt": "Hi"}\n\n{"prompt": "Hello"}\n')
    assert len(read_traffic(lines, "w")) == 2
    turns = json.dumps([{"conversations": [{"from": "human", "value": "Hi"}, {"value": "x"}]}])
    assert len(read_traffic(requests(tmp_path / "b.json", turns), "w")) == 1


def test_conversations_may_be_as_many_as_sharegpt_has_and_some_have_no_turn(tmp_path: Path) -> None:
    said = {"from": "human", "value": "well, " * 4_000}
    talk = json.dumps({"conversations": [said] * 3})
    silent = json.dumps({"conversations": [{"from": "human", "value": " "}]})
    text = "[" + ", ".join([talk, '{"conversations": []}', silent] * 100) + "]"
    assert text.count(",") > MAX_VALUES
    assert len(read_traffic(requests(tmp_path / "b.json", text), "w")) == 100


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
    assert len(read_traffic(named, "w")) == 1
    workload.path.write_text('{"prompt": "Hello!"}\n')
    with pytest.raises(UsageError) as caught:
        read_traffic(named, "w")
    assert caught.value.where == f"w, key sha256: {workload.path}"
