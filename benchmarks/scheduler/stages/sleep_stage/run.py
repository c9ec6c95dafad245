"""The stage `sleep_stage`: sleeps, and writes some files that belong together."""

from __future__ import annotations

import hashlib
import os
import time

from pipeline.stages.sleep_stage import (  # see sitecustomize.py
    SleepParameters,
    SleepResult,
    SleepRuntime,
)

from pipeline.stages.context import StageContext

FILES = 3


def run(context: StageContext[SleepParameters, SleepRuntime]) -> SleepResult:
    """Sleep; the first half of the files is written before, the rest after."""
    began = time.time()
    _tell(context, "began")
    digest = hashlib.sha256()
    for number in range(FILES):
        time.sleep(context.parameters.seconds / FILES)
        text = f"{context.spec.key} {number} {began}\n" * 100
        (context.folder / f"{number}.txt").write_text(text)
        digest.update(text.encode())
    _tell(context, "ended")
    return SleepResult(began=began, ended=time.time(), digest=digest.hexdigest())


def _tell(context: StageContext[SleepParameters, SleepRuntime], what: str) -> None:
    journal = os.open(context.runtime.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(journal, f"{context.spec.key} {what}\n".encode())
    os.close(journal)
