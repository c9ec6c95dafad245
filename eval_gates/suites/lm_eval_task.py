"""One lm-eval task as a suite: found, laid out, and opened again.

Laying out stores its questions, used splits, YAML files and modules. Later changes of the Hub or
the user's files have no effect.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from eval_gates.clusters import shared_text
from eval_gates.rows import Question
from eval_gates.suites.generation import sampling_settings, thinking_settings
from eval_gates.suites.ifeval_checkers import load_checkers
from eval_gates.suites.lm_eval_dataset import save_dataset, used_splits
from eval_gates.suites.lm_eval_files import localize, read_task_file
from eval_gates.suites.lm_eval_metrics import Metric, choose_metric, score_of
from eval_gates.suites.lm_rows import CHOSEN, GENERATED, LmRows, digest_of
from pipeline.core.errors import EvaluationDataError
from recipes.generation import Generation

DATASET, CODE, PLACE = "dataset", "task", "task.json"
ASKED, FIELDS = "asked_sha256", "fields"  # keys of a row; the latter only where clusters are wanted
_LENGTH_KEYS = ("max_gen_toks", "max_tokens", "max_new_tokens")
DEFAULT_TOKENS = 256  # of an answer, where neither the policy nor the task says
_UNLIKELY = -1e3  # log-likelihood of a choice that is not taken
_GROUP_KEYS = ("group", "group_alias", "task", "tag", "aggregate_metric_list", "metadata")
_COMBINING_FILTERS = {"majority_vote", "take_first_k"}
Place = dict[str, Any]
"""Where a task's YAML file is, and what its group changes of it."""


class LoadedTask(NamedTuple):
    """Tasks that a suite consists of, by name, and their common metric."""

    members: dict[str, LmRows]
    metric: Metric
    samples: int  # answers for each question

    def find(self, question: Question) -> tuple[LmRows, dict[str, Any]]:
        """Return a question's task and document.

        Raises:
            EvaluationDataError: the document is not the one that was laid out.
        """
        rows = self.members[question.data["member"]]
        number = question.data["doc_index"]
        document = rows.documents[number] if number < len(rows.documents) else {}
        if digest_of(document) != question.data["doc_sha256"]:
            raise EvaluationDataError(
                f"document {number} of the task is not the one that was laid out",
                where=f"question {question.id}",
                hint="its processing is not repeatable; choose another task, or fix its "
                "process_docs",
            )
        return rows, document


class PreparedQuestions(NamedTuple):
    """A task's documents as questions, and facts for the record."""

    questions: list[Question]
    facts: dict[str, Any]


def lay_out(
    suite: dict[str, Any], file: Path | None, revision: str | None, folder: Path
) -> PreparedQuestions:
    """Write what the task needs into a folder, and list its documents.

    Args:
        suite: keys of the policy.
        file: the task's YAML file, unless it is one of lm-eval's.
        revision: of the Hub's dataset; the newest when None.
        folder: existing; gets `dataset/`, `task.json`, and `task/` for a task in a file.

    Raises:
        EvaluationDataError: the task is missing, runs code, or has no usable metric or
            data.
    """
    members: list[Place] = (
        list(_find_installed(suite["task"])) if file is None else [{"file": _copy(file, folder)}]
    )
    (folder / PLACE).write_text(json.dumps(members))
    configs = _configs(folder, suite)
    _shared_metric(configs, suite)
    revisions = []
    for config in configs:
        local = localize(config, file.resolve().parent) if file else config
        target = folder / DATASET / _dataset_key(config)
        if not target.exists():
            revisions.append(save_dataset(local, revision, target))
    opened = open_task(suite, folder)
    questions, choices = [], {}
    for name, rows in opened.members.items():
        for n, document in enumerate(rows.documents):
            data = {
                "member": name,
                "doc_index": n,
                "doc_sha256": digest_of(document),
                ASKED: asked_digest(rows.task, document),
                **({FIELDS: dict(document)} if suite.get("cluster_by") else {}),
            }
            questions.append(Question(f"{name}/{n}", group=name, data=data))
            if rows.output_type == CHOSEN:
                choices[f"{name}/{n}"] = scored_choices(rows, opened.metric, document)
    shared = [shared_text(rows.documents) for rows in opened.members.values()]
    facts = {
        "task": configs[0]["task"] if len(configs) == 1 else suite["task"],
        "metric": opened.metric.label,
        "output_type": configs[0]["output_type"],
        "revision": revisions[0],
        "choices": choices,
        "shared_text": next(filter(None, shared), None),
    }
    return PreparedQuestions(questions, facts)


def asked_digest(task: Any, document: dict[str, Any]) -> str:
    """Return a digest of a document's prompt, which is the same for copies."""
    choices = task.OUTPUT_TYPE == "multiple_choice"
    # What is scored as a text to follow belongs to the question; a reference does not.
    is_asked = task.multiple_input or task.OUTPUT_TYPE not in ("multiple_choice", "generate_until")
    return digest_of(
        {
            "text": task.doc_to_text(document),
            "choices": task.doc_to_choice(document) if choices else None,
            "target": task.doc_to_target(document) if is_asked else None,
        }
    )


