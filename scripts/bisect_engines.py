"""Find the engine that made a promoted model worse, by its answers on record.

    git bisect run python bisect_engines.py NAME@champion URL ./start-engine
    python bisect_engines.py NAME@champion URL ./start-engine 0.30.0 0.31.0 0.32.0

`./start-engine [VERSION]` serves the promoted weights at the URL until SIGTERM. Without versions it
exits with 0 good, 1 bad or 125 skip. With versions, oldest first, it prints the first bad one.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from urllib.request import urlopen

baseline, url, start, *left = sys.argv[1:]
GATE = ["prepare", "gate", "--baseline", baseline, "--candidate", url]


def answers() -> bool:
    """Return whether the engine answers."""
    with suppress(OSError), urlopen(f"{url}/v1/models", timeout=10):  # noqa: S310
        return True
    return False


def judge(*words: str) -> int:
    """Start an engine, compare it with the record, and end it."""
    if answers():
        print(f"a server answers at {url} already: end it first", file=sys.stderr)
        sys.exit(128)  # which ends a bisection
    server = subprocess.Popen(words, start_new_session=True)
    try:
        while not answers():
            time.sleep(1)
            if server.poll() is not None:
                return 125
        return {0: 0, 4: 1}.get(subprocess.call(GATE), 125)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


first_bad = "none"
while left:
    place = len(left) // 2
    version = left[place]
    verdict = judge(start, version)
    print(f"{version}: {({0: 'good', 1: 'bad'}).get(verdict, 'skipped')}", flush=True)
    first_bad = version if verdict == 1 else first_bad
    left = {0: left[place + 1 :], 1: left[:place]}.get(verdict, left[:place] + left[place + 1 :])
if len(sys.argv) > 4:
    print(f"first bad: {first_bad}")
else:
    sys.exit(judge(start))
