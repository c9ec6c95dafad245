"""Stages in this process, with models whose every answer a test decides.

What is pretended is what needs other environments: quantizing, serving, asking. Evaluating (the
answer log, when to stop), judging and everything between stages are the real code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from listener import Listener
from measured_loads import load_in_waves
from small_checkpoint import checkpoint_files, safetensors, write_files

from eval_gates.answer_log import AnswerLog
from eval_gates.ask import UnansweredError
from eval_gates.evaluate_worker import ask_until_over
from eval_gates.rows import COUNTS, Answer
from eval_gates.speed.load_run import LoadLog
from eval_gates.speed.speed_worker import measure_loads
from eval_gates.stopping import PLAN
from eval_gates.suites.json_lines import read_rows, write_rows
from pipeline.plan.plan import Arm
from pipeline.run.run import Run
from pipeline.run.servers import BlockServers, Servers
from pipeline.stages import stage_code
from pipeline.stages.check_weights import CHECK_WEIGHTS, account_variant
from pipeline.stages.context import StageContext
from prepare.digest import digest_bytes, digest_json
from prepare.errors import ServingError, StageError
from prepare.private_files import write_atomically
from prepare.stage import StageRecord, StageSpec
from prepare.store import RECORD, Store
from recipes.checkpoints.weight_files import digest_auxiliary_files

Rows = list[dict[str, Any]]
Score = Callable[[str, str, int], float]
"""(variant, suite, number of the question in file order) to a score."""
SAYS = {"role": "user"}
DRAFTED = {"drafts": 100, "draft_tokens": 400, "accepted_tokens": 130}


@dataclass
class PretendModels:
    """What the models answer, and what they were asked.

    Args:
        score: of each answer.
        questions: how many each suite has.
        broken: variants whose server does not come up.
        babbling: variants that do not speak.
        silent: variants whose answers are empty.
        unquantizable: variants whose quantization fails.
        engine_version: as the engine tells it.
        asked: (variant, suite, questions asked) of each worker's life.
        served: variants, in the order in which their servers were opened.
        seconds: that a request takes under load, by variant; 1 where it is not said.
        weights: name of the one tensor that quantizing leaves.
    """

    score: Score
    questions: int = 400
    broken: set[str] = field(default_factory=set)
    babbling: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    unquantizable: set[str] = field(default_factory=set)
    engine_version: str = "0.33.0"
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    weights: str = "weight"
    nats: dict[str, float] = field(default_factory=dict)  # a token, of every answer, by variant
    private: str = ""  # text of every conversation and answer

    # --- as models ------------------------------------------------------------------------------

    def questions_of(self, suite: str) -> Rows:
        """Rows of questions.jsonl, in the order of asking."""
        rows: Rows = [{"id": str(number), "group": "anatomy"} for number in range(self.questions)]
        random.Random(1).shuffle(rows)  # as the real stage lays them out
        return rows

    def guessing_of(self, suite: str) -> float:
        """What guessing scores."""
        return 0.25 if suite == "mmlu" else 0.0

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        """What a suite's worker keeps of an answer, in addition to the question's id."""
        score = self.score(variant, suite, int(question["id"]))
        if variant in self.silent:
            unread = dict.fromkeys(COUNTS, 0)
            return {"answer": "", "tokens": [0], "score": 0.0, **unread}
        nats: dict[str, Any] = {"nats": self.nats[variant]} if variant in self.nats else {}
        if self.private:
            flip = {"start": 0, "token": self.private[:4], "choice": "other"}
            nats |= {"text": self.private, "prompt_ids": [7, 8, 9], "flip": flip}
            nats |= {"first_flip": 0, "margin": 0.5} if variant != "baseline" else {}
        return {"answer": f"x {question['id']}", "score": score, "group": question["group"], **nats}

    def layers(self) -> Rows:
        """Rows of layers.jsonl."""
        return [{"layer": 0}]

    # --- as endpoints ---------------------------------------------------------------------------

    kernels: dict[str, str] = field(default_factory=dict)  # as the log names them
    open_now: set[str] = field(default_factory=set)
    most_open: int = 0
    died: set[str] = field(default_factory=set)  # servers that have ended by themselves
    looks: int = 0
    dies_at_look: int | None = None
    loads: int = 0
    dies_at_load: int | None = None
    dies_under_load: set[str] = field(default_factory=set)
    dies_once: set[str] = field(default_factory=set)
    is_lost: Callable[[str, str], bool] = lambda variant, when: False
    """(variant, 'start', 'ask' or 'load'): whether its server fails then."""
    disturbed_loads: int = 0  # from the first one on

    def open(self, name: str) -> dict[str, Any]:
        """Bring the arm's pretended server up."""
        if name in self.broken or self.is_lost(name, "start"):
            raise ServingError(f"the server of {name} does not come up")
        self.open_now.add(name)
        self.most_open = max(self.most_open, len(self.open_now))
        self.served.append(name)
        return {"url": "http://127.0.0.1:1", "model": "model", "server": {"ready_seconds": 1.0}}

    def check_alive(self, name: str) -> None:
        """It is, unless the test says that it died after so many looks."""
        self.looks += 1
        if self.dies_at_look == self.looks or name in self.died:
            self.died.discard(name)
            raise ServingError("the model server ended with exit code 9")