def scored_choices(
    rows: LmRows, metric: Metric, document: dict[str, Any]
) -> list[tuple[str, float]]:
    """Return each choice of a document, and the score for choosing it with certainty."""
    texts = [str(text) for text in rows.task.doc_to_choice(document)]
    found = []
    for taken, text in enumerate(texts):
        sure = [(0.0, True) if n == taken else (_UNLIKELY, False) for n in range(len(texts))]
        # What mutual information is taken of, besides: each choice's likelihood without a question.
        alone = [(0.0, False)] * len(texts) if metric.name == "acc_mutual_info" else []
        scores = rows.score_values(document, sure + alone)
        found.append((text, score_of(scores.get(metric.name), metric, text)))
    return found


def open_task(suite: dict[str, Any], folder: Path) -> LoadedTask:
    """Return the tasks that were laid out in the folder."""
    from datasets import load_from_disk

    configs = _configs(folder, suite)
    metric = _shared_metric(configs, suite)
    loaded: dict[str, Any] = {}
    members = {}
    for config in configs:
        key = _dataset_key(config)
        if key not in loaded:
            loaded[key] = dict(load_from_disk(str(folder / DATASET / key), keep_in_memory=True))
        members[config["task"]] = _open_member(config, metric, loaded[key])
    return LoadedTask(members, metric, _samples(configs[0], suite))


def _open_member(config: dict[str, Any], metric: Metric, splits: dict[str, Any]) -> LmRows:
    if config.get("filter_list"):
        config["filter_list"] = [
            entry for entry in config["filter_list"] if entry["name"] == metric.filter
        ]
        functions = {part["function"] for part in config["filter_list"][0]["filter"]}
        if combined := functions & _COMBINING_FILTERS:
            raise EvaluationDataError(
                f"the filter '{metric.filter}' makes one answer of several ({', '.join(combined)})",
                where=f"lm-eval task {config['task']}",
                hint="name a filter of single answers: 'metric: METRIC,FILTER' in the policy",
            )
    return LmRows({**config, "repeats": 1}, splits)


def _samples(config: dict[str, Any], suite: dict[str, Any]) -> int:
    """Return the answers for each question: the policy's, or the task's own repeats."""
    if config["output_type"] != GENERATED:
        return 1
    samples = int(suite["samples"] if suite["samples"] > 1 else config.get("repeats") or 1)
    if samples > 1 and not config["generation_kwargs"].get("do_sample"):
        raise EvaluationDataError(
            f"the task asks every question {samples} times, and its answers are greedy",
            where=f"lm-eval task {config['task']}, key repeats",
            hint="add 'sampling', such as {temperature: 0.7}, to the suite in the policy",
        )
    return samples


def _dataset_key(config: dict[str, Any]) -> str:
    """Return the name of a dataset's folder, which members may share."""
    keys = ("dataset_path", "dataset_name", "dataset_kwargs")
    found = {key: config.get(key) for key in keys}
    return digest_of({**found, "splits": used_splits(config)})[:16]


def _shared_metric(configs: Sequence[dict[str, Any]], suite: dict[str, Any]) -> Metric:
    """Return the one metric of all members; EvaluationDataError if they have none in common."""
    metrics = [_metric_of(config, suite) for config in configs]
    types = {config["output_type"] for config in configs}
    if len(set(metrics)) == len(types) == 1:
        return metrics[0]
    labels = {metric.label: config["task"] for metric, config in zip(metrics, configs, strict=True)}
    listed = "; ".join(f"{task} has {label}" for label, task in labels.items())
    kinds = f" ({', '.join(sorted(types))})" if len(types) > 1 else ""
    raise EvaluationDataError(
        f"the members of the group are scored differently{kinds}: {listed}",
        where=f"lm-eval task {suite['task']}",
        hint="set 'metric' to one that all have, or make a suite of each member",
    )


def _find_installed(name: str) -> Iterator[Place]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager()  # reads all of lm-eval's YAML files: some seconds
    if name not in manager.task_index:
        close = get_close_matches(name, manager.all_subtasks, n=5)
        raise EvaluationDataError(
            f"lm-eval knows no task '{name}'",
            where="policy key 'task'",
            hint=f"did you mean {', '.join(close)}?" if close else "see lm-eval's list of tasks",
        )
    found = {str(place): place for place in _members(manager.task_index, name, {})}
    return iter(found.values())


def _members(index: Any, name: str, overrides: dict[str, Any]) -> Iterator[Place]:
    """Yield a task, or the members of a group or tag, with what the group changes of them."""
    from lm_eval import tasks

    entry = index.get(name)
    if entry is None:
        raise EvaluationDataError(
            f"the group defines its member '{name}' itself, which cannot be a gate",
            where="policy key 'task'",
            hint="choose another group, or make a suite of each member",
        )
    if entry.kind.name == "TAG":
        for member in sorted(entry.tags):
            yield from _members(index, member, overrides)
    elif entry.kind.name == "GROUP":
        own = {key: value for key, value in entry.cfg.items() if key not in _GROUP_KEYS}
        for item in entry.cfg.get("task", []):
            changes = {} if isinstance(item, str) else dict(item)
            member = item if isinstance(item, str) else changes.pop("task", "")
            yield from _members(
                index, str(changes.pop("group", member)), {**own, **overrides, **changes}
            )
    else:
        path = Path(entry.yaml_path).relative_to(Path(tasks.__file__).parent)
        yield {"installed": str(path), "overrides": overrides}


