"""Worker: asks one suite's questions of an endpoint through lm-eval's Python interface.

Runs in the `evaluate` environment. HumanEval's answers come through lm-eval too, and are judged
by our own scorer, each program in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval_gates.suites import humaneval, mmlu, rouge
from eval_gates.suites.code_execution import run_many
from eval_gates.suites.json_lines import read_rows, write_rows
from pipeline.errors import StageError
from pipeline.events import Progress
from pipeline.serving_names import SERVED_NAME

Rows = list[dict[str, Any]]
# lm-eval puts this text where a server gave no answer, and would score it like any other.
NO_ANSWER = "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"
REQUEST_TIMEOUT_SECONDS = 1800


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write answers.jsonl, one row a question in the questions' order.

    Args:
        spec: suite, questions (file), url, tokenizer (folder), max_length (tokens).
        progress: hears of requests answered.
        output: folder to write into.

    Raises:
        StageError: the server did not answer a question, or a prompt does not fit.
    """
    suite = spec["suite"]
    questions = [row for _, row in read_rows(Path(spec["questions"]))]
    task, rows_of, metric = SUITES[suite["kind"]](spec)
    samples = ask(task, spec, len(questions), progress)
    rows = rows_of(questions, samples, suite, progress)
    write_rows(output / "answers.jsonl", rows)
    return {"metric": metric}


def ask(config: dict[str, Any], spec: dict[str, Any], questions: int, progress: Progress) -> Rows:
    """Run lm-eval on the task; its samples in the questions' order."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask

    suite = spec["suite"]
    per_question = 4 if config["output_type"] == "multiple_choice" else 1
    model = counting_model(spec, questions * per_question, progress)
    with no_truncation(spec):
        results = simple_evaluate(
            model=model,
            tasks=[ConfigurableTask(config=config)],
            log_samples=True,
            bootstrap_iters=0,  # the gates have statistics of their own
            apply_chat_template=suite.get("form") == "chat",
            confirm_run_unsafe_code=False,
        )
    (samples,) = results["samples"].values()
    if config["output_type"] == "generate_until":
        check_prompts_fit(samples, model, suite["max_tokens"], spec)
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))


def check_prompts_fit(samples: Rows, model: Any, max_tokens: int, spec: dict[str, Any]) -> None:
    """Raise StageError where lm-eval cut a prompt to be generated from, which it does silently."""
    for sample in samples:
        prompt, _ = sample["arguments"][0]
        tokens = len(model.tok_encode(prompt))
        if tokens + max_tokens >= spec["max_length"]:  # lm-eval keeps one token back
            raise too_long(
                f"the prompt of question {sample['doc_id']} has {tokens} tokens, and the answer "
                f"may have {max_tokens}",
                spec,
            )


def too_long(what: str, spec: dict[str, Any]) -> StageError:
    """The error of a prompt that does not fit."""
    return StageError(
        f"{what}; together they may have {spec['max_length']} tokens",
        where=spec["questions"],
        cure="raise max-model-len in the profile, or lower shots or max_tokens in the policy",
    )


@contextmanager
def no_truncation(spec: dict[str, Any]) -> Iterator[None]:
    """Raise StageError where lm-eval would cut a prompt that is too long, and only log it."""
    cut: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "truncat" in record.getMessage().lower():
                cut.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("lm_eval")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
    if cut:
        raise too_long(f"{len(cut)} prompts were cut: {cut[0]}", spec)


def counting_model(spec: dict[str, Any], total: int, progress: Progress) -> Any:
    """lm-eval's own client of a completions endpoint, which also tells how far it is."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    suite = spec["suite"]

    class CountingCompletions(LocalCompletionsAPI):  # type: ignore[misc]
        answered = 0

        async def amodel_call(self, *args: Any, **kwargs: Any) -> Any:
            answers = await super().amodel_call(*args, **kwargs)
            self.answered += len(answers)
            progress.advance(suite["kind"], self.answered, total, "requests")
            return answers

    return CountingCompletions(
        model=SERVED_NAME,
        base_url=f"{spec['url']}/v1/completions",
        tokenizer_backend="huggingface",
        tokenizer=spec["tokenizer"],
        trust_remote_code=spec["trust_remote_code"],
        num_concurrent=max(2, suite["concurrency"]),  # below 2 lm-eval takes another way
        max_length=spec["max_length"],
        timeout=REQUEST_TIMEOUT_SECONDS,
        max_retries=2,
    )


