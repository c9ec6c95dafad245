"""GSM8K, IFEval and MMLU-Pro ask and score as lm-eval's own tasks do.

lm-eval's tasks run unchanged over generated rows in the real evaluate environment, and so do the
suites, by their workers' own functions. A model that gives a fixed answer to each prompt stands
for the server.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator

SCRIPT = r"""
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import lm_eval.tasks
from datasets import Dataset
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from eval_gates.rows import Reply
from eval_gates.suites.lm_rows import load_checkers
from eval_gates.suites.json_lines import read_rows, write_rows
from eval_gates.suites.presets import presets
from eval_gates.suites.suite_kind import kind_named
from prepare.errors import PrepareError
from prepare.events import NullProgress
from eval_gates import questions_worker
from eval_gates.evaluate_worker import OpenSuite

TASKS = Path(lm_eval.tasks.__file__).parent
here = Path(sys.argv[2])
METRICS = presets()["ifeval"].metrics
LETTERS, PRO = "ABCDEFGHIJ", presets()["mmlu_pro"].row["properties"]
SUBJECTS = PRO["category"]["enum"]
data = here / "data"
data.mkdir()
draw = random.Random(7)


class Fixed(LM):
    # Answers by the end of the prompt; without any other state.

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.seen = []

    def generate_until(self, requests):
        self.seen += [(r.args[0], list(r.args[1].get("until"))) for r in requests]
        return [self.answers[self.key(r.args[0])] for r in requests]

    def key(self, prompt):
        return next(key for key in self.answers if key in prompt.replace("</turn>", "")[-400:])

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return "".join(f"<{m['role']}>{m['content']}</turn>" for m in messages)

    @property
    def tokenizer_name(self):
        return "turns"

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def theirs(file, rows, examples, answers, chat, shots=None):
    class Local(ConfigurableTask):
        def download(self, *args, **kwargs):
            splits = {"test": rows, "train": rows, "validation": examples or rows}
            self.dataset = {name: Dataset.from_list(each) for name, each in splits.items()}

    config = load_yaml(TASKS / file)
    config.pop("tag", None)
    task = Local(config=config)
    if shots is not None:
        task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)
    model = Fixed(answers)
    found = evaluate(lm=model, task_dict={"t": task}, log_samples=True, bootstrap_iters=0,
                     apply_chat_template=chat, fewshot_as_multiturn=True)
    return found["samples"]["t"], model.seen


def ours(suite, answers, name):
    output = here / name
    output.mkdir()
    spec = {"suite": suite, "source": {"kind": "folder", "digest": "x"}, "folder": str(data),
            "seed": 3}
    facts = questions_worker.run(spec, NullProgress(), output)
    file = output / "questions.jsonl"
    rows = [row for _, row in read_rows(file)]
    kind = kind_named(suite["kind"])
    opened, model = OpenSuite(suite, file), Fixed(answers)
    found, seen = [], []
    for batch in (range(0, 50), range(50, len(rows))):
        asked = opened.render(batch, model.apply_chat_template)
        seen += [(each.prompt, list(each.generate["until"])) for each in asked]
        replies = [[Reply(answers[model.key(each.prompt)], 9)] * opened.settings["samples"]
                   for each in asked]
        scored = opened.score(batch, asked, replies, NullProgress())
        found += [each.to_row() for each in scored]
    metric = kind.metric(kind.task.model_validate(suite), None)
    return {"facts": facts, "metric": metric, "rows": found, "questions": rows, "seen": seen}


def compare(mine, scores, seen):
    # scores by the question's text; seen: lm-eval's own requests.
    asked = {row["id"]: row for row in mine["questions"]}
    documents = {name: row["document"] for name, row in asked.items()}
    pairs = [(scores[documents[row["id"]].get("question") or documents[row["id"]]["prompt"]],
              row["score"]) for row in mine["rows"]]
    return {
        "n": len(pairs),
        "different": [pair for pair in pairs if float(pair[0]) != pair[1]][:5],
        "mean": sum(a for a, _ in pairs) / len(pairs),
        "requests": len(mine["seen"]),
        "other_prompts": [p for p in mine["seen"] if p not in seen][:1],
        "metric": mine["metric"], "facts": mine["facts"],
        "row": mine["rows"][0], "groups": sorted({row.get("group", "") for row in mine["rows"]}),
    }


