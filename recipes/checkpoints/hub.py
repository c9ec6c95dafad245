"""Downloads from the Hugging Face Hub, configured as huggingface_hub."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.filesize import decimal

from prepare.errors import HubError, means_full_disk
from prepare.events import Progress
from recipes.checkpoints.folder import NAMED_TEMPLATES, SMALL_FILES, matches
from recipes.checkpoints.weight_files import (
    INDEX,
    are_weights,
    hint_on_weights,
    read_index,
)

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

# The card has the license, but does not change answers, so it is not part of the digest.
FETCHED_FIRST = (*SMALL_FILES, "README.md")
ANSWER_TIMEOUT_S = 10.0
TRIES = 3
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
PAUSE_S = 0.5
# A request that does not leave this machine, or finds nothing where it should arrive.
UNREACHABLE = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
COMMIT = re.compile(r"[0-9a-f]{40}")
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# What its library raises for answers of another form, such as a web page.
NOT_A_HUB = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def download(repo_id: str, revision: str | None, *, progress: Progress) -> tuple[Path, str]:
    """Download safetensors, config, tokenizer files and card; return snapshot and commit.

    Transfers resume. Where there is no Hub, the cache is used.

    HubError: missing or not accessible, the disk is full, the cache is incomplete, or there are no
    safetensors.
    """
    with explain_hub_errors(repo_id, revision):
        info = query_hub(repo_id, revision)
        sizes = file_sizes(info) if info is not None else {}
        if info is not None:
            check_has_safetensors(repo_id, sizes)
        # The user's revision name, so that the library caches its commit.
        first = [name for name in sizes if matches(name, FETCHED_FIRST)]
        snapshot = _fetch(repo_id, revision, first, info is None, _bar_class())
        index = snapshot / INDEX
        in_index = set(read_index(index).values()) if index.exists() else set(sizes)
        weights = [name for name in sizes if name in in_index and are_weights(name)]
        missing = sum(sizes[name] for name in weights if not (snapshot / name).exists())
        free = shutil.disk_usage(snapshot).free
        if free < missing:
            raise HubError(
                f"the weights need {decimal(missing)} more, the disk has {decimal(free)}",
                where=str(snapshot),
                hint="free some space, or set HF_HOME to a folder on a larger disk",
            )

        def report(done: int) -> None:
            if missing:
                progress.advance(f"download {repo_id}", min(done, missing), missing, "bytes")

        _fetch(repo_id, snapshot.name, weights, info is None, _bar_class(report))
        report(missing)
    check_has_safetensors(repo_id, [path.name for path in snapshot.iterdir()])
    return snapshot, snapshot.name


def bytes_to_download(repo_id: str, revision: str | None) -> int:
    """Return the bytes that :func:`download` would fetch."""
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
            if (matches(name, FETCHED_FIRST) or are_weights(name))
            and not isinstance(try_to_load_from_cache(repo_id, name, revision=info.sha), str)
        )


def resolve_dataset_revision(dataset_id: str) -> str | None:
    """Return the newest commit of a dataset's default branch; None where there is no Hub.

    HubError: the Hub is late or refuses.
    """
    from huggingface_hub import HfApi

    def ask() -> str | None:
        return HfApi().dataset_info(dataset_id, timeout=ANSWER_TIMEOUT_S).sha

    with explain_hub_errors(dataset_id, None):
        return ask_hub(dataset_id, ask)


def query_hub(repo_id: str, revision: str | None) -> ModelInfo | None:
    """Return the Hub's facts; None where there is no Hub, or the cache cannot differ.

    HubError: the Hub is late.
    """
    from huggingface_hub import HfApi

    def ask() -> ModelInfo:
        return HfApi().model_info(
            repo_id, revision=revision, timeout=ANSWER_TIMEOUT_S, files_metadata=True
        )

    try:
        return ask_hub(repo_id, ask)
    except LateHubError:
        if revision is not None and COMMIT.fullmatch(revision):
            return None
        raise


Answer = TypeVar("Answer")


class LateHubError(HubError):
    """The Hub is there, and gave no answer."""


def ask_hub(repo_id: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the Hub's answer; None where there is no Hub.

    There is none if HF_HUB_OFFLINE is set, or if the public Hub's address is unknown or unreachable
    at each try. Errors of the library: it refuses. LateHubError: any other failure, so that the
    network's state never chooses what is used in the Hub's place.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    failures: list[Exception] = []
    while len(failures) < TRIES:
        if failures:
            time.sleep(PAUSE_S)
        try:
            return _within(ANSWER_TIMEOUT_S, ask)
        except OfflineModeIsEnabled:
            return None
        except HfHubHTTPError as error:
            if error.response.status_code < 500 and error.response.status_code != 429:
                raise
            failures.append(error)
        except (transport_error(), OSError) as error:
            failures.append(error)
    if not _is_hub_named() and all(map(_is_unreachable, failures)):
        return None
    reason = failures[-1]
    said = f"does not answer: {reason}"
    if isinstance(reason, HfHubHTTPError):
        said = f"answered with status {reason.response.status_code}"
    raise LateHubError(
        f"{os.environ.get('HF_ENDPOINT', 'the Hub')} {said}",
        where=repo_id,
        hint=f"{_proxy_remark()}try again in a while; HF_HUB_OFFLINE=1 states that this machine "
        "has no Hub",
    ) from reason


def _proxy_remark() -> str:
    """Return which variable names a proxy, which may be down; its value may have a password."""
    named = next(filter(os.environ.get, PROXY_VARIABLES), None)
    return f"{named} names a proxy, is it up? Else " if named else ""


def _within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Call in a thread, because name resolution ignores timeouts."""
    answers: list[Answer] = []
    failures: list[Exception] = []

    def call() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # raised again below
            failures.append(error)

    thread = threading.Thread(target=call, daemon=True, name="ask the Hub")
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return answers[0]


