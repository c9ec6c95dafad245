"""Dataset of an lm-eval task: read once, and stored with the splits that the task uses."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval_gates.suites.lm_eval_files import LOCAL_FORMATS
from pipeline.core.errors import EvaluationDataError, raise_as


def save_dataset(config: dict[str, Any], revision: str | None, target: Path) -> str | None:
    """Store the splits that the task uses; return the Hub dataset's revision, if any.

    Args:
        config: of the task, with absolute paths of local data.
        revision: of the Hub's dataset; the newest when None.
    """
    from datasets import Dataset, DatasetDict, load_dataset

    options = dict(config.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    path = config.get("dataset_path")
    local = path in LOCAL_FORMATS or (path is not None and Path(path).is_absolute())
    with TemporaryDirectory(prefix="prepare-dataset-") as cache:
        with raise_as(
            EvaluationDataError,
            "the task's dataset cannot be read",
            f"lm-eval task {config['task']}, dataset {path}",
            "check the task's dataset, and whether the Hub can be reached",
            errors=(OSError, ValueError, RuntimeError),
        ):
            if callable(config.get("custom_dataset")):
                splits = config["custom_dataset"](**(config.get("metadata") or {}), **options)
            else:
                options |= {"cache_dir": cache} if local else {"revision": revision}
                splits = load_dataset(path, config.get("dataset_name"), **options)
        kept = {}
        for name, rows in used_splits(config).items():
            split = splits[name]
            split = split if isinstance(split, Dataset) else Dataset.from_list(list(split))
            kept[name] = split if rows is None else split.select(range(min(rows, len(split))))
        DatasetDict(kept).save_to_disk(str(target))
        checksums = next(iter(kept.values())).info.download_checksums or {}
    found = re.search(r"@([0-9a-f]{40})/", " ".join(map(str, checksums)))
    return found[1] if found else None


def used_splits(config: dict[str, Any]) -> dict[str, int | None]:
    """Return the splits that the task reads, and how many rows are enough (None: all)."""
    asked = config.get("test_split") or config.get("validation_split")
    examples = (
        (config.get("fewshot_config") or {}).get("split")
        or config.get("fewshot_split")
        or config.get("training_split")
        or config.get("validation_split")
    )
    if asked is None:
        raise EvaluationDataError(
            "the task names no split to ask",
            where=f"lm-eval task {config['task']}",
            hint="add test_split or validation_split to it",
        )
    used: dict[str, int | None] = {}
    if examples is not None:
        used[examples] = None if config.get("num_fewshot") else 1  # lm-eval looks at one anyway
    return {**used, asked: None}