class PretendRun(Run):
    """A run that carries out stages with the pretended models, in this process."""

    models: PretendModels

    def python_of(self, environment: str) -> Path:
        """No environment is built."""
        return Path("python")

    def try_worker(self, _: StageSpec, asked: dict[str, Any], *__: Any) -> None:
        """Compare no prompts: tests/unit/eval_gates/test_recorded_prompts.py does."""
        for suite in asked.get("recorded_prompts", ()):
            assert Path(suite["tokenizer"]).is_dir()  # the worker opens it

    def execute_stage(self, spec: StageSpec, servers: BlockServers | None = None) -> bool:
        """Pretend what needs an environment; all else is the stage's own code."""
        run_stage(spec, self.store, self.models, servers)
        return True


class PretendServers(Servers):
    """Servers of pretended models; starts, resources and failures are the real code's."""

    def __init__(self, run: PretendRun) -> None:
        super().__init__(run)
        self.models = run.models

    def start_process(self, arm: Arm) -> dict[str, Any]:
        """Open the model."""
        return self.models.open(arm.recipe.name)

    def check_process(self, name: str) -> None:
        """Ask the model."""
        self.models.check_alive(name)

    def stop_process(self, name: str) -> None:
        """Close the model."""
        self.models.open_now.discard(name)


