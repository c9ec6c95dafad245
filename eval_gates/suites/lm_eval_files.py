"""Files and data of an lm-eval task in a user's YAML file, which identify it.

Unlike lm-eval's, paths are relative to the YAML file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prepare.errors import EvaluationDataError, raise_as
from prepare.untrusted import read_regular
from prepare.user_path import user_path

# Formats of the `datasets` library: such a dataset is local files.
LOCAL_FORMATS = frozenset({"json", "csv", "text", "parquet", "arrow", "pandas", "xml"})
MAX_FILES = 50  # YAML files and modules of one task
_GUIDE = "see lm-eval's task guide"


class TaskYaml(NamedTuple):
    """Files and data of a task."""

    path: Path  # the YAML file, absolute
    # Content with its includes; functions are their names.
    config: dict[str, Any]
    code: list[Path]  # the YAML files and the Python modules next to them that they name, absolute
    data: list[Path]  # the local data files, absolute; empty where the data is on the Hub
    dataset: str | None  # id of the Hub's dataset, or None where the data is local


def is_task_file(task: str) -> bool:
    """Return whether a policy's `task` is a YAML file."""
    return task.endswith((".yaml", ".yml"))


def read_task_file(path: Path) -> TaskYaml:
    """Read the file and its includes, without running code."""
    path = user_path(path, "key task").resolve()
    code: list[Path] = []
    config = _read_yaml(path, code)
    if "group" in config or not isinstance(config.get("task"), str):
        hint = "name a YAML file with 'task: <name>', not a group's"
        raise EvaluationDataError(
            "this file does not describe one task", where=str(path), hint=hint
        )
    with raise_as(
        EvaluationDataError,
        "the task's data files cannot be looked up",
        f"{path}, keys dataset_path and dataset_kwargs",
        _GUIDE,
        errors=(OSError, ValueError, TypeError, AttributeError, NotImplementedError),
    ):
        settings = localize(config, path.parent)
        dataset = str(settings.get("dataset_path"))
        data = list[Path]()
        if dataset in LOCAL_FORMATS:
            names = _names(settings["dataset_kwargs"]["data_files"])
            data = [Path(name) for name in names if "://" not in name]
        elif Path(dataset).is_absolute():
            data = sorted(file for file in Path(dataset).rglob("*") if file.is_file())
    is_local = bool(data) or callable(config.get("custom_dataset"))
    return TaskYaml(path, config, code, data, None if is_local else settings.get("dataset_path"))


def localize(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration with absolute paths, globs expanded."""
    dataset = config.get("dataset_path")
    options = dict(config.get("dataset_kwargs") or {})
    if dataset in LOCAL_FORMATS:
        if (files := options.get("data_files")) is None:
            raise EvaluationDataError(
                f"the task's data is '{dataset}', but no file is named",
                where=str(folder),
                hint="add dataset_kwargs: {data_files: {SPLIT: FILE}} to the task, with each split "
                "that it names",
            )
        splits = files.items() if isinstance(files, dict) else [("", files)]
        files_of = {split: _absolute(_names(names), folder) for split, names in splits}
        options["data_files"] = files_of if isinstance(files, dict) else files_of[""]
        return {**config, "dataset_kwargs": options}
    if isinstance(dataset, str) and (folder / dataset).is_dir():
        return {**config, "dataset_path": str(folder / dataset)}
    return config


def _names(files: Any) -> list[str]:
    if isinstance(files, dict):
        return [name for names in files.values() for name in _names(names)]
    return [str(name) for name in files] if isinstance(files, list) else [str(files)]


def _absolute(names: Sequence[str], folder: Path) -> list[str]:
    paths: list[str] = []
    for name in names:
        root, pattern = (Path("/"), name.lstrip("/")) if name.startswith("/") else (folder, name)
        whole = [root / pattern] if (root / pattern).is_file() else sorted(root.glob(pattern))
        if "://" not in name and not whole:
            raise EvaluationDataError(
                "a data file of the task does not exist",
                where=str(folder / name),
                hint="paths in dataset_kwargs.data_files are relative to the task's YAML file",
            )
        paths += [name] if "://" in name else map(str, whole)
    return paths


def _read_yaml(path: Path, code: list[Path]) -> dict[str, Any]:
    from prepare.untrusted_yaml import MAX_YAML_BYTES, parse_yaml

    modules: list[Path] = []

    def function_name(name: str) -> str:
        module = path.parent / f"{name.rpartition('.')[0].replace('.', '/')}.py"
        if module.is_file():
            modules.append(module)
        return name

    with raise_as(
        EvaluationDataError,
        "the task's file cannot be read",
        path,
        "give the path of a YAML file that lm-eval can read",
        errors=(OSError, ValueError),
    ):
        config = parse_yaml(read_regular(path, MAX_YAML_BYTES), function=function_name)
    if not isinstance(config, dict):
        raise EvaluationDataError("the file is not a mapping of keys", where=str(path), hint=_GUIDE)
    code.extend(file for file in [path, *modules] if file not in code)
    included = config.pop("include", [])
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        file = user_path(path.parent / str(name), f"{path}, key include").resolve()
        if len(code) > MAX_FILES or file in code:
            what = "files include each other" if file in code else f"over {MAX_FILES} files"
            raise EvaluationDataError(
                f"the task's files cannot be read: {what}",
                where=f"{path} and {file}",
                hint="remove one include",
            )
        merged |= _read_yaml(file, code)
    return merged | config
