"""Downloads of checkpoints from the Hugging Face Hub, or a mirror with the same interface.

Endpoint, token, cache folder and offline mode are settings of huggingface_hub (HF_ENDPOINT,
HF_TOKEN or `hf auth login`, HF_HOME, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.checkpoint import gguf
from pipeline.checkpoint.folder import SMALL_FILES
from pipeline.checkpoint.weight_files import IGNORED_WEIGHTS, INDEX, read_index
from pipeline.core.errors import CheckpointError, HubError
from pipeline.core.events import Progress

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

# The card has the license. It does not change answers, so it is not part of the digest.
CARD = "README.md"
FETCHED_FIRST = (*SMALL_FILES, CARD)
ANSWER_TIMEOUT_S = 15.0
DATASET_TIMEOUT_S = 3.0
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def download(repo_id: str, revision: str | None, *, progress: Progress) -> tuple[Path, str]:
    """Download a checkpoint's safetensors, config, tokenizer files and card into the Hub's cache.

    Existing files are reused, and interrupted transfers resume. If the Hub is unreachable, the
    cache is used. Pickled weights and files in subfolders are never downloaded.

    Args:
        revision: branch, tag or commit; None for the default branch.

    Returns:
        the snapshot folder, and the commit of `revision`.

    Raises:
        HubError: repository or revision do not exist or are not accessible, the Hub is unreachable
            and
        the cache incomplete, the disk is full, or there are no safetensors.
    """
    with explain_hub_errors(repo_id, revision):
        info = query_hub(repo_id, revision)
        sizes = file_sizes(info) if info is not None else {}
        if info is not None:
            check_has_safetensors(repo_id, sizes)
        # The user's revision name, so that the library caches its commit.
        snapshot = _fetch(repo_id, revision, list(FETCHED_FIRST), offline=info is None)
        commit = snapshot.name
        wanted = _weight_patterns(snapshot)
        missing = _missing_bytes(snapshot, sizes, wanted)
        _check_disk(snapshot, missing)
        bar = _bar_class(progress, f"download {repo_id}", missing) if missing else None
        _fetch(repo_id, commit, wanted, offline=info is None, bar=bar)
        if missing:
            progress.advance(f"download {repo_id}", missing, missing, "bytes")
    if not any(snapshot.glob("*.safetensors")):
        raise _no_safetensors(repo_id, [path.name for path in snapshot.iterdir()])
    return snapshot, commit


def bytes_to_download(repo_id: str, revision: str | None) -> int:
    """Return the bytes that :func:`download` would fetch.

    Returns:
        0 if the cache is complete, or if the Hub is unreachable and the cache would be used.
    """
    from huggingface_hub import try_to_load_from_cache

    with explain_hub_errors(repo_id, revision):
        info = query_hub(repo_id, revision)
        if info is None:
            return 0
        sizes = file_sizes(info)
        check_has_safetensors(repo_id, sizes)
        return sum(
            size
            for name, size in sizes.items()
            if any(fnmatchcase(name, pattern) for pattern in (*FETCHED_FIRST, "*.safetensors"))
            and not fnmatchcase(name, IGNORED_WEIGHTS)
            and not isinstance(try_to_load_from_cache(repo_id, name, revision=info.sha), str)
        )


def resolve_dataset_revision(dataset_id: str) -> str | None:
    """Return the current commit of a Hub dataset's default branch.

    Returns:
        None if the Hub does not respond within about three seconds, or does not show the dataset.
    """
    answer: list[str | None] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            answer.append(HfApi().dataset_info(dataset_id, timeout=DATASET_TIMEOUT_S).sha)
        except (transport_error(), OSError, ValueError):
            answer.append(None)

    # In a thread, because name resolution ignores timeouts.
    thread = threading.Thread(target=ask, daemon=True, name="resolve dataset")
    thread.start()
    thread.join(DATASET_TIMEOUT_S)
    return answer[0] if answer else None


def query_hub(repo_id: str, revision: str | None) -> ModelInfo | None:
    """Return the Hub's facts about a repository; None if the Hub is unreachable."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return HfApi().model_info(
            repo_id, revision=revision, timeout=ANSWER_TIMEOUT_S, files_metadata=True
        )
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        return None  # the Hub is down: use the cache
    except (OfflineModeIsEnabled, transport_error()):
        return None


