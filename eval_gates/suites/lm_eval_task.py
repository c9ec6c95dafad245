"""One lm-eval task as a suite, in the `evaluate` environment.

Laying out stores everything, so later changes have no effect.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from eval_gates.clusters import shared_text
from eval_gates.rows import PROMPT_DIGEST, Question, digest_document
from eval_gates.suites.generation import sampling_settings, thinking_settings
from eval_gates.suites.json_lines import FIELDS
from eval_gates.suites.lm_eval_files import LOCAL_FORMATS, localize, read_task_file
from eval_gates.suites.lm_rows import CHOSEN, GENERATED, LmRows, load_checkers
from eval_gates.suites.loaded_rows import check_loaded
from prepare.errors import EvaluationDataError, PrepareError, raise_as
from recipes.dataset_commit import check_commit, commit_of, load_from_hub
from recipes.generation import Generation

DATASET = "dataset"
CODE = "task"
PLACE = "task.json"
_LENGTH_KEYS = ("max_gen_toks", "max_tokens", "max_new_tokens")
DEFAULT_TOKENS = 256  # of an answer, where neither the policy nor the task says
_EXAMPLES = ("fewshot", "training", "validation")  # splits with worked examples
_MAX_UNSOLVABLE = 0.01  # of the documents
_UNLIKELY = -1e3  # log-likelihood of a choice that is not taken
_GROUP_KEYS = ("group", "group_alias", "task", "tag", "aggregate_metric_list", "metadata")
_COMBINING_FILTERS = {"majority_vote", "take_first_k"}
NO_FILTER = "none"  # lm-eval's name where a task has no filters
# Per document lm-eval gives these as a pair or as nothing.
_NOT_NUMBERS = frozenset({"likelihood", "bypass", "brier_score", "mcc"})
_SLACK = 1e-9  # of floating-point numbers about 0 and 1
Config = dict[str, Any]


def _error(task: Any, message: str, hint: str, place: str = "") -> EvaluationDataError:
    return EvaluationDataError(message, where=f"lm-eval task {task}{place}", hint=hint)


@contextmanager
def _reading(task: Any, place: str = "") -> Iterator[None]:
    """Convert what lm-eval or the task's own templates raise for a document."""
    try:
        yield
    except PrepareError:
        raise
    except Exception as error:  # templates and functions may raise anything
        raise _error(
            task,
            f"lm-eval cannot ask the task's documents: {type(error).__name__}: {error}"[:500],
            "check that each document has the fields that doc_to_text, doc_to_choice and "
            "doc_to_target name, and that a target is the number of a choice, from 0 on",
            place,
        ) from error


class Metric(NamedTuple):
    """One entry of a task's metric list."""

    name: str  # lm-eval's
    aggregation: str  # lm-eval's name for how documents make one number
    higher_is_better: bool
    filter: str = NO_FILTER  # which of the task's answer filters it is taken after
    needs_hub: bool = False  # whether its code has to be downloaded

    @property
    def usable(self) -> bool:
        """Whether it is a mean of one number per document."""
        return self.aggregation == "mean" and self.name not in _NOT_NUMBERS and not self.needs_hub

    @property
    def label(self) -> str:
        """Name in reports; `1 - x` if lower is better."""
        name = self.name if self.filter == NO_FILTER else f"{self.name},{self.filter}"
        return name if self.higher_is_better else f"1 - {name}"

    def score(self, results: dict[str, Any], question: str) -> float:
        """Return a score in [0, 1], higher better, else EvaluationDataError."""
        value = results.get(self.name)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = float("nan")
        if not isfinite(number) or not -_SLACK <= number <= 1 + _SLACK:
            raise EvaluationDataError(
                f"the metric '{self.name}' is {value!r} here, not a number from 0 to 1",
                where=f"question {question}",
                hint="set 'metric' in the policy to one of the task's that is bounded so, such as "
                "acc or exact_match",
            )
        bounded = min(1.0, max(0.0, number))
        return bounded if self.higher_is_better else 1 - bounded


def choose_metric(
    task: str, metrics: Sequence[Metric], filters: Sequence[str], wanted: str | None
) -> Metric:
    """Return the metric `wanted` (`metric` or `metric,filter`), or the task's first.

    `filters` begin with the default.
    """
    filters = list(filters) or [NO_FILTER]
    name, _, filter_name = (wanted or metrics[0].name).partition(",")
    usable = {metric.name: metric for metric in metrics if metric.usable}
    usable_metric = usable.get(name.strip())
    chosen = filter_name.strip() or filters[0]
    if usable_metric is None or chosen not in filters:
        raise _error(
            task,
            f"the task has no metric '{wanted or name}' that a gate can use",
            f"metrics that are a mean over documents: {', '.join(usable) or 'none'}; filters: "
            f"{', '.join(filters)}",
        )
    return usable_metric._replace(filter=chosen)


