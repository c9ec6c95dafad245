"""A task's YAML file: what it is made of and where its data is, without lm-eval."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval_gates.suites.lm_eval_files import read_task_file
from prepare.errors import EvaluationDataError

TASK = """
task: mine
include: [shared/base.yaml]
doc_to_text: !function functions.text
process_results: !function missing.results
num_fewshot: 2
"""
BASE = """
dataset_path: json
dataset_kwargs: {data_files: {test: data/test.jsonl, train: ["data/a*.jsonl"]}}
num_fewshot: 0
process_docs: !function more.docs
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "mine.yaml": TASK,
        "shared/base.yaml": BASE,
        "functions.py": "raise ImportError('it must not be imported')",
        "shared/more.py": "",
        "other.py": "",
        "data/test.jsonl": "{}\n",
        "data/a2.jsonl": "{}\n",
        "data/a1.jsonl": "{}\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path.resolve()


def test_what_a_task_is_made_of(folder: Path) -> None:
    found = read_task_file(folder / "mine.yaml")
    assert found.path == folder / "mine.yaml"
    names = ["mine.yaml", "functions.py", "shared/base.yaml", "shared/more.py"]
    assert found.code == [folder / name for name in names]
    assert found.data == [folder / f"data/{name}.jsonl" for name in ("test", "a1", "a2")]
    assert found.dataset is None


def test_data_on_the_hub(folder: Path) -> None:
    (folder / "hub.yaml").write_text("task: hub\ndataset_path: owner/dataset\n")
    found = read_task_file(folder / "hub.yaml")
    assert (found.data, found.dataset) == ([], "owner/dataset")


def test_data_in_a_folder(folder: Path) -> None:
    (folder / "local.yaml").write_text("task: local\ndataset_path: data\n")
    found = read_task_file(folder / "local.yaml")
    assert found.dataset is None
    assert {path.name for path in found.data} == {"test.jsonl", "a1.jsonl", "a2.jsonl"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group: many\ntask: [a, b]\n", "does not describe one task"),
        ("task: [a, b]\n", "does not describe one task"),
        ("- task\n", "not a mapping"),
        ("task: {\n", "cannot be read"),
        ("task: a\ninclude: nowhere.yaml\n", "cannot be read"),
        ("task: a\ninclude: bad.yaml\n", "include each other"),
        ("task: a\ndataset_path: json\n", "no file is named"),
        (
            "task: a\ndataset_path: csv\ndataset_kwargs: {data_files: {test: x.csv}}\n",
            "does not exist",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(folder: Path, text: str, message: str) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(EvaluationDataError, match=message) as caught:
        read_task_file(folder / "bad.yaml")
    assert str(folder) in caught.value.where
    assert caught.value.hint
