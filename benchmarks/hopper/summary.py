"""Medians by load and side, and ratios to BF16 of the same round. python3 summary.py FOLDER (with loads.jsonl)"""

import json
import statistics
import sys

rows = [json.loads(line) for line in open(sys.argv[1] + "/loads.jsonl")]
for load in dict.fromkeys(row["load"] for row in rows):
    of = [row for row in rows if row["load"] == load and row["round"] >= 0 and "output_tokens_per_s" in row]
    base = {row["round"]: row["output_tokens_per_s"] for row in of if row["side"] == "bf16"}
    for side in dict.fromkeys(row["side"] for row in of):
        mine = [row for row in of if row["side"] == side]
        middle = {
            key: statistics.median(row.get(key) or 0 for row in mine)
            for key in ("output_tokens_per_s", "ttft_ms", "ttft_p99_ms", "tpot_ms", "itl_p99_ms", "http_server_cores")
        }
        ratios = [row["output_tokens_per_s"] / base[row["round"]] for row in mine if row["round"] in base]
        print(
            f"{load:5} {side:6} {middle['output_tokens_per_s']:8.0f} tok/s  "
            f"ttft {middle['ttft_ms']:7.1f} (p99 {middle['ttft_p99_ms']:7.1f}) ms  "
            f"tpot {middle['tpot_ms']:6.2f} (itl p99 {middle['itl_p99_ms']:6.2f}) ms  http {middle['http_server_cores']:.2f}  "
            f"ratio {', '.join(f'{r:.3f}' for r in ratios)}  failed {sum(r['failed'] for r in mine)}"
        )
