"""The environments that this package's quantization kind and engine run in.

`pyproject.toml` names them (outside-int8 = "outside_package.environments:INT8" under
`prepare.environments`); `locks/outside-int8-cpu.txt` is made from the `.in` file next to it by

    uv pip compile outside-int8-cpu.in --generate-hashes -o outside-int8-cpu.txt

`prepare` builds an environment on first use, in its home, and puts the lock's digest into keys.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.environments.managed import GIGABYTE, ManagedEnvironment

LOCKS = Path(__file__).with_name("locks")

INT8 = ManagedEnvironment(
    locks=LOCKS, modules=("torch", "safetensors"), disk_bytes={"cpu": 2 * GIGABYTE}
)
SERVE = ManagedEnvironment(
    locks=LOCKS, modules=("torch", "transformers", "safetensors"), disk_bytes={"cpu": 2 * GIGABYTE}
)