class LoadedTask(NamedTuple):
    """Tasks by name, and their metric."""

    members: dict[str, LmRows]
    metric: Metric
    samples: int  # answers for each question

    def find(self, question: Question) -> tuple[LmRows, Config]:
        """Return task and document; EvaluationDataError if it has changed."""
        rows = self.members[question.data["member"]]
        number = question.data["doc_index"]
        document = rows.documents[number] if number < len(rows.documents) else {}
        if digest_document(document) != question.data["doc_sha256"]:
            raise EvaluationDataError(
                f"document {number} of the task is not the one that was laid out",
                where=f"question {question.id}",
                hint="its processing is not repeatable; choose another task, or fix its "
                "process_docs",
            )
        return rows, document


def lay_out(
    suite: Config, file: Path | None, revision: str | None, folder: Path
) -> tuple[list[Question], dict[str, Any]]:
    """Write what the task needs into a folder; return its questions, and facts for the record.

    `file` is a user's YAML file, `revision` the Hub dataset's (None: newest). EvaluationDataError
    for a missing or unusable task.
    """
    members = _find_installed(suite["task"]) if file is None else [{"file": _copy(file, folder)}]
    (folder / PLACE).write_text(json.dumps(members))
    configs = [_config(folder, suite, place) for place in members]
    _shared_metric(configs, suite)
    revisions = []
    for config in configs:
        target = folder / DATASET / _dataset_key(config)
        if not target.exists():
            local = localize(config, file.resolve().parent) if file else config
            revisions.append(save_dataset(local, revision, target))
    opened = open_task(suite, folder)
    reads_fields = bool(suite.get("cluster_by") or suite.get("parts_by"))
    questions = []
    choices = {}
    for name, rows in opened.members.items():
        for n, document in enumerate(rows.documents):
            with _reading(name, f", document {n}"):
                asked = _asked_digest(rows.task, document)
                if rows.output_type == CHOSEN:
                    choices[f"{name}/{n}"] = scored_choices(rows, opened.metric, document)
            data = {
                "member": name,
                "doc_index": n,
                "doc_sha256": digest_document(document),
                PROMPT_DIGEST: asked,
                **({FIELDS: dict(document)} if reads_fields else {}),
            }
            questions.append(Question(f"{name}/{n}", group=name, data=data))
    _check_choices(opened, choices)
    shared = [shared_text(rows.documents) for rows in opened.members.values()]
    return questions, {
        "task": configs[0]["task"] if len(configs) == 1 else suite["task"],
        "metric": opened.metric.label,
        "revision": revisions[0],
        "choices": choices,
        "shared_text": next(filter(None, shared), None),
    }


def _check_choices(opened: LoadedTask, choices: Mapping[str, Sequence[tuple[str, float]]]) -> None:
    """Refuse a task whose documents often name no choice, so that no answer is right."""
    for name, rows in opened.members.items():
        scored = [(n, choices.get(f"{name}/{n}", ())) for n in range(len(rows.documents))]
        unsolvable = [n for n, scores in scored if scores and not any(score for _, score in scores)]
        if len(unsolvable) > _MAX_UNSOLVABLE * len(scored):
            raise _error(
                name,
                f"in {len(unsolvable)} of {len(scored)} documents no choice is right",
                "doc_to_target must give the choice's number, from 0 on, or exactly its text",
                f", document {unsolvable[0]}",
            )


def _asked_digest(task: Any, document: Config) -> str:
    """Return a digest of the prompt, equal for copies."""
    choices = task.OUTPUT_TYPE == CHOSEN
    # A text that is scored as a continuation belongs to the question; a reference does not.
    is_asked = task.multiple_input or task.OUTPUT_TYPE not in (CHOSEN, GENERATED)
    return digest_document(
        {
            "text": task.doc_to_text(document),
            "choices": task.doc_to_choice(document) if choices else None,
            "target": task.doc_to_target(document) if is_asked else None,
        }
    )


def scored_choices(rows: LmRows, metric: Metric, document: Config) -> list[tuple[str, float]]:
    """Return a document's choices and their scores."""
    texts = [str(text) for text in rows.task.doc_to_choice(document)]
    # Mutual information also needs each choice's likelihood without a question.
    alone = [(0.0, False)] * len(texts) if metric.name == "acc_mutual_info" else []
    scores = []
    for taken, text in enumerate(texts):
        sure = [(0.0, True) if n == taken else (_UNLIKELY, False) for n in range(len(texts))]
        scores.append((text, metric.score(rows.score_values(document, sure + alone), text)))
    return scores


