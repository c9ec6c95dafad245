"""Puts servers of one model under load in turn; a line of JSON for each load.

python3 load.py OUT.jsonl --side NAME=PORT[=PID] ... --load CONCURRENCY:INPUT:OUTPUT:WAVES[:whole] ... --rounds N --until UNIX_TIME

With "whole", answers come in one piece: the HTTP server, one Python process, has little to do then. With its PID, the
cores that it keeps busy are noted: near 1, it and not the GPU sets the pace.

The clients are four processes, so that reading 15,000 tokens a second does not hold them up. Each round gives every side
every load once, sides in another order each time, with prompts that no server has seen. Prompts are numbers of tokens.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

import aiohttp

PROCESSES = 4


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


async def request(session, url, prompt, output, whole):
    row = {"start": time.time(), "gaps": []}
    body = {"model": "m", "prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0.0, "stream": not whole}
    if not whole:
        body["stream_options"] = {"include_usage": True}
    last = None
    try:
        async with session.post(url + "/v1/completions", json=body) as answer:
            if answer.status != 200:
                return row | {"error": f"{answer.status} {(await answer.text())[:200]}"}
            if whole:
                row["tokens"] = (await answer.json())["usage"]["completion_tokens"]
                return row | {"last": time.time()}
            async for line in answer.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                now = time.time()
                if line.startswith((b'data: {"error"', b'data: {"object":"error"')):
                    return row | {"error": line.decode(errors="replace")[:200]}
                if b'"choices":[]' in line or b'"choices": []' in line:
                    row["tokens"] = json.loads(line[6:])["usage"]["completion_tokens"]
                    continue
                if last is None:
                    row["first"] = now
                else:
                    row["gaps"].append(now - last)
                last = now
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {error}"[:200]}
    return row | {"last": last}


def client(url, prompts, concurrency, output, whole):
    async def run():
        rows, waiting = [], list(prompts)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=300)) as session:

            async def worker():
                while waiting:
                    rows.append(await request(session, url, waiting.pop(), output, whole))

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        return rows

    return asyncio.run(run())


def busy(pid):
    """Seconds of processor that a process has had."""
    try:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def measure(pool, port, pid, load, seed, words):
    concurrency, inputs, output, waves, whole = load
    chance = random.Random(seed)
    parts = min(PROCESSES, concurrency)
    jobs = []
    for part in range(parts):
        width = concurrency // parts + (part < concurrency % parts)
        prompts = [[chance.randrange(10, words) for _ in range(inputs)] for _ in range(width * waves)]
        jobs.append((f"http://127.0.0.1:{port}", prompts, width, output, whole))
    before, began = busy(pid), time.time()
    rows = [row for job in [pool.submit(client, *job) for job in jobs] for row in job.result()]
    after, ended = busy(pid), time.time()
    good = [row for row in rows if "error" not in row and row.get("last")]
    found = {"requests": len(rows), "failed": len(rows) - len(good), "errors": sorted({r["error"] for r in rows if "error" in r})[:3]}
    if good:
        seconds = max(r["last"] for r in good) - min(r["start"] for r in good)
        tokens = sum(r.get("tokens", output) for r in good)
        gaps = [gap for r in good for gap in r["gaps"]]
        found |= {"output_tokens_per_s": tokens / seconds, "seconds": seconds, "tokens": tokens}
        if before is not None and after is not None:
            found["http_server_cores"] = (after - before) / (ended - began)
    if good and not whole:
        found |= {
            "ttft_ms": 1000 * statistics.median(r["first"] - r["start"] for r in good),
            "ttft_p99_ms": 1000 * quantile([r["first"] - r["start"] for r in good], 0.99),
            "tpot_ms": 1000 * statistics.median((r["last"] - r["first"]) / max(1, r.get("tokens", output) - 1) for r in good),
            "itl_p99_ms": 1000 * quantile(gaps, 0.99) if gaps else None,
            "chunks": len(gaps) + len(good),
        }
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--side", nargs="+", type=lambda text: (text.split("=")[0], *(int(part) for part in (text + "=0").split("=")[1:3])))
    p.add_argument("--load", nargs="+", type=lambda text: (*(int(part) for part in text.split(":")[:4]), text.endswith(":whole")))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--words", type=int, default=128000)
    p.add_argument("--until", type=float, default=0)
    a = p.parse_args()
    chance = random.SystemRandom()
    sides, longest = list(a.side), 0.0
    with ProcessPoolExecutor(PROCESSES) as pool, open(a.out, "a") as out:
        for number in range(-1, a.rounds):  # -1 warms up
            began = time.time()
            for load in a.load:
                if number < 0:
                    load = (load[0], load[1], 8, 1, load[4])
                seed = chance.getrandbits(31)
                chance.shuffle(sides)
                for side, port, pid in sides:
                    if a.until and time.time() > a.until - 5:
                        print("out of time", flush=True)
                        return
                    row = {
                        "round": number,
                        "load": f"c{load[0]}{'w' if load[4] else ''}",
                        "concurrency": load[0],
                        "input": load[1],
                        "output": load[2],
                        "side": side,
                    }
                    row |= measure(pool, port, pid, load, seed, a.words)
                    out.write(json.dumps(row) + "\n")
                    out.flush()
                    print(
                        number,
                        row["load"],
                        side,
                        f"{row.get('output_tokens_per_s', 0):.0f} tok/s ttft {row.get('ttft_ms', 0):.0f} "
                        f"tpot {row.get('tpot_ms', 0):.2f} ms failed {row['failed']} {row['errors']}",
                        flush=True,
                    )
            if number >= 0:
                longest = max(longest, time.time() - began)
                if a.until and time.time() + longest > a.until:
                    return


if __name__ == "__main__":
    main()
