"""Makes the names in a folder survive a power cut.

Standard library only: the quantizers' environments ask too.
"""

from __future__ import annotations

import os
from pathlib import Path


def flush_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder; the files' own bytes are not its matter."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
