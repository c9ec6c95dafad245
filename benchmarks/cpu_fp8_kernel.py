"""How much faster the CPU FP8 plugin is than vLLM's own kernel: side by side, in one run.

    .venv/bin/python benchmarks/cpu_fp8_kernel.py

Both kernels multiply the same random activations by the same FP8 weights (SmolLM2-135M's MLP,
576 x 1536), alternating, in the real serving environment (built if necessary). The last line is
JSON: by number of rows, milliseconds of each and the ratio of the medians.
"""

from __future__ import annotations

import subprocess
import sys

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings

MEASURE = """
import json, statistics, time
import torch

inputs, outputs, rounds = 576, 1536, 15
one = torch.ones(1)
weight = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
widened = weight.to(torch.float32)

def stock(rows):
    return torch._scaled_mm(rows, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)

def plugin(rows):
    return torch.mm(rows.to(torch.float32), widened.t())

figures = {}
for count in (1, 8, 32, 256):
    rows = torch.randn(count, inputs).to(torch.float8_e4m3fn)
    times = {stock: [], plugin: []}
    for _ in range(rounds):
        for kernel in times:
            started = time.perf_counter()
            kernel(rows)
            times[kernel].append(1000 * (time.perf_counter() - started))
    before, after = (statistics.median(times[kernel]) for kernel in (stock, plugin))
    figures[count] = {"stock_ms": before, "plugin_ms": after, "ratio": before / after,
                      "largest_difference": float((stock(rows) - plugin(rows)).abs().max())}
print(json.dumps({"torch": torch.__version__, "rows": figures}))
"""


def main() -> int:
    """Measure in the serving environment; its exit code."""
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    return subprocess.run([str(python), "-c", MEASURE], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
