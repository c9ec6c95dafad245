"""Prints the plan's KV tokens and ceilings for the kit's shapes next to what an H100 gave.

python3 benchmarks/hopper/planned.py   from the repository's root; needs prepare, no GPU. Ends with one JSON line and exits
with 1 if a planned number of KV tokens is above the measured one or more than 5 % below it, or if a server was faster than
the memory's bandwidth allows for one request. The plan predicts no start times; the measured ones are printed.

The checkpoint has the configuration and the headers of the weights alone: its files are holes.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from shapes import SHAPES, configuration, sizes_of

MEASURED = Path(__file__).parents[1] / "results/h100.json"
BANDWIDTH = 3.35e12  # bytes/s of an H100 SXM, as NVIDIA publishes it
NAMES = {"baseline": "bf16", "fp8-dynamic": "fp8", "awq-w4a16": "w4a16"}


def write_headers(folder: Path) -> None:
    shape = SHAPES["8b"]
    (folder / "config.json").write_text(json.dumps(configuration(shape)))
    header, end = {}, 0
    for name, size in sizes_of(shape).items():
        count = 2
        for length in size:
            count *= length
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        write_headers(Path(name))
        command = [sys.executable, "-m", "prepare", "plan", name, "--gpu", "h100", "--context", "131072", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr[-2000:], file=sys.stderr)
    if done.returncode:
        return 1
    measured = json.loads(MEASURED.read_text())
    speeds = {row["variant"]: row["output_tokens_per_s"] for row in measured["served_side_by_side"]["loads"] if row["concurrent"] == 1}
    rows, agrees = {}, True
    for fit in json.loads(done.stdout)["fits"]:
        arm = NAMES[fit["variant"]]
        alone, fastest = measured["alone"][arm], max(speeds[arm])
        share = fit["tokens"] / alone["kv_tokens"]
        ceiling = BANDWIDTH / fit["weights_bytes"]  # each token of one request reads all weights
        agrees = agrees and 0.95 <= share <= 1 and fastest <= ceiling
        rows[arm] = {
            "kv_tokens_planned": fit["tokens"],
            "kv_tokens_measured": alone["kv_tokens"],
            "share": round(share, 4),
            "tokens_per_s_at_most": round(ceiling, 1),
            "tokens_per_s_measured": fastest,
            "start_s_measured": alone["import_s"] + alone["start_s"],
        }
        print(arm, rows[arm])
    print(json.dumps({"agrees": agrees, "arms": rows}))
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
