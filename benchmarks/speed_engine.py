"""Gates on speed on real servers: do they say what is known to be true?

    .venv/bin/python benchmarks/speed_engine.py
    .venv/bin/python benchmarks/speed_engine.py --only aa --tries 5 --work FOLDER

vLLM serves the demo model on this machine (environments and model are made if necessary), and the
claims are measured and judged by `prepare gate` itself, on endpoints of which the truth is known:

- aa:      two servers started alike, and the claim that one gives at least 1.0 of the other. A try
           is one measurement of it. Right is `undecided`, or bounds with 1.0 between them, in at
           least 19 of 20 tries. Two starts differ, and `prepare gate` speaks of these two as they
           run; so each try is also judged as `prepare model` does, with its allowance for that;
- narrow:  `max-num-seqs` cut to a quarter: 2, where the baseline takes all 8 that ask. Right is
           `fail`;
- cache:   a server without a prefix cache, and a workload that declares hits. Right is a refusal
           that names `hit_rate`, of the candidate alone;
- slo:     the knee is looked for: rates in steps of 2, a round each, until the P95 of the time to
           first token is more than 4 times that of a server with little to do. The same limit
           passes at half of the knee and fails at twice the knee.

With --work, a part that is done is not done again, and one that was stopped goes on: servers are
started again on the same ports, and `prepare` continues its run. Nothing else should run
on the machine: what disturbs a load is refused, rightly. On 2 cores all takes about 40 minutes with
20 tries. The last line is JSON; exit 1 where a part is not right.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from gate_cost import demo_checkpoint

from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from eval_gates.speed.report import SpeedGateReport
from pipeline.cli.display import open_display
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.plan.speed_plan import find_claims
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from recipes.catalog import load_policy
from recipes.schema import ServingProfile

RIGHT_TRIES = 0.95  # of all
WIDE, NARROW_MINIMUM = 8, 0.9
QUIET_RATE, SLOWER, STEPS = 1.0, 4.0, 7  # requests/s; times the quiet TTFT; rates of the ladder
ANY_TTFT_MS = 1e6
# A policy needs a suite: the smallest.
SUITE = {
    **{"kind": "rouge", "about": "benchmark", "margins": {"fp8": 0.08}, "sources": ["builtin"]},
    **{"questions": 32, "batch": 32, "max_tokens": 8},
}
SHORT = {"kind": "random", "input_tokens": 16, "output_tokens": 8}
SHARED = {
    **{"kind": "shared_prefix", "prefix_tokens": 128, "suffix_tokens": 16, "output_tokens": 4},
    "hit_rate": 0.88,
}
# Nothing depends on them: all results of a gate are read from the run's record.
TIER = {"tier": "advisory"}

Reports = dict[str, SpeedGateReport]
"""Claims as they were judged, by gate."""


def main() -> int:
    """Serve, measure, print; 0 where every part is right."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work, arguments.port, arguments.tries, arguments.blocks)
        found = {part: bench.result_of(part) for part in arguments.only or PARTS}
    print(json.dumps(found))
    return 0 if all(part["right"] for part in found.values()) else 1


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; repeatable")
    parser.add_argument("--tries", type=int, default=20, help="of aa (default 20, the most)")
    parser.add_argument("--blocks", type=int, default=10, help="a claim at most (default 10)")
    parser.add_argument("--work", type=Path, help="what is kept (default: nothing)")
    parser.add_argument(
        "--port", type=int, default=18411, help="of the first server; then the next"
    )
    return parser.parse_args()


