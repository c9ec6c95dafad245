"""A run's record is closed however the run ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from artifacts.run_record import RunReport
from pipeline.core.errors import ExitCode, PrepareError, StoreError
from pipeline.run.run_log import RunLog


def kept_to_the_end(log: RunLog, work: Callable[[], ExitCode]) -> RunReport:
    """Do the work and close the run's record.

    Args:
        log: of the run.
        work: returns how it ends; a PrepareError becomes part of the record.

    Raises:
        KeyboardInterrupt: and what is no PrepareError, passed on once the record is closed.
    """
    try:
        code = work()
    except PrepareError as error:
        # The disk may be full: the first error is the one to tell, whether it can be kept or not.
        with contextlib.suppress(StoreError):
            log.finish("failed", error.exit_code, error)
        return log.report()
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        code = ExitCode.INTERRUPTED if stopped else ExitCode.UNEXPECTED
        with contextlib.suppress(StoreError):
            log.finish("interrupted" if stopped else "failed", code)
        raise
    log.finish("finished", code)
    return log.report()
