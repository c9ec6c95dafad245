"""What a variant has beside its weights: config, tokenizer, chat template, code of its own.

A verdict is about them as well as about the weights: an answer depends on each.
"""

from __future__ import annotations

from pathlib import Path

from artifacts.evidence.bundle import BUNDLE
from artifacts.evidence.card import CARD, RESULTS
from artifacts.evidence.manifest import digest_of_other_files
from artifacts.weights_folder_files import ADDED_LATER

WRITTEN_LATER = (BUNDLE, CARD, RESULTS, *ADDED_LATER)


def digest_auxiliary_files(folder: Path) -> str:
    """Digest of their names and contents, before and after card and evidence were written.

    Raises:
        CheckpointError: the folder has no weights.
        EvidenceError: there is something that is neither a file nor a folder.
    """
    return digest_of_other_files(folder, WRITTEN_LATER)
