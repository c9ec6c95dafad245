"""Caches of code that engines compile, never in a folder that others can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.private_files import private_umask

VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",  # includes torch.compile's cache
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}

_IDENTITY_CHARACTERS = 16
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH


def caches_folder(home: Path) -> Path:
    """Return the folder of all environments' caches."""
    return home / "caches"


def open_caches(home: Path, identity: str, progress: Progress) -> dict[str, str]:
    """Return variables for a server's compile cache; {} if it is not private."""
    folder = caches_folder(home) / identity[:_IDENTITY_CHARACTERS]
    try:
        is_ours = (_is_volume(folder.parent) or _make_private(folder.parent)) and _make_private(
            folder
        )
        if is_ours:
            os.utime(folder)  # for `prepare gc`
    except OSError:
        is_ours = False
    if is_ours:
        return {name: str(folder / place) for name, place in VARIABLES.items()}
    progress.note(f"compiled code is not cached in {folder}: the folder is not private")
    return {}


def _is_volume(folder: Path) -> bool:
    """Return whether root mounted a volume for a group (Kubernetes' `fsGroup`)."""
    if not folder.is_mount():
        return False
    facts = folder.stat()
    return facts.st_uid == 0 and not facts.st_mode & stat.S_IWOTH


def _make_private(folder: Path) -> bool:
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
    facts = folder.lstat()  # does not follow links
    return (
        stat.S_ISDIR(facts.st_mode)
        and facts.st_uid == os.geteuid()
        and not facts.st_mode & _FOR_OTHERS_TO_WRITE
    )
