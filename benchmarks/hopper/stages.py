"""stages.py STORE GPU.csv: what each run of the store took, by stage, and its gates. Needs nothing of the product."""

import json
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

HELD_MIB = 1500  # a process that uses the GPU has more
SHOWN_OF_LOGS = (
    *("KV cache size", "Selected ", "attention backend", "torch.compile takes", "Graph capturing finished"),
    *("init engine", "Model loading took", "Available KV"),
)


def read_samples(file):
    """Time, MiB used and utilization in percent of each line; nvidia-smi's clock is the machine's."""
    samples = []
    for line in file.read_text(errors="replace").splitlines() if file.is_file() else ():
        fields = [field.strip() for field in line.split(",")]
        try:
            moment = datetime.strptime(fields[0], "%Y/%m/%d %H:%M:%S.%f").astimezone(UTC)
            samples.append((moment, float(fields[1]), float(fields[2])))
        except (ValueError, IndexError):
            continue
    return samples


def on_gpu(samples, start, seconds):
    end = start + timedelta(seconds=seconds)
    held = 0.0
    busy = 0.0
    most = 0.0
    for (moment, used, share), (following, _, _) in pairwise(samples):
        if start <= moment <= end:
            step = (following - moment).total_seconds()
            held += step * (used > HELD_MIB)
            busy += step * share / 100
            most = max(most, used)
    return f"GPU held {held / 60:.1f} min, busy {busy / 60:.1f} min, at most {most:,.0f} MiB"


def stage_lines(run):
    by_arm = {}
    for stage in run.get("stages", []):
        by_arm.setdefault(stage["variant"], []).append(stage)
    for arm, stages in by_arm.items():
        told = [
            f"{stage['name']} {stage['seconds']:.1f}" + ("" if stage["status"] == "ran" else f" ({stage['status']})") for stage in stages
        ]
        yield f"  {arm}: {sum(stage['seconds'] for stage in stages):.0f} s: {', '.join(told)}"


def gate_lines(run):
    for variant in run.get("variants", []):
        size = (variant.get("weights_bytes") or 0) / 1e9
        yield f"  {variant['recipe']}: {variant['verdict']}, {size:.2f} GB: {str(variant.get('reason'))[:300]}"
        for gate in variant.get("gates", []):
            yield (
                f"    {gate['name']} ({gate['counted']}): {gate['baseline']} -> {gate['candidate']}, estimate {gate['estimate']}, "
                f"bound {gate['bound']} against {gate['threshold']}: {gate['verdict']}"
            )


def log_lines(folder):
    for log in sorted(folder.glob("server.*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if any(words in line for words in SHOWN_OF_LOGS):
                yield f"  {log.name}: {line.partition('] ')[2][:150] or line[:150]}"


def main():
    samples = read_samples(Path(sys.argv[2]))
    for file in sorted((Path(sys.argv[1]) / "runs").glob("*/run.json")):
        try:
            run = json.loads(file.read_text())
        except ValueError as error:
            print(f"{file.parent.name}: {error}")
            continue
        request = run.get("request") or {}
        options = ", ".join(f"{name} {request.get(name)}" for name in ("checkpoint", "profile", "policy"))
        seconds = run.get("seconds") or 0.0
        used = on_gpu(samples, datetime.fromisoformat(run["started"]), seconds or 3600)
        print(f"\n== run {run['run']}: {options}: {run['status']}, exit {run.get('exit_code')}, {seconds:.0f} s; {used}")
        for line in (*stage_lines(run), *gate_lines(run)):
            print(line)
        for note in run.get("notes", [])[:12]:
            print(f"  note: {str(note)[:220]}")
        if run.get("error"):
            print(f"  error: {json.dumps(run['error'])[:600]}")
        for line in log_lines(file.parent):
            print(line)


if __name__ == "__main__":
    main()
