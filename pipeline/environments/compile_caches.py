"""Where an engine keeps what it compiles: a folder for each environment, which is ours alone.

What lies there is run by the next server, so nothing is taken from where others may write; but a
volume that root mounted in that very place is for whom root gave it to.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.private_files import private_umask

VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",  # torch.compile's among it
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
"""By the variable that names it, the folder of each who compiles."""

_IDENTITY_CHARACTERS = 16
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH


def caches_folder(home: Path) -> Path:
    """Where those of all environments lie."""
    return home / "caches"


def open_caches(home: Path, identity: str, progress: Progress) -> dict[str, str]:
    """Variables that have a server keep there what it compiles.

    Args:
        identity: of its environment.

    Returns:
        nothing where the folder is not ours alone, so that the engine takes its own place.
    """
    folder = caches_folder(home) / identity[:_IDENTITY_CHARACTERS]
    try:
        is_ours = (_is_volume(folder.parent) or _make_private(folder.parent)) and _make_private(
            folder
        )
        if is_ours:
            os.utime(folder)  # for `prepare env gc`
    except OSError:
        is_ours = False
    if is_ours:
        return {name: str(folder / place) for name, place in VARIABLES.items()}
    progress.note(f"compiled code is not kept in {folder}: it is not this user's alone")
    return {}


def _is_volume(folder: Path) -> bool:
    """Whether root mounted a volume there for a group, as Kubernetes does (`fsGroup`)."""
    if not folder.is_mount():
        return False
    facts = folder.stat()
    return facts.st_uid == 0 and not facts.st_mode & stat.S_IWOTH


def _make_private(folder: Path) -> bool:
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
    facts = folder.lstat()  # of a link to a folder, the link's
    return (
        stat.S_ISDIR(facts.st_mode)
        and facts.st_uid == os.geteuid()
        and not facts.st_mode & _FOR_OTHERS_TO_WRITE
    )