def open_task(suite: Config, folder: Path) -> LoadedTask:
    """Return the laid-out tasks."""
    from datasets import load_from_disk

    places = json.loads((folder / PLACE).read_text())  # noqa: TID251
    configs = [_config(folder, suite, place) for place in places]
    metric = _shared_metric(configs, suite)
    loaded: dict[str, Any] = {}
    members = {}
    for config in configs:
        key = _dataset_key(config)
        if key not in loaded:
            loaded[key] = dict(load_from_disk(str(folder / DATASET / key), keep_in_memory=True))
        every = config.get("filter_list") or []
        if filters := [e for e in every if e["name"] == metric.filter]:
            config["filter_list"] = filters
            if combined := {p["function"] for p in filters[0]["filter"]} & _COMBINING_FILTERS:
                single = [
                    e["name"]
                    for e in every
                    if not {p["function"] for p in e["filter"]} & _COMBINING_FILTERS
                ]
                raise _error(
                    config["task"],
                    f"the filter '{metric.filter}' makes one answer of several "
                    f"({', '.join(combined)})",
                    "name a filter of single answers in the policy, 'metric: METRIC,FILTER': "
                    f"{', '.join(single)}"
                    if single
                    else "remove filter_list in a copy of the task, or choose another task",
                )
        with _reading(config["task"]):
            members[config["task"]] = LmRows({**config, "repeats": 1}, loaded[key])
    return LoadedTask(members, metric, _samples(configs[0], suite))


def _samples(config: Config, suite: Config) -> int:
    if config["output_type"] != GENERATED:
        return 1
    samples = int(suite["samples"] if suite["samples"] > 1 else config.get("repeats") or 1)
    if samples > 1 and not config["generation_kwargs"].get("do_sample"):
        raise _error(
            config["task"],
            f"the task asks every question {samples} times, and its answers are greedy",
            "add 'sampling', such as {temperature: 0.7}, to the suite in the policy",
            ", key repeats",
        )
    return samples


def save_dataset(config: Config, revision: str | None, target: Path) -> str | None:
    """Store the splits that the task uses; return the Hub dataset's revision, if any.

    `config` has absolute paths.
    """
    from datasets import Dataset, DatasetDict
    from datasets.exceptions import DatasetsError

    options = dict(config.get("dataset_kwargs") or {})
    options.pop("trust_remote_code", None)
    path = config.get("dataset_path")
    local = path in LOCAL_FORMATS or (path is not None and Path(path).is_absolute())
    with TemporaryDirectory(prefix="prepare-dataset-") as cache:
        with raise_as(
            EvaluationDataError,
            "the task's dataset cannot be read",
            f"lm-eval task {config['task']}, dataset {path}",
            "check the task's dataset, and whether the Hub can be reached",
            errors=(OSError, ValueError, RuntimeError, DatasetsError),
        ):
            if callable(config.get("custom_dataset")):
                splits = config["custom_dataset"](**(config.get("metadata") or {}), **options)
            else:
                options |= {"cache_dir": cache} if local else {"revision": revision}
                splits = load_from_hub(str(path), config.get("dataset_name"), **options)
        kept = {}
        for name, rows in _used_splits(config).items():
            if name not in splits:
                raise _error(
                    config["task"],
                    f"its data has no split '{name}'",
                    f"name a file of it: dataset_kwargs: {{data_files: {{{name}: FILE}}}}"
                    if local
                    else f"name one of its splits in a copy of the task: {', '.join(splits)}",
                )
            split = splits[name]
            split = split if isinstance(split, Dataset) else Dataset.from_list(list(split))
            kept[name] = split if rows is None else split.select(range(min(rows, len(split))))
        if path == "json":
            files = options["data_files"]
            for name, split in kept.items():
                check_loaded(split, files[name] if isinstance(files, dict) else files)
        DatasetDict(kept).save_to_disk(str(target))
        rows = next(iter(kept.values()))
        check_commit(rows, str(path), revision)
        return commit_of(rows)


def _used_splits(config: Config) -> dict[str, int | None]:
    """Return the splits and their needed rows (None: all)."""
    asked = config.get("test_split") or config.get("validation_split")
    named = (config.get(f"{key}_split") for key in _EXAMPLES)
    examples = (config.get("fewshot_config") or {}).get("split") or next(filter(None, named), None)
    if asked is None:
        hint = "add test_split or validation_split to it"
        raise _error(config["task"], "the task names no split to ask", hint)
    # lm-eval always reads one example.
    used = {} if examples is None else {examples: None if config.get("num_fewshot") else 1}
    return {**used, asked: None}


def _dataset_key(config: Config) -> str:
    """Return a folder's name, which members may share."""
    keys = {key: config.get(key) for key in ("dataset_path", "dataset_name", "dataset_kwargs")}
    return digest_document({**keys, "splits": _used_splits(config)})[:16]