def _is_hub_named() -> bool:
    """Return whether the user named a Hub, or a proxy to it."""
    names = ("HF_ENDPOINT", "HTTPS_PROXY", "ALL_PROXY")
    return any(os.environ.get(name) or os.environ.get(name.lower()) for name in names)


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether the cause is that no such address is known or answers."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return True
        if isinstance(error, OSError) and error.errno in UNREACHABLE:
            return True
        error = error.__cause__ or error.__context__
    return False


def transport_error() -> type[Exception]:
    """Return the base of HTTP errors: httpx in huggingface_hub 1, httpx2 in 2."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__bases__[0]
    return base


def file_sizes(info: ModelInfo) -> dict[str, int]:
    """Return the bytes of top-level files, and of chat templates in their folder, by name."""
    return {
        file.rfilename: file.size or 0
        for file in info.siblings or []
        if "/" not in file.rfilename or fnmatchcase(file.rfilename, NAMED_TEMPLATES)
    }


def check_has_safetensors(repo_id: str, names: Iterable[str]) -> None:
    """Raise HubError without top-level safetensors."""
    if not any(fnmatchcase(name, "*.safetensors") for name in names):
        raise HubError(
            "the repository has no safetensors weights", where=repo_id, hint=hint_on_weights(names)
        )


def _fetch(
    repo_id: str, revision: str | None, names: Iterable[str], offline: bool, bar: type[Any]
) -> Path:
    """Download these files; return the snapshot. Offline it is what the cache has."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repo_id,
        revision=revision,
        allow_patterns=[escape(name) for name in names],
        local_files_only=offline,
        tqdm_class=bar,
    )
    return Path(folder)


def _bar_class(report: Callable[[int], None] | None = None) -> type[Any]:
    """Return a silent progress bar class that reports bytes.

    The largest count is reported: the library has several.
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
            """Do nothing."""
            self.disable = True

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            drawn: bool | None = super().update(n)
            with lock:
                if report is not None and self.unit == "B" and self.n > furthest:
                    furthest = int(self.n)
                    report(furthest)
            return drawn

    return ReportingBar


@contextmanager
def explain_hub_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Convert the library's errors to HubError."""
    from huggingface_hub import constants, errors

    where = f"{repo_id}@{revision}" if revision else repo_id
    endpoint = os.environ.get("HF_ENDPOINT", "the Hub")
    no_folder = f" (and no folder of the name '{repo_id}' exists here)"
    offline = constants.HF_HUB_OFFLINE
    # The first that fits: the library's error, message, and hint.
    known: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
        (
            errors.GatedRepoError,
            "the repository is gated",
            f"accept the model's terms on its page at {endpoint}, then {LOG_IN}",
        ),
        (
            errors.RevisionNotFoundError,
            f"the revision '{revision}' does not exist",
            "use an existing branch, tag or commit, or remove the @ part",
        ),
        (
            errors.RepositoryNotFoundError,
            f"the repository does not exist on {endpoint}, or is not visible{no_folder}",
            f"check the name for a typo; if the repository is private, {LOG_IN}",
        ),
        (
            errors.LocalEntryNotFoundError,
            ("HF_HUB_OFFLINE is set, and the Hub's" if offline else f"{endpoint} is unreachable, ")
            + f"{'' if offline else 'and its local'} cache is incomplete{no_folder}",
            "unset HF_HUB_OFFLINE once to download it, or use a local folder"
            if offline
            else "check the network (HF_ENDPOINT selects a mirror, SSL_CERT_FILE the certificate "
            "of a proxy that opens TLS), or use a local folder",
        ),
        (
            errors.HFValidationError,
            "this is not a Hub id",
            "write a Hub id as org/name, a folder as ./path/to/model",
        ),
        (
            transport_error(),
            "the download was interrupted: {error}",
            "check the network and run the command again; complete files stay in the cache",
        ),
        (OSError, "the download failed: {error}", "run the command again; complete files are kept"),
        (
            NOT_A_HUB,
            f"{endpoint} does not behave like a Hub",
            "check HF_ENDPOINT, and whether a proxy is in between",
        ),
    )
    try:
        yield
    except Exception as error:
        explained = next((row for row in known if isinstance(error, row[0])), None)
        if explained is None:
            raise
        _, message, hint = explained
        if isinstance(error, OSError) and means_full_disk(error):
            where = str(error.filename or where)
            message = "the disk is full"
            hint = "free some space, or set HF_HOME to a folder on a larger disk"
        elif isinstance(error, errors.HfHubHTTPError) and explained[0] is transport_error():
            status = error.response.status_code
            message = f"{endpoint} answered with status {status}"
            hint = LOG_IN if status in (401, 403) else "try again in a while"
        raise HubError(message.replace("{error}", str(error)), where=where, hint=hint) from error
