"""Hub datasets by the library `datasets`: never other rows because the Hub is late."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from prepare.errors import EvaluationDataError


def load_from_hub(path: str, name: str | None = None, **options: Any) -> Any:
    """Return `datasets.load_dataset`, without its newest cached rows if the Hub is late.

    With HF_HUB_OFFLINE these are the user's choice.
    """
    from datasets import config, load, load_dataset

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConnectionError("the Hub does not answer")

    if not config.HF_HUB_OFFLINE:
        # The library has no option for it.
        load.CachedDatasetModuleFactory = refuse
    rows = load_dataset(path, name, **options)
    if isinstance(options.get("split"), str):
        check_commit(rows, path, options.get("revision"))
    return rows


def commit_of(dataset: Any) -> str | None:
    """Return the commit that the rows of the library `datasets` are from; None if unrecorded."""
    checksums = dataset.info.download_checksums or {}
    match = re.search(r"@([0-9a-f]{40})/", " ".join(map(str, checksums)))
    return match[1] if match else None


def check_commit(dataset: Any, name: str, wanted: str | None) -> None:
    """Raise EvaluationDataError for rows of another commit, which a cache may have."""
    commit = commit_of(dataset)
    is_commit = wanted is not None and re.fullmatch(r"[0-9a-f]{40}", wanted)
    if is_commit and commit is not None and commit != wanted:
        raise EvaluationDataError(
            f"the rows are those of commit {commit}, not of {wanted}",
            where=f"dataset {name}",
            hint="the Hub did not answer, and its cache has another commit: try again in a while",
        )
