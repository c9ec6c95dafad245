"""One of several processes that do the same stages of one store; run by test_s3_store.py.

    python s3_writer.py CACHE NODE STAGES

Each stage is a few files with the writer's name in each, and some time in between. Prints a line
when it has a stage, and one when it has gone through all.
"""

import sys
import time
from pathlib import Path

from quick_record import write_quick_record

from pipeline.core.errors import StoreError
from pipeline.core.leases import Leases
from pipeline.core.store import Store

FILES = ("a", "b", "c")


def main(cache: Path, node: str, stages: int) -> None:
    """Do what is not done; what another process took over is left to it."""
    store = Store(cache)
    assert store.remote is not None
    store.leases = Leases(store.remote.objects.below("leases"), node=node or None)
    me = f"{node}-{time.time_ns()}"
    for number in range(stages):
        key = f"{number:064x}"
        while store.find("judge", key) is None:
            try:
                do(store, key, me)
            except StoreError as error:
                print(f"lost {number}: {error}", flush=True)
    print("done", flush=True)


def do(store: Store, key: str, me: str) -> None:
    """One stage."""
    with store.open_for_writing("judge", key) as folder:
        if folder is None:
            return
        print(f"has {key[-4:]}", flush=True)
        for name in FILES:
            (folder / name).write_text(me + "x" * 100_000)
            time.sleep(0.02)
        write_quick_record(folder, key, writer=me)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