RowsOf = Callable[[Rows, Rows, dict[str, Any], Progress], Rows]
Suite = tuple[dict[str, Any], RowsOf, str]


def mmlu_suite(spec: dict[str, Any]) -> Suite:
    """MMLU's task, its rows, and its metric: by length-normalised likelihood for cloze answers."""
    form = spec["suite"]["form"]
    metric = "acc" if form == "letter" else "acc_norm"

    def rows_of(questions: Rows, samples: Rows, suite: dict[str, Any], progress: Progress) -> Rows:
        return [
            {
                **common(question, sample),
                "answer": [float(response[0]) for response in sample["filtered_resps"]],
                "score": float(sample[metric]),
                "subject": question["subject"],
            }
            for question, sample in zip(questions, samples, strict=True)
        ]

    return mmlu.task_config(Path(spec["questions"]), form), rows_of, metric


def rouge_suite(spec: dict[str, Any]) -> Suite:
    """The summaries' task, its rows, and the policy's metric."""
    suite = spec["suite"]
    metric = str(suite["metric"])

    def rows_of(questions: Rows, samples: Rows, suite: dict[str, Any], progress: Progress) -> Rows:
        return [
            {
                **common(question, sample),
                "answer": answered(sample),
                "score": float(sample[metric]),
                **{name: float(sample[name]) for name in rouge.METRICS},
            }
            for question, sample in zip(questions, samples, strict=True)
        ]

    config = rouge.task_config(Path(spec["questions"]), suite["form"], suite["max_tokens"])
    return config, rows_of, metric


def humaneval_suite(spec: dict[str, Any]) -> Suite:
    """HumanEval's task; its rows come from running the programs."""
    suite = spec["suite"]
    config = {
        "task": "humaneval",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": spec["questions"]}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{request}}",
        "doc_to_target": "",
        "generation_kwargs": {
            "until": humaneval.STOPS[suite["form"]],
            "max_gen_toks": suite["max_tokens"],
            "do_sample": False,
            "temperature": 0.0,
        },
        "num_fewshot": 0,
        # Scores come from running the programs afterwards.
        "process_results": lambda document, answers: {"answered": 1.0},
        "metric_list": [{"metric": "answered", "aggregation": "mean", "higher_is_better": True}],
    }
    return config, humaneval_rows, "pass@1"


def humaneval_rows(
    questions: Rows, samples: Rows, suite: dict[str, Any], progress: Progress
) -> Rows:
    """Run every answer against its problem's tests."""
    fields = humaneval.Problem._fields
    problems = [humaneval.Problem(*(question[f] for f in fields)) for question in questions]
    codes = [
        humaneval.extract_code(answered(sample), p.prompt, p.entry_point, suite["form"])
        for p, sample in zip(problems, samples, strict=True)
    ]
    executions = run_many(
        [humaneval.program(p, code) for p, code in zip(problems, codes, strict=True)],
        seconds=suite["seconds_per_problem"],
        memory_bytes=suite["memory_mb_per_problem"] * 2**20,
        progress=progress,
    )
    return [
        {
            **common(question, sample),
            "answer": answered(sample),
            "score": humaneval.pass_at_k(1, int(execution.passed), 1),
            "code": code,
            "outcome": execution.outcome,
            "detail": execution.detail,
        }
        for question, sample, code, execution in zip(
            questions, samples, codes, executions, strict=True
        )
    ]


SUITES: dict[str, Callable[[dict[str, Any]], Suite]] = {
    "mmlu": mmlu_suite,
    "humaneval": humaneval_suite,
    "rouge": rouge_suite,
}


def common(question: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """What every row has: the question's id, and the digest of all that was sent for it."""
    sent = json.dumps(sample["arguments"], sort_keys=True, default=str)
    return {"id": question["id"], "prompt_sha256": hashlib.sha256(sent.encode()).hexdigest()}


def answered(sample: dict[str, Any]) -> str:
    """The one generated text; raises StageError where the server gave none."""
    text = sample["filtered_resps"][0]
    if not isinstance(text, str) or text == NO_ANSWER:
        raise StageError(
            f"the server gave no answer to question {sample['doc_id']}",
            cure="read the server's log",
        )
    return text


if __name__ == "__main__":
    from pipeline.workers.protocol import main

    main(run)