class PretendContext(StageContext[Any, Any]):
    """A stage's context whose evaluate worker asks the pretended models."""

    models: PretendModels

    def run_worker(
        self, worker: str, worker_spec: dict[str, Any], *, output: Path | None = None, **_: Any
    ) -> dict[str, Any]:
        """Ask as the real worker does, without lm-eval."""
        if worker == "eval_gates.speed.speed_worker":
            return self.put_under_load(json.loads(json.dumps(worker_spec)))
        assert worker == "eval_gates.evaluate_worker"
        suite, variant = self.spec.runtime["suite"].partition(",")[0], self.spec.variant
        assert variant in self.models.open_now
        questions = [row for _, row in read_rows(Path(worker_spec["questions"]))]
        asked = 0

        def ask(batch: range) -> list[Answer]:
            nonlocal asked
            if self.models.is_lost(variant, "ask"):
                raise UnansweredError("the endpoint does not answer a question")
            asked += len(batch)
            return [
                Answer.from_row(
                    {"id": question["id"], "prompt_sha256": f"digest of {question['id']}"}
                    | {key: question[key] for key in ("cluster",) if key in question}
                    | self.models.answer(variant, suite, question)
                )
                for question in (questions[place] for place in batch)
            ]

        ids = [row["id"] for row in questions]
        answer_log = AnswerLog(Path(worker_spec["answer_log"]), ids, writer=1)
        stopping = PLAN.validate_python(worker_spec["stopping"])
        ask_until_over(answer_log, stopping, ask)
        self.models.asked.append((variant, suite, asked))
        drafted = {"spec_decode": DRAFTED} if worker_spec["counters"] else {}
        return {"requests": {}, **drafted}

    def put_under_load(self, worker_spec: dict[str, Any]) -> dict[str, Any]:
        """As the real worker does, with loads that take as long as the models say."""
        models = self.models
        assert models.open_now >= set(worker_spec["endpoints"])

        def measure(at_once: int, arm: str, requests: int, seed: int, at: Any) -> dict[str, Any]:
            models.loads += 1
            is_dead = arm in models.dies_under_load | models.dies_once
            models.dies_once.discard(arm)
            is_dead = is_dead or models.is_lost(arm, "load")
            if is_dead or models.loads == models.dies_at_load:
                raise ServingError("not one of 8 requests was answered")
            seconds = models.seconds.get(arm, 1.0)
            load = load_in_waves(requests // at_once, at_once, seconds=seconds)
            measured = load.model_dump(include={"started", "seconds", "requests"})
            measured["started"] += 60.0 * (models.loads + len(LoadLog(self.folder).loads()))
            power_cap = {"kind": "throttled", "what": "power cap"}
            disturbed = [power_cap] if models.loads <= models.disturbed_loads else []
            told = {"client_lag_s": 0.0, "interference": disturbed}
            return {**measured, "prompts_sha256": f"{seed:064x}", **told}

        measures = [
            partial(measure, load["workload"]["arrivals"]["concurrency"])
            for load in worker_spec["loads"]
        ]
        measure_loads(worker_spec, measures, self.progress, self.folder)
        return {"prompts_drawn_by": "vllm 0.32.0"}


def run_stage(
    spec: StageSpec, store: Store, models: PretendModels, servers: BlockServers | None = None
) -> None:
    """Run one stage into the store."""
    resumed = getattr(stage_code(spec.stage), "RESUMED", ())
    with store.open_for_writing(spec.stage, spec.key, resumed) as folder:
        assert folder is not None
        context = PretendContext(spec, folder, store, Listener())
        context.models, context.servers = models, servers
        result = result_of(context, models)
        record = StageRecord(
            **spec.model_dump(include={"stage", "variant", "key", "parameters", "inputs"}),
            input_digests=context.input_digests(),
            result=result,
            notes=context.notes,
            seconds=0.1,
            finished="2026-11-21T10:00:00+00:00",
        )
        write_atomically(folder / RECORD, record.model_dump_json())


def result_of(context: PretendContext, models: PretendModels) -> dict[str, Any]:
    """What the stage finds: pretended, or by its own code."""
    stage, variant = context.spec.stage, context.spec.variant
    if stage in ("adopt", "evaluate", "speed", "block", "judge", "recorded", "recall"):
        return stage_code(stage).run(context).model_dump(mode="json")
    if stage == "questions":
        rows = models.questions_of(variant)
        write_rows(context.folder / "questions.jsonl", rows)
        if models.private:
            chats = [
                {"id": row["id"], "messages": [SAYS | {"content": models.private}]} for row in rows
            ]
            write_rows(context.folder / "conversations.jsonl", chats)
        content = (context.folder / "questions.jsonl").read_bytes()
        guessing = models.guessing_of(variant)
        digest = digest_bytes(content)
        labels = {row["cluster"] for row in rows if "cluster" in row}
        clusters = {"clusters": len(labels)} if labels else {}
        found = {"questions": len(rows), "questions_digest": digest, "guessing": guessing}
        return found | clusters
    if stage == "quantize" and variant in models.unquantizable:
        raise StageError(f"{variant} cannot be quantized")
    if stage == "quantize":
        return quantized(context.output_folder(), variant, models.weights)
    if stage == "check_weights" and context.spec.runtime.get("archive"):
        return stage_code(stage).run(context).model_dump(mode="json")
    if stage == "check_weights":
        write_rows(context.folder / "layers.jsonl", models.layers())
        weights = context.input_record("weights")
        made, output = weights.result, context.input_folder("weights") / "output"
        is_linked = weights.stage == "adopt" and not weights.parameters.get("copied")
        if weights.parameters.get("copied"):
            check_headers(context, output)
        return {name: made[name] for name in ("weights_digest", "weights_bytes")} | {
            "auxiliary_files_digest": None if is_linked else digest_auxiliary_files(output),
            "size_ratio": 0.5,
            "sqnr": {"median_db": 31.0, "floor_db": 25.0},
        }
    assert stage == "sanity"
    babbles = "it babbles" * (variant in models.babbling)
    return {
        "nats": 1.0,
        "broken": babbles,
        "engine_version": models.engine_version,
        **({"server": {"ready_seconds": 1.0, **models.kernels}} if models.kernels else {}),
    }


def check_headers(context: PretendContext, output: Path) -> None:
    """Check the files and headers of weights that exist; their numbers are pretended."""
    parameters = CHECK_WEIGHTS.parameters_of(context.spec)
    runtime = CHECK_WEIGHTS.runtime_of(context.spec)
    assert runtime.checkpoint is not None
    account_variant(runtime.checkpoint.path, output, parameters.quantization)


def quantized(output: Path, variant: str, name: str = "weight") -> dict[str, Any]:
    """Write weights that no other variant has, and a checkpoint's other files."""
    weights = safetensors({f"{variant}.{name}": ("BF16", (2, 2))})
    write_files(output, checkpoint_files() | {"model.safetensors": weights})
    return {
        "weights_digest": digest_json([["model.safetensors", digest_bytes(weights)]]),
        "weights_bytes": 1000,
        "quantized_modules": 4,
        "calibration_digest": "c" * 64,
        "versions": {"llmcompressor": "0.14.0.1"},
    }


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
