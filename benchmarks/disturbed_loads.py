"""How often gates on speed pass falsely where loads are disturbed: replays of imagined servers.

    .venv/bin/python benchmarks/disturbed_loads.py

A candidate is exactly at the boundary, so each pass is false, at a nominal 5 %. A block is
disturbed with a chance that depends on its own value: a disturbance may hit the slower side more
often, or only blocks in which the candidate is slow. `void` is the rule of the project
(validity.py): a disturbed block counts for neither side, and further ones are measured in its
place, in up to three runs. `left out` forgets the disturbed ones. The last line is JSON; exit 1
where the rule of the project is wrong in more than 5 %, give or take 2 standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import numpy as np
from numpy.typing import NDArray

from eval_gates.speed.proportion_test import log_evidence
from eval_gates.speed.sequential_rule import UNITS_PER_LOST

ALPHA, CAP, RUNS = 0.05, 20, 3
Bools = NDArray[np.bool_]
DISTURBED = {  # chance that a block is, where it lies above the minimum, and below
    "none": (0.0, 0.0),
    "10 % of all": (0.1, 0.1),
    "half of all": (0.5, 0.5),
    "30 % of slow ones": (0.0, 0.3),
    "60 % of slow ones": (0.0, 0.6),
    "90 % of slow ones": (0.0, 0.9),
    "30 % of slow, 10 % of fast ones": (0.1, 0.3),
    "60 % of fast ones": (0.6, 0.0),
}


def false_passes(
    chance: np.random.Generator, replays: int, above: float, below: float, share: float
) -> tuple[float, float]:
    """Shares that pass with void blocks, and with disturbed ones left out.

    Args:
        chance: of everything.
        replays: how many.
        above: chance that a block above the minimum is disturbed.
        below: the same of one below it.
        share: of blocks above the minimum, that is claimed, and true.
    """
    most = 2 * CAP * RUNS
    good = chance.random((replays, most)) < share
    lost = chance.random((replays, most)) < np.where(good, above, below)
    needed = -math.log(ALPHA)
    passed = np.zeros(replays, dtype=bool)
    # Each run ends where its budget does; the next one begins another bet there.
    for row in range(replays):
        starts: list[int] = []
        for run in range(1, RUNS + 1):
            count = np.cumsum(lost[row])
            allowed = CAP * run + np.minimum(
                CAP * run, np.ceil(UNITS_PER_LOST / (1 - share) * count)
            )
            end = int(np.argmax(np.arange(1, most + 1) >= allowed)) + 1
            found = log_evidence((good[row] & ~lost[row])[:end], share, starts)
            against = log_evidence((~good[row] & ~lost[row])[:end], 1 - share, starts)
            first = [
                int(np.argmax(each >= needed)) if (each >= needed).any() else most
                for each in (found, against)
            ]
            if min(first) < most:
                passed[row] = first[0] < first[1]
                break
            if end < 2 * CAP * run:
                break  # undecided though enough was measured
            starts.append(end)
    kept = good[~lost].reshape(-1)
    rows = kept[: len(kept) // CAP * CAP].reshape(-1, CAP)
    left_out = (log_evidence(rows, share) >= needed).any(axis=1)
    return float(passed.mean()), float(left_out.mean()) if len(rows) else math.nan


def main() -> int:
    """Print the table and the JSON line; 0 if the rule of the project keeps its rate, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=2000, help="of each row (default: 2000)")
    parser.add_argument("--seed", type=int, default=20261123, help="of all that is drawn")
    arguments = parser.parse_args()
    chance, found = np.random.default_rng(arguments.seed), {}
    for share in (0.5, 0.8):
        for name, (above, below) in DISTURBED.items():
            void, left_out = false_passes(chance, arguments.replays, above, below, share)
            row = f"{name}; share {share:g}"
            found[row] = {"void": void, "left out": left_out}
            print(f"{row:<45}{100 * void:>8.1f} %{100 * left_out:>10.1f} %", flush=True)
    most = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / arguments.replays)
    met = all(row["void"] <= most for row in found.values())
    print(json.dumps({**vars(arguments), "false_passes": found, "targets_met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