found = {}

# GSM8K.
FORMS = ["The answer is {}.", "So she has ${} left", "#### {}", "**{}**", "{} = {} dollars, or {}.",
         "It is {},", "\\boxed{{{}}}", "-{}", "about {}%", "{}.00", "{}.", "half of 10, {}/2",
         "no number at all", "... {} ,,", "A. {} B. 7", "Answer:\n\n{}\n", "", "${}.50 each", "$",
         "x{}y", "１２"]
problems, answers = [], {}
for n in range(240):
    number = draw.choice([str(draw.randrange(10)), f"{draw.randrange(10**6):,}",
                          str(draw.randrange(100)), f"-{draw.randrange(50)}", "0.5"])
    said = number if draw.random() < 0.7 else str(draw.randrange(100))
    question = f"Problem number {n} of many?"
    problems.append({"question": question, "answer": f"We add.\n#### {number}"})
    answers[question] = draw.choice(FORMS).replace("{}", said)
write_rows(data / "gsm8k_test.jsonl", problems)
suite = {"kind": "gsm8k", "max_tokens": 64, "sources": []}
for name, form, shots, file in [
    ("gsm8k", "completion", 8, "gsm8k-cot.yaml"), ("gsm8k_chat", "chat", 8, "gsm8k-cot.yaml"),
    ("gsm8k_none", "completion", 0, "gsm8k-cot-zeroshot.yaml"),
    ("gsm8k_none_chat", "chat", 0, "gsm8k-cot-zeroshot.yaml"),
]:
    samples, seen = theirs(f"gsm8k/{file}", problems, None, answers, form == "chat")
    scores = {s["doc"]["question"]: s["exact_match"] for s in samples
              if s["filter"] == "flexible-extract"}
    mine = ours({"kind": "gsm8k", "prompt_format": form, "num_fewshot": shots, "max_tokens": 64},
                answers, name)
    found[name] = compare(mine, scores, seen)

# MMLU-Pro.
FORMS = ["The answer is ({}).", "the answer is {}", "answer is: ({})", "The ANSWER is ({})",
         "So the answer is ({}). No, the answer is (A).", "({})", "", "The answer is (K).",
         "the answer is\n({})", "I think the answer is ({}", "Therefore, answer is {}."]
rows, examples, answers = [], [], {}
for number, subject in enumerate(SUBJECTS):
    for n in range(17):
        options = [f"option {k} " for k in range(draw.randrange(3, 11))]
        key = draw.randrange(len(options))
        question = f"Question {n} of {subject}: which?"
        rows.append({"question_id": n, "question": question, "options": options,
                     "answer": LETTERS[key], "answer_index": key, "category": subject,
                     "cot_content": "", "src": f"source {n % 5}"})
        said = LETTERS[key] if draw.random() < 0.6 else draw.choice(LETTERS)
        answers[question] = draw.choice(FORMS).replace("{}", said)
    for n in range(6):
        examples.append({**rows[-1], "question": f"Example {n} of {subject}?",
                         "cot_content": f"A: Let's think step by step. {n}. The answer is (A)."})
draw.shuffle(rows)
write_rows(data / "mmlu_pro_test.jsonl", rows)
write_rows(data / "mmlu_pro_dev.jsonl", examples)
for name, form, shots in [("mmlu_pro", "completion", 5), ("mmlu_pro_chat", "chat", 5),
                          ("mmlu_pro_none", "chat", 0)]:
    scores, seen = {}, []
    for subject in SUBJECTS:
        file = f"mmlu_pro/mmlu_pro_{subject.replace(' ', '_')}.yaml"
        # process_docs leaves the subject's own; of examples lm-eval leaves that out.
        own = [each for each in examples if each["category"] == subject]
        samples, asked = theirs(file, rows, own, answers, form == "chat", shots)
        scores |= {s["doc"]["question"]: s["exact_match"] for s in samples}
        seen += asked
    mine = ours({"kind": "mmlu_pro", "prompt_format": form, "num_fewshot": shots, "max_tokens": 64},
                answers, name)
    found[name] = compare(mine, scores, seen)
found["clusters"] = ours(
    {"kind": "mmlu_pro", "prompt_format": "chat", "num_fewshot": 0, "cluster_by": "src"}, answers,
    "clusters")["facts"]["clusters"]