@dataclass(frozen=True)
class Bench:
    """Servers of the demo model, and `prepare gate` on them.

    Args:
        work: folder for all that is kept.
        port: of the first server.
        tries: of aa.
        blocks: of a ratio, at most.
    """

    work: Path
    port: int
    tries: int
    blocks: int

    def result_of(self, part: str) -> dict[str, Any]:
        """Do the part, unless it is done; prints what it found."""
        kept = (
            self.work / f"{part}.{self.tries}.json" if part == "aa" else self.work / f"{part}.json"
        )
        if not kept.is_file():
            kept.write_text(json.dumps(PARTS[part](self)))
        found: dict[str, Any] = json.loads(kept.read_text())
        shown = {name: value for name, value in found.items() if name != "claims"}
        print(f"{part}: {json.dumps(shown)}", flush=True)
        return found

    @property
    def model(self) -> Path:
        """The demo checkpoint."""
        folder = self.work / "demo"
        output = folder / "checkpoint"
        if not (output / "config.json").is_file():
            folder.mkdir(exist_ok=True)
            with open_display() as progress:
                demo_checkpoint(folder, Accelerator.CPU, progress)
        return output

    @property
    def profile(self) -> ServingProfile:
        """As this machine's CPU can be served."""
        return choose_profile("cpu")

    @contextmanager
    def serve(self, *changes: dict[str, Any]) -> Iterator[list[str]]:
        """Return the URLs of servers as the baseline is served, each with its changed arguments."""
        servers = []
        try:
            for number, changed in enumerate(changes):
                serving = ServingArguments.of(self.profile, is_baseline=True)
                serving.engine_arguments.update(changed)
                with open_display() as progress:
                    python = ensure("serve", Accelerator.CPU, load_settings(), progress).python
                    log = self.work / f"server-{number}.log"
                    server = Server(python, self.model, serving, log, port=self.port + number)
                    servers.append(server)
                    server.start(self.profile.ready_timeout_seconds, progress)
            yield [server.url for server in servers]
        finally:
            for server in servers:
                server.stop()

    def judge(
        self, part: str, baseline: str, candidate: str, speed: dict[str, Any], step: str = ""
    ) -> Reports:
        """Return `prepare gate`'s result for each speed gate.

        Args:
            part: what the servers are for; each has its own store and deployment id.
            baseline: URL.
            candidate: URL.
            speed: what is claimed.
            step: of a part that claims several times.

        Raises:
            SystemExit: it could not judge.
        """
        store = self.work / part
        store.mkdir(exist_ok=True)
        name = f"{part}{step}"
        policy = self.policy_file(name)
        policy.write_text(
            yaml.safe_dump(
                {
                    **{"name": name, "summary": "speed", "suites": {"rouge": SUITE}},
                    "speed": speed,
                }
            )
        )
        command = [
            *(sys.executable, "-P", "-m", "pipeline.cli.main", "gate", "--json"),
            *("--baseline", baseline, "--baseline-model", SERVED_NAME),
            *("--candidate", candidate, "--candidate-model", SERVED_NAME),
            *("--tokenizer", str(self.model), "--policy", str(policy), "--deployment-id", part),
        ]
        environment = {**os.environ, "PREPARE_STORE": str(store)}
        answer = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if answer.returncode not in (0, 4, 5):
            raise SystemExit(f"prepare gate ended with {answer.returncode}: {answer.stdout}")
        (variant,) = json.loads(answer.stdout)["variants"]
        reports = [SpeedGateReport.model_validate(claim) for claim in variant["speed"]]
        for report in reports:
            print(f"  {report.gate}: {report.verdict}, {report.reason}", flush=True)
        return {report.gate: report for report in reports}

    def loads(self, part: str, workload: str) -> list[LoadRun]:
        """Return a workload's measurements."""
        for record in (self.work / part).glob("stages/speed/*/stage.json"):
            if json.loads(record.read_text())["parameters"]["name"] == workload:
                return read_loads(record.with_name(LOADS))
        raise SystemExit(f"no loads of {workload} are kept")

    def policy_file(self, name: str) -> Path:
        """Return the speed gate of that name."""
        return self.work / f"{name}.policy.yaml"


# --- the parts ----------------------------------------------------------------------------------


def against_itself(bench: Bench) -> dict[str, Any]:
    """Two servers alike, so many tries."""
    names = [f"try-{number:02d}" for number in range(1, bench.tries + 1)]
    workload = {**SHORT, "arrivals": {"concurrency": 4}, "seconds": 1.0}
    ratio = {"min_ratio": 1.0, "workloads": names, "blocks": bench.blocks, **TIER}
    with bench.serve({}, {}) as (one, other):
        reports = bench.judge(
            "aa", one, other, {"ratio": ratio, "workloads": dict.fromkeys(names, workload)}
        )
    claims = find_claims(load_policy(str(bench.policy_file("aa"))), bench.profile)
    rules = {claim.gate: claim.rule for claim in claims}
    tries = []
    for report in reports.values():
        allowed = rules[report.gate].evaluate(bench.loads("aa", report.workload))
        tries.append(
            {
                "gate": holds_one(
                    report.verdict, report.lower, report.upper, report.invalid_reasons
                ),
                "model": holds_one(
                    allowed.state, allowed.lower, allowed.upper, report.invalid_reasons
                ),
                "verdict_with_allowance": allowed.state,
                **facts_of(report),
                "log_ratios": log_ratios_of(report),
            }
        )
    return {
        **{"tries": len(tries), "refused": sum(bool(each["refused"]) for each in tries)},
        "right_as_gate": sum(each["gate"] for each in tries),
        "right_as_model": sum(each["model"] for each in tries),
        "right": sum(each["model"] for each in tries) >= math.floor(RIGHT_TRIES * len(tries)),
        "claims": tries,
    }


def log_ratios_of(report: SpeedGateReport) -> list[float]:
    """ln(candidate / baseline) of each block that counts."""
    points = [each for each in report.loads if each.counts]
    rates = {(each.block, each.side): each.output_tokens_per_s for each in points}
    pairs = [
        (rates[block, "candidate"], rates[block, "baseline"])
        for block in sorted({block for block, _ in rates})
    ]
    return [
        math.log(candidate / baseline) for candidate, baseline in pairs if candidate and baseline
    ]