def _copy(file: Path, folder: Path) -> str:
    found = read_task_file(file)
    root = Path(os.path.commonpath([path.parent for path in found.code]))
    for path in found.code:
        copy = folder / CODE / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return str(Path(CODE) / found.path.relative_to(root))


def _configs(folder: Path, suite: dict[str, Any]) -> list[dict[str, Any]]:
    places = json.loads((folder / PLACE).read_text())
    return [_config(folder, suite, place) for place in places]


def _config(folder: Path, suite: dict[str, Any], place: Place) -> dict[str, Any]:
    from lm_eval import tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    if "file" in place:
        path = folder / place["file"]
    else:
        path = Path(tasks.__file__).parent / place["installed"]
    _refuse(load_yaml(path, resolve_func=False))  # before its code is run
    try:
        if "ifeval" in path.stem:
            load_checkers()  # or lm-eval would download a part of them
        with _leave_no_bytecode():  # next to a module in the store
            config: dict[str, Any] = load_yaml(path)
    except Exception as error:  # the task's own modules may raise anything
        raise EvaluationDataError(
            f"the task's own code cannot be loaded: {type(error).__name__}: {error}",
            where=str(path),
            hint="check the modules that it names with !function, and what they import",
        ) from error
    config |= place.get("overrides", {})
    for key in ("tag", "group", "task_list"):  # lm-eval's own way of telling task from structure
        config.pop(key, None)
    config.setdefault("output_type", "generate_until")
    if suite["num_fewshot"] is not None:
        _set_shots(config, suite["num_fewshot"])
    if config["output_type"] == "generate_until":
        asked = {key: suite[key] for key in Generation.model_fields}
        config["generation_kwargs"] = _generation(config, Generation.model_validate(asked))
    return config


@contextmanager
def _leave_no_bytecode() -> Iterator[None]:
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _refuse(config: dict[str, Any]) -> None:
    reasons = {
        "it runs code that a model wrote; 'humaneval' and 'mbpp' do so in a sandbox": config.get(
            "unsafe_code"
        ),
        "it is written as a Python class, whose documents cannot be fixed": "class" in config,
        "it shows pictures or plays sounds": config.get("doc_to_image")
        or config.get("doc_to_audio"),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise EvaluationDataError(
                f"the task cannot be a gate: {reason}",
                where=f"lm-eval task {config.get('task')}",
                hint="choose another task",
            )


def _set_shots(config: dict[str, Any], shots: int) -> None:
    if shots and config.get("num_fewshot") == 0:
        raise EvaluationDataError(
            f"{shots} worked examples were asked, but the task itself fixes none",
            where=f"lm-eval task {config['task']}, num_fewshot: 0",
            hint="remove 'num_fewshot' from the policy",
        )
    config["num_fewshot"] = shots
    others = (config.get(f"{name}_split") for name in ("fewshot", "training", "validation"))
    if shots and not config.get("fewshot_config") and not any(others):
        # Said so, lm-eval never shows a question among its own examples.
        config["fewshot_split"] = config["test_split"]


def _generation(config: dict[str, Any], asked: Generation) -> dict[str, Any]:
    given = dict(config.get("generation_kwargs") or sampling_settings("greedy"))
    own = [given.pop(key) for key in _LENGTH_KEYS if key in given]
    given["max_gen_toks"] = asked.max_tokens or (own or [DEFAULT_TOKENS])[0]
    given.setdefault("until", [config.get("fewshot_delimiter", "\n\n")])
    # A task that says nothing of sampling is greedy.
    drawn = {} if asked.sampling == "greedy" else sampling_settings(asked.sampling)
    return {**given, **drawn, **thinking_settings(asked.thinking)}


def _metric_of(config: dict[str, Any], suite: dict[str, Any]) -> Metric:
    from lm_eval.api import registry

    entries = config.get("metric_list") or [
        {"metric": name} for name in registry.DEFAULT_METRIC_REGISTRY[config["output_type"]]
    ]
    metrics = []
    for entry in entries:
        name = entry["metric"] if isinstance(entry["metric"], str) else entry["metric"].__name__
        way = entry.get("aggregation") or registry.get_metric_aggregation(name)
        way = way if isinstance(way, str) else getattr(way, "__name__", str(way))
        higher = entry.get("higher_is_better")
        higher = registry.is_higher_better(name) if higher is None else bool(higher)
        metrics.append(Metric(name, way, higher, needs_hub=bool(entry.get("hf_evaluate"))))
    filters = [str(entry["name"]) for entry in config.get("filter_list") or []]
    return choose_metric(config["task"], metrics, filters, suite["metric"])
