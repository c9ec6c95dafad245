"""IFEval (Zhou et al. 2023): 541 prompts with instructions that a program can check.

Prompts and scores are those of lm-eval's task `ifeval`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.ifeval_checkers import check_instructions, load_checkers
from eval_gates.suites.json_lines import text_of
from eval_gates.suites.presets import HubSuite, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from pipeline.core.errors import EvaluationDataError
from recipes.generation import MaxTokens

METRICS = {
    "prompt_strict": "prompt_level_strict_acc",
    "prompt_loose": "prompt_level_loose_acc",
    "inst_strict": "inst_level_strict_acc",
    "inst_loose": "inst_level_loose_acc",
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


class Ifeval(PresetKind[IfevalTask]):
    """The suite `ifeval`."""

    task, policy = IfevalTask, IfevalSuite
    folder_stem = "ifeval"
    hub = HubQuestions(
        QuestionSource(kind="hub", id="google/IFEval", config="default", split="train"), 541
    )
    benchmark = hub.benchmark("IFEval")
    assumed_baseline = 0.7

    def document(self, row: Row, place: str) -> Row:
        fields = (
            "each line needs prompt, instruction_id_list (names) and kwargs (one object for each "
            "name), as google/IFEval has them"
        )
        names, given = row.get("instruction_id_list"), row.get("kwargs")
        problem = ""
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            problem = "'instruction_id_list' is not a list of names"
        elif not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            problem = "'kwargs' is not a list of objects"
        elif len(given) != len(names):
            problem = f"'kwargs' has {len(given)} entries for {len(names)} instructions"
        if problem:
            raise EvaluationDataError(problem, where=place, hint=fields)
        return {
            "key": row.get("key", 0),
            "prompt": text_of(row, "prompt", place, fields),
            "instruction_id_list": names,
            "kwargs": given,
        }

    def check(self, document: Row, place: str) -> None:
        check_instructions(document["instruction_id_list"], document["kwargs"], place)

    def prepare_scoring(self, task: IfevalTask) -> None:
        load_checkers()  # before lm-eval imports them with a download

    def task_file(self, task: IfevalTask, group: str) -> str:
        load_checkers()
        return "ifeval/ifeval.yaml"

    def sample(self, group: str) -> Row:
        return {
            "key": 0,
            "prompt": "Write.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        }

    def value(self, task: IfevalTask, results: dict[str, Any]) -> float:
        found = results[METRICS[task.metric]]
        return sum(found) / len(found) if isinstance(found, list) else float(found)

    def metric(self, task: IfevalTask, laid_out: str | None) -> str:
        return METRICS[task.metric]

    def typical_change(self, task: IfevalTask) -> float:
        # A prompt has one to three instructions.
        return 0.7 if task.metric.startswith("inst") else super().typical_change(task)

    def expected(self, document: Row) -> str:
        return "\n".join(document["instruction_id_list"])