def transport_error() -> type[Exception]:
    """Return the base class of HTTP errors: httpx in huggingface_hub 1, httpx2 in 2."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__bases__[0]
    return base


def file_sizes(info: ModelInfo) -> dict[str, int]:
    """Return the sizes of top-level files in bytes, by name."""
    return {
        file.rfilename: file.size or 0 for file in info.siblings or [] if "/" not in file.rfilename
    }


def _weight_patterns(snapshot: Path) -> list[str]:
    index = snapshot / INDEX
    return sorted(set(read_index(index).values())) if index.exists() else ["*.safetensors"]


def _missing_bytes(snapshot: Path, sizes: dict[str, int], patterns: list[str]) -> int:
    return sum(
        size
        for name, size in sizes.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not fnmatchcase(name, IGNORED_WEIGHTS)
        and not (snapshot / name).exists()
    )


def _check_disk(snapshot: Path, missing: int) -> None:
    free = shutil.disk_usage(snapshot).free
    if free < missing:
        raise HubError(
            f"the weights need {missing / 1e9:.1f} GB more, and the disk has {free / 1e9:.1f} GB",
            where=str(snapshot),
            hint="free some space, or set HF_HOME to a folder on a larger disk",
        )


def _fetch(
    repo_id: str,
    revision: str | None,
    patterns: list[str],
    *,
    offline: bool,
    bar: type[Any] | None = None,
) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repo_id,
        revision=revision,
        allow_patterns=patterns,
        ignore_patterns=["*/*", IGNORED_WEIGHTS],
        local_files_only=offline,
        tqdm_class=bar or _bar_class(None, "", 0),
    )
    return Path(folder)


def _bar_class(progress: Progress | None, task: str, total: int) -> type[Any]:
    """Return a progress bar class that draws nothing and reports bytes to `progress`.

    The library creates several bars: one counts files, one or two count bytes (received, written),
    which differ with deduplication. The largest count is reported; None reports nothing.
    """
    from tqdm.std import tqdm

    furthest = 0
    lock = threading.Lock()

    class ReportingBar(tqdm):  # type: ignore[misc]
        """Progress bar without drawing and monitor thread."""

        monitor_interval = 0

        def display(self, *args: Any, **kwargs: Any) -> None:
            """Draw nothing."""

        def close(self) -> None:
            """Nothing was drawn, so there is nothing to clear."""
            self.disable = True

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            drawn: bool | None = super().update(n)
            if progress is not None and self.unit == "B":
                with lock:
                    if self.n > furthest:
                        furthest = int(self.n)
                        progress.advance(task, min(furthest, total), total, "bytes")
            return drawn

    return ReportingBar


def check_has_safetensors(repo_id: str, sizes: dict[str, int]) -> None:
    """Raise HubError for a repository without top-level safetensors."""
    if not any(fnmatchcase(name, "*.safetensors") for name in sizes):
        raise _no_safetensors(repo_id, list(sizes))


def _no_safetensors(repo_id: str, names: list[str]) -> CheckpointError:
    suffixes = {Path(name).suffix for name in names}
    if suffixes & {".bin", ".pt", ".pth"}:
        hint = "it has pickled weights, which are not loaded; look for a revision with safetensors"
    elif files := sorted(name for name in names if name.endswith(gguf.SUFFIX)):
        return gguf.gguf_error(repo_id, files[0], repo_id, HubError)
    else:
        hint = "name the repository of a language model's weights"
    return HubError("the repository has no safetensors weights", where=repo_id, hint=hint)


@contextmanager
def explain_hub_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Convert the library's errors to HubError with a hint."""
    from huggingface_hub import errors

    where = f"{repo_id}@{revision}" if revision else repo_id
    endpoint = os.environ.get("HF_ENDPOINT", "the Hub")
    no_folder = f" (and no folder of the name '{repo_id}' exists here)"
    try:
        yield
    except errors.GatedRepoError as error:
        hint = f"accept the model's terms on its page at {endpoint}, then {LOG_IN}"
        raise HubError("the repository is gated", where=where, hint=hint) from error
    except errors.RevisionNotFoundError as error:
        hint = "use an existing branch, tag or commit, or remove the @ part"
        raise HubError(
            f"the revision '{revision}' does not exist", where=where, hint=hint
        ) from error
    except errors.RepositoryNotFoundError as error:
        hint = f"check the name for a typo; if the repository is private, {LOG_IN}"
        what = f"the repository does not exist on {endpoint}, or is not visible{no_folder}"
        raise HubError(what, where=where, hint=hint) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable_error(where, endpoint, no_folder) from error
    except errors.HFValidationError as error:
        hint = "write a Hub id as org/name, a folder as ./path/to/model"
        raise HubError(f"this is not a Hub id{no_folder}", where=where, hint=hint) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = LOG_IN if status in (401, 403) else "try again in a while"
        raise HubError(
            f"{endpoint} answered with status {status}", where=where, hint=hint
        ) from error
    except transport_error() as error:
        hint = "check the network and run the command again; complete files stay in the cache"
        raise HubError(f"the download was interrupted: {error}", where=where, hint=hint) from error
    except OSError as error:
        raise _disk_error(error, where) from error
    except ValueError as error:
        hint = "check HF_ENDPOINT, and whether a proxy is in between"
        raise HubError(f"{endpoint} does not behave like a Hub", where=where, hint=hint) from error


def _unreachable_error(where: str, endpoint: str, no_folder: str) -> HubError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return HubError(
            f"HF_HUB_OFFLINE is set, and the Hub's cache is incomplete{no_folder}",
            where=where,
            hint="unset HF_HUB_OFFLINE once to download it, or use a local folder",
        )
    return HubError(
        f"{endpoint} is unreachable, and its local cache is incomplete{no_folder}",
        where=where,
        hint="check the network (HF_ENDPOINT selects a mirror), or use a local folder",
    )


def _disk_error(error: OSError, where: str) -> HubError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            "the disk is full",
            where=str(error.filename or where),
            hint="free some space, or set HF_HOME to a folder on a larger disk; "
            "complete files are kept",
        )
    return HubError(
        f"the download failed: {error}",
        where=where,
        hint="run the command again; complete files are kept",
    )
