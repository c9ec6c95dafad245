"""Works on a store, or removes what is not needed of it; run by test_s3_store.py.

    python beside_collection.py run|collect CACHE ROUNDS

A run does some stages, those that it finds reused, and reads all of them once it has them. Who
collects removes all that no run in progress needs. Prints how often something was done, or removed.
"""

import random
import sys
import time
from pathlib import Path

from quick_record import write_quick_record

from artifacts.run_loader import read_run
from pipeline.core.errors import StoreError
from pipeline.core.events import NullProgress
from pipeline.core.store import Store
from pipeline.release.garbage_collection import find_garbage, remove
from pipeline.run.run_recorder import RunRecorder

STAGES = 4


def run(store: Store) -> int:
    """One run; how many stages it did."""
    log, done = RunRecorder(store, "model", {"checkpoint": "x"}), 0
    for number in range(STAGES):
        key = f"{number:064x}"
        while store.find("judge", key) is None:
            done += write(store, key)
    for number in range(STAGES):
        folder = store.stage_folder("judge", f"{number:064x}")
        assert (folder / "weights").read_text() == f"{number:064x}" * 1000
    log.finish("finished", 0)
    assert read_run(log.folder).status == "finished"
    return done


def write(store: Store, key: str) -> int:
    """Do the stage, unless another has."""
    with store.open_for_writing("judge", key) as folder:
        if folder is None:
            return 0
        (folder / "weights").write_text(key * 1000)
        write_quick_record(folder, key)
    return 1


def collect(store: Store) -> int:
    """What can be removed now; how many things that were."""
    with store.collect() as claim:
        try:
            garbage = find_garbage(store, [], 0, NullProgress())
        except StoreError:  # a run goes on
            return 0
        for each in garbage:
            if not claim.is_current():
                raise claim.lost_error()
            remove(each, store)
        return len(garbage)


def main(role: str, cache: Path, rounds: int) -> None:
    """Do it so often."""
    done, do = 0, {"run": run, "collect": collect}[role]
    for _ in range(rounds):
        done += do(Store(cache))
        time.sleep(random.uniform(0, 0.3))  # else there would always be a run
    print(done)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
