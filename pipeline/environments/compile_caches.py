"""Caches of code that engines compile, never in a folder that others can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from prepare.events import Progress
from prepare.private_files import private_umask, untrusted_reason

VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",  # includes torch.compile's cache
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}

_IDENTITY_CHARACTERS = 16


def caches_folder(home: Path) -> Path:
    """Return the folder of all environments' caches."""
    return home / "caches"


def open_caches(home: Path, identity: str, progress: Progress) -> dict[str, str]:
    """Return variables for a server's compile cache; {} if it is not private."""
    folder = caches_folder(home) / identity[:_IDENTITY_CHARACTERS]
    try:
        for parent in (folder.parent, folder):
            if parent.is_symlink():
                raise NotADirectoryError(f"{parent} is a link")
        with private_umask():
            folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # for `prepare gc`
        reason = untrusted_reason(*([] if _is_volume(folder.parent) else [folder.parent]), folder)
    except OSError as error:
        reason = str(error)
    if not reason:
        return {name: str(folder / place) for name, place in VARIABLES.items()}
    progress.note(f"compiled code is not cached in {folder}: {reason}")
    return {}


def _is_volume(folder: Path) -> bool:
    """Return whether root mounted a volume for a group (Kubernetes' `fsGroup`)."""
    if not folder.is_mount():
        return False
    facts = folder.stat()
    return facts.st_uid == 0 and not facts.st_mode & stat.S_IWOTH
