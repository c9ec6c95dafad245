"""IFEval (Zhou et al. 2023): prompts with instructions that a program can check, as lm-eval's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.presets import HubSuite, Preset, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from recipes.generation import MaxTokens

METRICS = {
    f"{of}_{how}": f"{of}_level_{how}_acc"
    for of in ("prompt", "inst")
    for how in ("strict", "loose")
}
"""lm-eval's name of each metric of IFEval."""


class IfevalTask(GeneratingTask):
    """Prompts with instructions."""

    kind: Literal["ifeval"] = "ifeval"
    metric: Literal["prompt_strict", "prompt_loose", "inst_strict", "inst_loose"] = Field(
        "prompt_strict",
        description="prompt: all of a prompt's instructions are followed. inst: the share of them. "
        "loose: also without the first or last line, or without asterisks",
    )
    max_tokens: MaxTokens = 1280


class IfevalSuite(IfevalTask, HubSuite):
    """Instructions such as 'no commas', checked by lm-eval's own checkers."""


class Ifeval(PresetKind):
    """The suite `ifeval`."""

    task, policy = IfevalTask, IfevalSuite

    folder_stem = "ifeval"
    preset = Preset(
        "IFEval",
        "ifeval/ifeval.yaml",
        "ifeval/ifeval.yaml",
        "each line needs prompt, instruction_id_list (names) and kwargs (one object for each "
        "name), as google/IFEval has them",
        {"key": 0, "prompt": "?", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    )
    hub = HubQuestions(
        QuestionSource(kind="hub", id="google/IFEval", config="default", split="train"), 541
    )
    benchmark = hub.benchmark("IFEval")

    def read(self, row: Row, text: Callable[[str], str]) -> Row:
        names, given = row.get("instruction_id_list"), row.get("kwargs")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            raise ValueError("'instruction_id_list' is not a list of names")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise ValueError("'kwargs' is not a list of objects")
        if len(given) != len(names):
            raise ValueError(f"'kwargs' has {len(given)} entries for {len(names)} instructions")
        found = {"prompt": text("prompt"), "instruction_id_list": names, "kwargs": given}
        return {"key": row.get("key", 0), **found}

    def expected(self, document: Row) -> str:
        return "\n".join(document["instruction_id_list"])

    def value(self, task: IfevalTask, results: dict[str, Any]) -> float:
        found = results[METRICS[task.metric]]
        return sum(found) / len(found) if isinstance(found, list) else float(found)

    def metric(self, task: IfevalTask, laid_out: str | None) -> str:
        return METRICS[task.metric]

    def typical_change(self, task: IfevalTask) -> float:
        # A prompt has one to three instructions.
        return 0.7 if task.metric.startswith("inst") else super().typical_change(task)
