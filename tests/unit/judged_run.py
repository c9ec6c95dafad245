"""A run whose stages lie in a store as real ones leave them: tiny weights, real verdicts.

What is written by hand is what models and workers would give; judging is the real code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from listener import Listener
from sample_reports import COMMAND, stage_report
from small_checkpoint import checkpoint_files, safetensors, write_files

from artifacts.run_record import RunReport, VariantReport, report_unjudged
from artifacts.selection import correct
from eval_gates.planned_bets import planned_bets_of
from pipeline.checkpoint.folder import inspect_folder
from pipeline.checkpoint.source_facts import CheckpointReport, source_of
from pipeline.core.digest import FileDigests, digest_bytes, digest_json
from pipeline.core.stage_key import stage_spec
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import RECORD, Store, write_atomically
from pipeline.stages.context import execute
from recipes.policy import Policy

RUN = "20261121-100000-000001"
QUESTIONS = 96
SERVING = {
    "engine_arguments": {"dtype": "bfloat16", "enforce-eager": True, "kv-cache-dtype": "fp8"},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}
HARDWARE = {"accelerator": "cpu", "cpu": "AMD EPYC", "cores": 2}


def policy(points: float = 0.1) -> Policy:
    """One suite of own questions, and a load test."""
    suite = {"kind": "humaneval", "margins": {"fp8": points, "int4": points}, "expected_flips": 0.1}
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"code": suite},
            "throughput": {"minimum_ratio": {"cpu": 0.5}},
        }
    )


BETS = planned_bets_of(policy(), "fp8")


@dataclass
class JudgedRun:
    """A store with one finished run.

    Args:
        root: of the store.
        lost: by recipe, how many answers of the variant are wrong where the baseline's are right.
        licence: that the source's card names.
        broken: recipes that got no verdict.
        engine: identity of the serving environment.
        evaluate: identity of the evaluating environment.
        engine_version: as the engine tells it.
        serving: of baseline and variants.
        trust_remote_code: whether they were served with code of the checkpoint's own.
        hardware: that it was judged on.
        planned: whether half of a stake lies on the planned bet, as now; else it is even, as before
            there were such bets.
    """

    root: Path
    lost: dict[str, int] = field(default_factory=lambda: {"fp8-dynamic": 0, "awq-w4a16": 0})
    licence: str = "apache-2.0"
    broken: tuple[str, ...] = ()
    engine: str = "1" * 64
    evaluate: str = "2" * 64
    engine_version: str = "0.33.0"
    serving: dict[str, Any] = field(default_factory=lambda: SERVING)
    trust_remote_code: bool = False
    hardware: dict[str, Any] = field(default_factory=lambda: dict(HARDWARE))
    planned: bool = True

    def __post_init__(self) -> None:
        self.store = Store(self.root)
        self.report = self._make()

    def folder(self, stage: str, variant: str) -> Path:
        """The folder of that variant's stage."""
        for place in sorted((self.root / "stages" / stage).iterdir()):
            record = self.store.find(stage, place.name)
            if record is not None and record.variant == variant:
                return place
        raise AssertionError(f"no {stage} of {variant}")

    def _make(self) -> RunReport:
        source = write_files(self.root.parent / "source", checkpoint_files())
        card = f"---\nlicense: {self.licence}\n---\n# a model\n"
        (source / "README.md").write_text(card)
        self.checkpoint = inspect_folder(
            source,
            ref=str(source),
            kind="folder",
            revision=None,
            digests=FileDigests(self.root.parent / "digests.json"),
        )
        rows = [{"id": str(number)} for number in range(QUESTIONS)]
        content = lines(rows)
        self.questions = self._put(
            "questions",
            "code",
            {"suite": {"kind": "humaneval"}},
            {},
            {
                "questions": QUESTIONS,
                "questions_digest": digest_bytes(content),
                "guessing": 0.0,
            },
            {"questions.jsonl": content},
        )
        baseline = self._side("baseline", 0, {}, {})
        judges, variants = {}, []
        for recipe, lost in self.lost.items():
            weights = self._weights(recipe)
            side = self._side(recipe, lost, {"weights": weights}, baseline)
            judge = self._judge(recipe, baseline, side)
            judges[recipe] = judge
            record = self.store.find("judge", judge.key)
            assert record is not None
            variants.append(
                VariantReport(
                    recipe=recipe,
                    weights_bytes=100,
                    promoted=False,
                    registry_version=None,
                    **record.result,
                )
            )
        variants += [report_unjudged(recipe, "error", "it broke", None) for recipe in self.broken]
        changed = {r.recipe: r for r in correct(variants, 0.05)}
        return RunReport(
            run=RUN,
            kind="model",
            status="finished",
            exit_code=0,
            started="2026-11-21T10:00:00+00:00",
            seconds=60.0,
            command={
                **COMMAND,
                "checkpoint": str(source),
                "recipes": self.tried,
                "asked": {"recipes": ["awq-ladder"]},
            },
            checkpoint=CheckpointReport(
                ref=str(source),
                digest=self.checkpoint.digest,
                source=source_of(str(source), self.checkpoint.digest, self.checkpoint),
            ),
            registered_name="tiny",
            variants=[changed.get(v.recipe, v) for v in variants],
            stages=[
                stage_report(name="judge", variant=recipe, key=spec.key)
                for recipe, spec in judges.items()
            ],
            notes=[],
        )

    def _weights(self, recipe: str) -> StageSpec:
        files = checkpoint_files() | {
            "model.safetensors": safetensors({f"layers.{len(recipe)}.weight": ("BF16", (8, 4))})
        }
        digest = digest_json(
            [["model.safetensors", hashlib.sha256(files["model.safetensors"]).hexdigest()]]
        )
        quantize = self._put(
            "quantize",
            recipe,
            {
                "of": recipe,
                "quantization": {"kind": "preset", "scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]},
                "calibration_data": {},
                "environment": "0" * 64,
            },
            {},
            {
                "weights_digest": digest,
                "weights_bytes": 100,
                "quantized_modules": 4,
                "calibration_digest": "c" * 64,
                "versions": {"llmcompressor": "0.14.0.1"},
            },
            {f"output/{name}": content for name, content in files.items()},
            runtime={"checkpoint": self.checkpoint.model_dump(mode="json")},
        )
        return self._put(
            "check_weights",
            recipe,
            {"of": recipe},
            {"weights": quantize},
            {"weights_digest": digest, "weights_bytes": 100, "size_ratio": 0.5},
            {"layers.jsonl": b'{"layer": 0}\n'},
        )

    def _side(
        self, name: str, lost: int, weights: dict[str, StageSpec], baseline: dict[str, StageSpec]
    ) -> dict[str, StageSpec]:
        served = {
            "checkpoint": self.checkpoint.digest,
            "serving": self.serving,
            "engine": self.engine,
            "hardware": self.hardware,
            "trust_remote_code": self.trust_remote_code,
        }
        coherence = self._put(
            "coherence", name, {**served, "of": name}, weights, {"perplexity": 1.0}
        )
        log = self.root / "runs" / RUN / f"server.{name}.log"
        log.write_text(f"the server of {name}\n")
        after = {**weights, "coherence": coherence}
        scores = [float(n % 2 and not n < 2 * lost) for n in range(QUESTIONS)]
        content = lines(
            [
                {"id": str(n), "prompt_sha256": "d", "answer": "x", "score": score}
                for n, score in enumerate(scores)
            ]
        )
        evaluate = self._put(
            "evaluate",
            name,
            {
                **served,
                "of": name,
                "suite": {"kind": "humaneval", "form": "chat"},
                "environment": self.evaluate,
                "rule": None if name == "baseline" else self._rule(),
            },
            {
                **after,
                "questions": self.questions,
                **({"baseline": baseline["code"]} if baseline else {}),
            },
            {"n": QUESTIONS, "metric": "pass@1", "answers_digest": digest_bytes(content)},
            {"answers.jsonl": content},
        )
        benchmark = self._put(
            "benchmark",
            name,
            {
                **served,
                "of": name,
                "workload": {
                    "requests": 8,
                    "input_tokens": 128,
                    "output_tokens": 32,
                    "concurrency": 4,
                },
            },
            after,
            {
                "output_tokens_per_s": 100.0,
                "ttft_ms_p50": 1.0,
                "tpot_ms_p50": 1.0,
                "itl_ms_p50": 1.0,
                "requests": 8,
                "failed_requests": 0,
                "engine_version": self.engine_version,
            },
            {"requests.json": b'{"ttfts": [0.1]}'},
        )
        return {"code": evaluate, "benchmark": benchmark}

    @property
    def tried(self) -> list[str]:
        """The recipes that the verdicts count."""
        return [*self.lost, *self.broken]

    def _rule(self) -> dict[str, Any]:
        """What ends the asking, as the planner writes it."""
        margin = policy().suites["code"].margins["fp8"].model_dump()
        rule = {"margin": margin, "alpha": 0.05 / len(self.tried), "about": "population"}
        return rule | ({"planned_bet": BETS["code"]} if self.planned else {})

    def _judge(
        self, recipe: str, baseline: dict[str, StageSpec], side: dict[str, StageSpec]
    ) -> StageSpec:
        spec = stage_spec(
            "judge",
            recipe,
            {
                "policy": policy().model_dump(),
                "recipe": recipe,
                "tried": sorted(self.tried),
                "family": "fp8",
                **({"planned_bets": BETS} if self.planned else {}),
                "accelerator": "cpu",
                "throughput_note": "measured on a CPU",
            },
            {
                "baseline.code": baseline["code"],
                "candidate.code": side["code"],
                "questions.code": self.questions,
                "baseline.benchmark": baseline["benchmark"],
                "candidate.benchmark": side["benchmark"],
            },
            {},
            self.root,
        )
        execute(spec, Listener())
        return spec

    def _put(
        self,
        stage: str,
        variant: str,
        parameters: dict[str, Any],
        inputs: dict[str, StageSpec],
        result: dict[str, Any],
        files: dict[str, bytes] | None = None,
        runtime: dict[str, Any] | None = None,
    ) -> StageSpec:
        spec = stage_spec(stage, variant, parameters, inputs, runtime or {}, self.root)
        specs = self.root / "runs" / RUN / "stages"
        specs.mkdir(parents=True, exist_ok=True)
        (specs / f"{variant}.{stage}.{spec.key[:8]}.json").write_text(spec.model_dump_json())
        with self.store.open_for_writing(stage, spec.key) as folder:
            assert folder is not None
            for name, content in (files or {}).items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
            digests = {}
            for role, each in inputs.items():
                record = self.store.find(each.stage, each.key)
                assert record is not None
                digests[role] = digest_json(record.result)
            kept = StageRecord(
                **spec.model_dump(include={"stage", "variant", "key", "parameters", "inputs"}),
                input_digests=digests,
                result=result,
                notes=[],
                seconds=1.0,
                finished="2026-11-21T10:00:00+00:00",
            )
            write_atomically(folder / RECORD, kept.model_dump_json())
        return spec


def lines(rows: list[dict[str, Any]]) -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