# IFEval: arguments as lm-eval's own checkers draw them, answers of pieces that follow some.
checkers = load_checkers()
KNOWN = checkers.instructions_registry.INSTRUCTION_DICT
PIECES = ["Mr. Bean slept. Dr. Who woke up! Did he?", "* one\n* two\n* three", "[name] [street]",
          "P.S. a note", "P.P.S. more", "<<A title>>", "{\"a\": 1}", "*bold* words and *more*",
          "SECTION 1 text\nSECTION 2 text", "ALL CAPITALS HERE", "only small letters here",
          "first\n\nsecond\n\nthird", "My answer is yes.", "one ****** two", "\"quoted\"", "***",
          "no comma here", "a, b, c", "Is there anything else I can help with?", "\n\n",
          "Wie geht es dir heute, mein lieber Freund?", "x", "word " * 60,
          "Any other questions?", "***\n\nparagraph\n\n***\n\nparagraph"]
random.seed(11)
rows, answers = [], {}
for n in range(260):
    names = draw.sample(sorted(KNOWN), k=draw.choice([1, 1, 2, 3]))
    given = []
    for name in names:
        checker = KNOWN[name](name)
        first = {"prompt_to_repeat": "Repeat me"} if name == "combination:repeat_prompt" else {}
        checker.build_description(**first)
        arguments = dict(checker.get_instruction_args() or {})
        if "nth_paragraph" in arguments:  # drawn up to one too many, and then drawn again
            last = arguments["num_paragraphs"]
            arguments["nth_paragraph"] = min(arguments["nth_paragraph"], last)
        # As on the Hub, where every row has all keys.
        given.append({**arguments, "num_sentences": arguments.get("num_sentences"), "unused": None})
    prompt = f"Prompt number {n}: please write."
    rows.append({"key": n, "prompt": prompt, "instruction_id_list": names, "kwargs": given})
    words = [str(v) for a in given for v in a.values() if isinstance(v, str)]
    words += [w for a in given for v in a.values() if isinstance(v, list) for w in v]
    answers[prompt] = draw.choice(["\n", " ", "\n\n"]).join(
        draw.sample(PIECES, k=draw.randrange(0, 4)) + draw.sample(words, k=min(len(words), 2)))
write_rows(data / "ifeval.jsonl", rows)
samples, seen = theirs("ifeval/ifeval.yaml", rows, None, answers, True)
for metric, name in METRICS.items():
    scores = {}
    for sample in samples:
        value = sample[name]
        scores[sample["doc"]["prompt"]] = (
            sum(value) / len(value) if isinstance(value, list) else float(value))
    mine = ours({"kind": "ifeval", "prompt_format": "chat", "metric": metric}, answers, metric)
    found[metric] = compare(mine, scores, seen)
found["instructions"] = sorted({name for row in rows for name in row["instruction_id_list"]})
found["known"] = sorted(KNOWN)
again = ours({"kind": "ifeval", "prompt_format": "chat"}, answers, "again")
found["repeatable"] = again["rows"] == ours(
    {"kind": "ifeval", "prompt_format": "chat"}, answers, "repeated")["rows"]
drawn = {"kind": "ifeval", "prompt_format": "chat", "samples": 3, "sampling": {"temperature": 0.7}}
found["drawn"] = ours(drawn, answers, "drawn")
del found["drawn"]["seen"], found["drawn"]["questions"]


def refusal(suite, file, row):
    kept = [line for _, line in read_rows(data / file)]
    write_rows(data / file, [*kept[:1], row])
    spec = {"suite": {"prompt_format": "chat", **suite}, "folder": str(data), "seed": 1,
            "source": {"kind": "folder", "digest": "x"}}
    try:
        questions_worker.run(spec, NullProgress(), here)
    except PrepareError as error:
        return [error.message, error.where, error.hint]
    finally:
        write_rows(data / file, kept)
    return ["not refused"] * 3