def _find_installed(name: str) -> list[Config]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager()  # reads all of lm-eval's YAML files: some seconds
    if name not in manager.task_index:
        close = get_close_matches(name, manager.all_subtasks, n=5)
        raise EvaluationDataError(
            f"lm-eval knows no task '{name}'",
            where="policy key 'task'",
            hint=f"did you mean {', '.join(close)}?" if close else "see lm-eval's list of tasks",
        )
    return list({str(member): member for member in _members(manager.task_index, name, {})}.values())


def _members(index: Any, name: str, overrides: Config) -> Iterator[Config]:
    """Yield a task's place, or its group's members, and the group's changes."""
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
            member = str(changes.pop("group", member))
            yield from _members(index, member, {**own, **overrides, **changes})
    else:
        path = Path(entry.yaml_path).relative_to(Path(tasks.__file__).parent)
        yield {"installed": str(path), "overrides": overrides}


def _copy(file: Path, folder: Path) -> str:
    task_file = read_task_file(file)
    root = Path(os.path.commonpath([path.parent for path in task_file.code]))
    for path in task_file.code:
        copy = folder / CODE / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return str(Path(CODE) / task_file.path.relative_to(root))


def _config(folder: Path, suite: Config, place: Config) -> Config:
    from lm_eval import tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    installed = Path(tasks.__file__).parent
    path = folder / place["file"] if "file" in place else installed / place["installed"]
    _refuse(load_yaml(path, resolve_func=False))  # before its code is run
    try:
        if "ifeval" in path.stem:
            load_checkers()  # or lm-eval would download a part of them
        sys.dont_write_bytecode = True  # next to a module in the store
        config: Config = load_yaml(path)
    except Exception as error:  # the task's own modules may raise anything
        raise EvaluationDataError(
            f"the task's own code cannot be loaded: {type(error).__name__}: {error}",
            where=str(path),
            hint="check the modules that it names with !function, and what they import",
        ) from error
    config |= place.get("overrides", {})
    for key in ("tag", "group", "task_list"):  # lm-eval's own way of telling task from structure
        config.pop(key, None)
    config.setdefault("output_type", GENERATED)
    if (shots := suite["num_fewshot"]) is not None:
        if shots and config.get("num_fewshot") == 0:
            raise _error(
                config["task"],
                f"{shots} worked examples were asked, but the task itself fixes none",
                "remove 'num_fewshot' from the policy",
                ", num_fewshot: 0",
            )
        config["num_fewshot"] = shots
        others = (config.get(f"{name}_split") for name in _EXAMPLES)
        if shots and not config.get("fewshot_config") and not any(others):
            # So lm-eval never shows a question among its own examples.
            config["fewshot_split"] = config["test_split"]
    if config["output_type"] == GENERATED:
        asked = {key: suite[key] for key in Generation.model_fields}
        config["generation_kwargs"] = _generation(config, Generation.model_validate(asked))
    return config


def _refuse(config: Config) -> None:
    reason = ""
    if config.get("unsafe_code"):
        reason = "it runs code that a model wrote; 'humaneval' and 'mbpp' do so in a sandbox"
    elif "class" in config:
        reason = "it is written as a Python class, whose documents cannot be fixed"
    elif config.get("doc_to_image") or config.get("doc_to_audio"):
        reason = "it shows pictures or plays sounds"
    if reason:
        why = f"the task cannot be a gate: {reason}"
        raise _error(config.get("task"), why, "choose another task")


def _generation(config: Config, asked: Generation) -> Config:
    given = dict(config.get("generation_kwargs") or sampling_settings("greedy"))
    own = [given.pop(key) for key in _LENGTH_KEYS if key in given]
    given["max_gen_toks"] = asked.max_tokens or (own or [DEFAULT_TOKENS])[0]
    given.setdefault("until", [config.get("fewshot_delimiter", "\n\n")])
    # lm-eval's default is greedy.
    drawn = {} if asked.sampling == "greedy" else sampling_settings(asked.sampling)
    return {**given, **drawn, **thinking_settings(asked.thinking)}


def _shared_metric(configs: Sequence[Config], suite: Config) -> Metric:
    metrics = [_metric_of(config, suite) for config in configs]
    types = {config["output_type"] for config in configs}
    if len(set(metrics)) == len(types) == 1:
        return metrics[0]
    labels = {metric.label: config["task"] for metric, config in zip(metrics, configs, strict=True)}
    listed = "; ".join(f"{task} has {label}" for label, task in labels.items())
    raise _error(
        suite["task"],
        f"the members of the group are scored differently ({', '.join(sorted(types))}): {listed}",
        "set 'metric' to one that all have, or make a suite of each member",
    )


def _metric_of(config: Config, suite: Config) -> Metric:
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