def holds_one(verdict: str, lower: float | None, upper: float | None, refused: list[Any]) -> bool:
    """Whether equal servers were found to be that: nothing decided, or 1.0 within the bounds."""
    undecided = verdict in ("open", "undecided")
    return not refused and (undecided or (lower or 0.0) <= 1.0 <= (upper or math.inf))


def a_quarter_at_once(bench: Bench) -> dict[str, Any]:
    """Return a quarter of `max-num-seqs`."""
    workload = {**SHORT, "arrivals": {"concurrency": WIDE}, "seconds": 1.0}
    ratio = {"min_ratio": NARROW_MINIMUM, "workloads": ["short"], "blocks": bench.blocks, **TIER}
    with bench.serve({"max-num-seqs": WIDE}, {"max-num-seqs": WIDE // 4}) as (baseline, narrow):
        speed = {"ratio": ratio, "workloads": {"short": workload}}
        report = bench.judge("narrow", baseline, narrow, speed)["ratio.short"]
    right = report.verdict == "fail" and not report.invalid_reasons
    return {"right": right, **facts_of(report)}


def no_prefix_cache(bench: Bench) -> dict[str, Any]:
    """Hits are declared, and the candidate can have none."""
    workload = {**SHARED, "arrivals": {"concurrency": 4}, "seconds": 1.0}
    ratio = {"min_ratio": 0.5, "workloads": ["shared"], "blocks": bench.blocks, **TIER}
    with bench.serve({}, {"no-enable-prefix-caching": True}) as (baseline, candidate):
        speed = {"ratio": ratio, "workloads": {"shared": workload}}
        report = bench.judge("cache", baseline, candidate, speed)["ratio.shared"]
    causes = {(cause.kind, cause.side) for cause in report.invalid_reasons}
    right = report.verdict == "undecided" and causes == {("hit_rate", "candidate")}
    rates = {each.side: each.hit_rate for each in report.loads}
    return {"right": right, "hit_rate": rates, **facts_of(report)}


def around_the_knee(bench: Bench) -> dict[str, Any]:
    """Return the quiet server, the knee, and the limit on both sides of it."""
    with bench.serve({}) as (url,):
        quiet = bench.judge(
            "slo", url, url, limits_at([QUIET_RATE], ANY_TTFT_MS, rounds=10), "-quiet"
        )
        ttft = max(each.ttft_ms_p95 or math.inf for each in quiet["slo.0"].loads if each.counts)
        limit = SLOWER * ttft
        rates = [QUIET_RATE * 2**step for step in range(1, STEPS + 1)]
        ladder = bench.judge("slo", url, url, limits_at(rates, limit, rounds=10), "-knee")
        kept = [ladder[f"slo.{n}"].estimate == 1.0 for n in range(STEPS)]
        if kept[0] is False or all(kept):
            return {"right": False, "limit_ms": limit, "rates": rates, "kept": kept}
        # Between the last rate that keeps the limit and the first that does not.
        knee = rates[kept.index(False)] / math.sqrt(2)
        sides = bench.judge("slo", url, url, limits_at([knee / 2, 2 * knee], limit, rounds=12))
    half, twice = sides["slo.0"], sides["slo.1"]
    return {
        "right": (half.verdict, twice.verdict) == ("pass", "fail"),
        **{"quiet_ttft_ms_p95": ttft, "limit_ms": limit, "knee": knee},
        **{"rates": rates, "kept": kept, "half": facts_of(half), "twice": facts_of(twice)},
    }


def limits_at(rates: list[float], ttft_ms_p95: float, *, rounds: int) -> dict[str, Any]:
    """Claims on the time to first token, one a rate."""
    names = [f"short-{rate:g}".replace(".", "-") for rate in rates]
    # A P95 is of 20 requests at least; rounds are as long as that takes.
    workloads = {
        name: {
            **{**SHORT, "arrivals": {"rate": rate}, "warmup_seconds": 2.0},
            "seconds": max(6.0, math.ceil(38 / rate)),
        }
        for name, rate in zip(names, rates, strict=True)
    }
    claims = [
        {
            **{"workload": name, "limits": {"ttft_ms_p95": ttft_ms_p95}},
            **{"rounds": rounds, **TIER},
        }
        for name in names
    ]
    return {"slo": claims, "workloads": workloads}


def facts_of(report: SpeedGateReport) -> dict[str, Any]:
    """Return a speed gate's part of the last line."""
    return {
        **{"verdict": report.verdict, "n": report.n, "estimate": report.estimate},
        **{"lower": report.lower, "upper": report.upper},
        "refused": sorted({f"{cause.kind} {cause.side}" for cause in report.invalid_reasons}),
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "aa": against_itself,
    "narrow": a_quarter_at_once,
    "cache": no_prefix_cache,
    "slo": around_the_knee,
}


if __name__ == "__main__":
    sys.exit(main())
