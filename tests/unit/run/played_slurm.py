"""Slurm's commands, played by scripts: sbatch does the work immediately."""

from __future__ import annotations

from pathlib import Path

import pytest

SBATCH = """#!/bin/sh
for word; do case "$word" in
    --output=*) output=${word#*=};; --error=*) log=${word#*=};; --wrap=*) script=${word#*=};;
    --test-only) case "$*" in *1000*) echo "not available" >&2; exit 1;; esac; exit 0;;
esac; done
sh -c "$script" >> "$output" 2>> "$log"
echo 17
"""
SINFO = "#!/bin/sh\necho n1 2 4000 '(null)'\n"
NOTHING = "#!/bin/sh\n"


def play_slurm(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put the commands on the path; returns the new folder that has them."""
    folder.mkdir()
    scripts = {"sbatch": SBATCH, "sinfo": SINFO, "squeue": NOTHING, "scancel": NOTHING}
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    patch.setenv("PATH", str(folder), prepend=":")
    return folder