good = rows[0]
found["refusals"] = {
    "unknown": refusal({"kind": "ifeval"}, "ifeval.jsonl",
                       {**good, "instruction_id_list": ["punctuation:none"], "kwargs": [{}]}),
    "unnamed": refusal({"kind": "ifeval"}, "ifeval.jsonl", {
        **good, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"no": 1}]}),
    "wrong": refusal({"kind": "ifeval"}, "ifeval.jsonl", {
        **good, "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"num_sentences": "7", "relation": "at least"}]}),
    "number": refusal({"kind": "gsm8k"}, "gsm8k_test.jsonl",
                      {"question": "How many?", "answer": "five"}),
    "examples": refusal({"kind": "mmlu_pro"}, "mmlu_pro_dev.jsonl", examples[0]),
}
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

GSM8K = ("gsm8k", "gsm8k_chat", "gsm8k_none", "gsm8k_none_chat")
MMLU_PRO = ("mmlu_pro", "mmlu_pro_chat", "mmlu_pro_none")
IFEVAL = {
    "prompt_strict": "prompt_level_strict_acc",
    "prompt_loose": "prompt_level_loose_acc",
    "inst_strict": "inst_level_strict_acc",
    "inst_loose": "inst_level_loose_acc",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    evaluate = ensure("evaluate", Accelerator.CPU, load_settings(), NullProgress())
    folder = tmp_path_factory.mktemp("scores")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    answer = subprocess.run(
        [str(evaluate.python), "-I", str(script), str(Path(__file__).parents[2]), str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "HOME": "/none"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert "ownload" not in answer.stdout.replace("RESULT", "")[:2000]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


@pytest.mark.parametrize("name", [*GSM8K, *MMLU_PRO, *IFEVAL])
def test_every_score_is_lm_evals(found: dict[str, Any], name: str) -> None:
    compared = found[name]
    assert compared["n"] >= 200
    assert compared["different"] == []
    assert 0.05 < compared["mean"] < 0.95, "right and wrong answers are among them"


@pytest.mark.parametrize("name", [*GSM8K, *MMLU_PRO, *IFEVAL])
def test_every_prompt_is_lm_evals(found: dict[str, Any], name: str) -> None:
    assert found[name]["requests"] == found[name]["n"]
    assert found[name]["other_prompts"] == []


def test_metrics_have_lm_evals_names(found: dict[str, Any]) -> None:
    assert {found[name]["metric"] for name in GSM8K} == {"exact_match,flexible-extract"}
    assert {found[name]["metric"] for name in MMLU_PRO} == {"exact_match,custom-extract"}
    assert {name: found[name]["metric"] for name in IFEVAL} == IFEVAL


def test_all_types_of_instructions_are_compared(found: dict[str, Any]) -> None:
    assert found["instructions"] == found["known"]
    assert len(found["known"]) == 25


def test_checkers_leave_nothing_to_chance(found: dict[str, Any]) -> None:
    assert found["repeatable"] is True


def test_questions_of_mmlu_pro_have_their_subject_and_chance_level(found: dict[str, Any]) -> None:
    assert len(found["mmlu_pro"]["groups"]) == 14
    assert 0.1 < found["mmlu_pro"]["facts"]["guessing"] < 0.35
    assert found["mmlu_pro"]["facts"]["questions"] == 14 * 17
    assert found["clusters"] == 5


def test_every_row_has_what_chance_scores(found: dict[str, Any]) -> None:
    for name in ("gsm8k", "mmlu_pro", "prompt_strict"):
        row = found[name]["row"]
        assert row.keys() >= {"score", "unrelated", "empty", "answer", "tokens"}
        assert row["empty"] == 0.0


def test_samples_of_a_question_are_one_row(found: dict[str, Any]) -> None:
    drawn = found["drawn"]
    for row in drawn["rows"]:
        assert len(row["answer"]) == len(row["tokens"]) == 3
    plain = {row["id"]: row["score"] for row in drawn["rows"]}
    assert len(plain) == 260


@pytest.mark.parametrize(
    ("name", "message", "where"),
    [
        ("unknown", "KeyError: 'punctuation:none'", "ifeval.jsonl, line 2"),
        ("unnamed", "TypeError", "ifeval.jsonl, line 2"),
        ("wrong", "TypeError", "ifeval.jsonl, line 2"),
        ("number", "'answer': ", "gsm8k_test.jsonl, line 2"),
        ("examples", "5 worked examples were asked, but 'biology' has", "mmlu_pro_dev"),
    ],
)
def test_a_malformed_row_is_refused_with_its_place(
    found: dict[str, Any], name: str, message: str, where: str
) -> None:
    refused = found["refusals"][name]
    assert message in refused[0]
    assert where in refused[1]
    assert refused[2]
