"""Where questions and calibration texts come from: the order, and what is reported."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn, Repository
from listener import Listener
from small_checkpoint import write_files

from eval_gates.decisions import suite as decisions_suite
from eval_gates.decisions.suite import Decisions
from eval_gates.suites import rouge
from eval_gates.suites.humaneval import HumanEval
from eval_gates.suites.lm_eval_suite import LmEval
from eval_gates.suites.mbpp import Mbpp
from eval_gates.suites.mmlu import DEV_FILE, Mmlu
from eval_gates.suites.needles import NeedlesKind
from eval_gates.suites.rouge import Rouge
from eval_gates.suites.suite_kind import kind_named
from pipeline.plan.data_sources import (
    BUILTIN_CALIBRATION,
    SourceResolver,
    note_repeated_fields,
)
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.known_questions import clusters_asked
from prepare.digest import FileDigests, digest_bytes
from prepare.errors import EvaluationDataError, UsageError
from recipes.catalog import load_policy
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.policy import AnySuite, Margin, Policy
from recipes.quantization import Calibration
from recipes.schema import CalibrationLimit

MARGINS: dict[Any, Margin] = {"fp8": Margin(points=0.1), "int4": Margin(recovery=0.9)}
PACKAGES = {"kind": "packages", "environment": "evaluate's identity"}

# huggingface_hub reads its settings when it is imported, so the Hub is asked in child processes.
CHILD = """
import json, sys
from listener import Listener
from pathlib import Path
from pipeline.plan.data_sources import SourceResolver
from prepare.digest import (FileDigests)
from prepare.errors import PrepareError
from eval_gates.suites.lm_eval_suite import LmEval
from eval_gates.suites.mmlu import Mmlu
from recipes.quantization import Calibration

folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
listener = Listener()
resolver = SourceResolver(None, "e", FileDigests(folder / "digests.json"), listener)
answers = []
for what, settings in asked:
    try:
        if what == "suite":
            found = resolver.suite("mmlu", Mmlu.policy.model_validate(settings))
            answers.append({"identity": found.identity.model_dump(), "questions": found.questions})
        elif what == "task":
            found = resolver.suite("mine", LmEval.policy.model_validate(settings))
            answers.append({"identity": found.identity.model_dump(), "questions": found.questions})
        else:
            wanted = Calibration.model_validate(settings)
            used, identity, file = resolver.calibration(wanted, None, "awq")
            answers.append({
                "identity": identity,
                "file": file and str(file),
                "calibration": used.model_dump(),
            })
    except PrepareError as error:
        answers.append(error.to_dict())
print(json.dumps({"answers": answers, "notes": listener.notes}))
"""


def ask_in_child(tmp_path: Path, asked: list[tuple[str, Any]], **settings: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    answer = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(asked)],
        env={
            **kept,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "HF_HOME": str(tmp_path / "hub"),
            **settings,
        },
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return json.loads(answer.stdout)


class Resolving:
    """A resolver with a listener, and perhaps a folder of evaluation data."""

    def __init__(self, tmp_path: Path, eval_data: Path | None = None) -> None:
        self.listener = Listener()
        self.resolver = SourceResolver(
            eval_data,
            PACKAGES["environment"],
            FileDigests(tmp_path / "digests.json"),
            self.listener,
        )

    @property
    def notes(self) -> list[str]:
        return self.listener.notes

    def units(self, policy: Policy) -> dict[str, int | None]:
        """Known questions, or clusters, by suite."""
        known = self.resolver.known_of(policy)
        return {name: known[name].units(suite) for name, suite in policy.suites.items()}


@pytest.fixture
def resolving(tmp_path: Path) -> Resolving:
    return Resolving(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data", {"mmlu_test.jsonl": b"{}", "notes.txt": b""})


class TestSuite:
    def test_the_users_folder_comes_first(self, tmp_path: Path, data: Path) -> None:
        resolving = Resolving(tmp_path, data)
        found = resolving.resolver.suite("mmlu", Mmlu.policy(margins=MARGINS))
        assert found.folder == data
        assert found.identity.model_dump()["kind"] == "folder"
        assert str(data) not in json.dumps(found.identity.model_dump())
        assert resolving.notes == []

    def test_clusters_are_counted_where_the_policy_has_some(self, tmp_path: Path) -> None:
        own = [{**ROW, "question": f"q{n}", "passage": str(n // 4)} for n in range(20)]
        rows = "".join(f"{json.dumps(row)}\n" for row in own).encode()
        folder = write_files(tmp_path / "passages", {"mmlu_test.jsonl": rows})

        def counted(**suite: Any) -> int | None:
            if suite["kind"] == "mmlu":
                suite["num_fewshot"] = 0
            asked = {"name": "p", "summary": "s", "suites": {"mine": {"margins": MARGINS, **suite}}}
            policy = Policy.model_validate(asked)
            reads = suite.get("sources") is None
            return Resolving(tmp_path, folder if reads else None).units(policy)["mine"]

        assert counted(kind="mmlu") == 20
        assert counted(kind="mmlu", cluster_by="passage") == 5
        with pytest.raises(EvaluationDataError, match="no field 'other'"):
            counted(kind="mmlu", cluster_by="other")
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0, parts_by="passage")
        known = Resolving(tmp_path, folder).resolver.known("mine", suite)
        assert known.parts == {str(n): 4 for n in range(5)}
        packaged: dict[str, Any] = {"kind": "tools", "sources": ["packages"]}
        assert counted(**packaged) == 3_641
        assert counted(**packaged, cluster_by="functions") == 2_116
        assert counted(**packaged, cluster_by="functions", categories=["multiple"]) is None

    def test_what_no_suite_reads_of_its_own_folder_is_noted(self, tmp_path: Path) -> None:
        rows = "".join(f"{json.dumps({**ROW, 'question': f'q{n}'})}\n" for n in range(3)).encode()
        names = ("mmlu_test.jsonl", "mmluown.jsonl", "mmlu_pro_test.jsonl", "gsm8k_test.jsonl")
        folder = write_files(tmp_path / "own", dict.fromkeys(names, rows))
        suite = {"kind": "mmlu", "num_fewshot": 0, "data": str(folder), "margins": MARGINS}
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": suite}})
        resolving = Resolving(tmp_path)
        assert list(resolving.resolver.faults(policy)) == []
        (note,) = resolving.notes
        assert note.startswith(
            f"no suite of the policy 'p' reads these files of {folder}: "
            "gsm8k_test.jsonl, mmlu_pro_test.jsonl, mmluown.jsonl"
        )

    def test_the_folders_content_is_its_identity(self, tmp_path: Path, data: Path) -> None:
        suite = Mmlu.policy(margins=MARGINS)

        def identity() -> dict[str, Any]:
            return Resolving(tmp_path, data).resolver.suite("mmlu", suite).identity.model_dump()

        before = identity()
        (data / "notes.txt").write_text("not a question")
        assert identity() == before
        (data / "mmlu_test.jsonl").write_text("{ }")
        changed = identity()
        assert changed != before
        (data / "mmlu_dev.jsonl").write_bytes(b"examples")
        assert identity() not in (before, changed)

    def test_a_folder_without_such_files_is_refused(self, tmp_path: Path, data: Path) -> None:
        suite = Rouge.policy(margins=MARGINS, sources=["eval-data", "builtin"])
        with pytest.raises(EvaluationDataError) as caught:
            Resolving(tmp_path, data).resolver.suite("summaries", suite)
        assert "'summaries'" in caught.value.message
        assert caught.value.where.startswith(str(data))
        assert "summarization*.jsonl" in caught.value.hint

    @pytest.mark.parametrize(
        "name", ["mmlu.csv", "mmlu_dev.tsv.gz", "mmlu_test.JSONL", "mmlu.json"]
    )
    def test_a_file_of_another_form_is_refused(self, tmp_path: Path, data: Path, name: str) -> None:
        (data / name).write_text("question,answer")
        with pytest.raises(EvaluationDataError) as caught:
            Resolving(tmp_path, data).resolver.suite("mmlu", Mmlu.policy(margins=MARGINS))
        assert caught.value.where == str(data / name)

    def test_a_folder_that_no_suite_reads_is_a_fault(self, tmp_path: Path, data: Path) -> None:
        suites = {"quiz": {"kind": "mmlu", "sources": ["builtin"], "margins": {"fp8": 0.1}}}
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
        (fault,) = Resolving(tmp_path, data).resolver.faults(policy)
        assert fault.where.startswith(f"--eval-data {data}")

    def test_files_that_no_suite_reads_are_named(self, tmp_path: Path, data: Path) -> None:
        suites = {"quiz": {"kind": "mmlu", "margins": {"fp8": 0.1}}}
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
        read = {"mmlu_dev.jsonl": b"{}", "mmlu_test.jsonl": b"{}"}
        others = {"gsm8k_test.jsonl": b"{}", "mmlu_pro_test.jsonl": b"{}", "mnlu.csv": b"a"}
        write_files(data, read | others)
        resolving = Resolving(tmp_path, data)
        list(resolving.resolver.faults(policy))
        (note,) = resolving.notes
        assert [name for name in others if name not in note] == []
        assert not any(f"{name}," in note for name in (*read, "notes.txt"))

    def test_carried_data_is_used_where_the_policy_names_it(self, tmp_path: Path) -> None:
        resolving = Resolving(tmp_path)
        suite = Rouge.policy(margins=MARGINS, sources=["eval-data", "builtin"])
        found = resolving.resolver.suite("summaries", suite)
        digest = digest_bytes(rouge.CARRIED_FILE.read_bytes())
        assert found.identity.model_dump() == {"kind": "builtin", "digest": digest}
        assert found.folder is None
        assert resolving.notes == []

    @pytest.mark.parametrize(
        ("kind", "place", "suite"),
        [
            (Mmlu, "packaged_file", {"sources": ["packages"]}),
            (Mmlu, "carried", {"sources": ["builtin"]}),
            (NeedlesKind, "carried", {}),
            (decisions_suite, "CARRIED_TOOLS", {"kind": "decisions", "prompt_format": "chat"}),
        ],
    )
    def test_a_changed_carried_file_is_another_source(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Any,
        place: str,
        suite: dict[str, Any],
    ) -> None:
        """The key of `questions` has the source alone."""
        policy = getattr(kind, "policy", Decisions.policy)
        asked = policy.model_validate({"margins": MARGINS, **suite})
        before = Resolving(tmp_path).resolver.suite("suite", asked).identity
        changed = tmp_path / "changed.jsonl"
        changed.write_bytes(getattr(kind, place).read_bytes() + b"\n")
        monkeypatch.setattr(kind, place, changed)
        after = Resolving(tmp_path).resolver.suite("suite", asked).identity
        assert after != before

    @pytest.mark.parametrize(
        "suite",
        [
            Mmlu.policy(margins=MARGINS, sources=["eval-data"]),
            Mmlu.policy(margins=MARGINS, sources=[]),
            HumanEval.policy(margins=MARGINS, sources=["eval-data", "builtin"]),
            Rouge.policy(margins=MARGINS, sources=["packages"]),
        ],
    )
    def test_none_left(self, resolving: Resolving, suite: AnySuite) -> None:
        with pytest.raises(EvaluationDataError) as caught:
            resolving.resolver.suite("mine", suite)
        assert "'mine'" in caught.value.message
        assert caught.value.where == f"policy key suites.mine.sources: {', '.join(suite.sources)}"
        reads_files = bool(kind_named(suite.kind).folder_stem)
        for word in ("--eval-data", "suites.mine.data"):
            assert (word in caught.value.hint) is reads_files
        # What it says to write is followed.
        (source,) = re.findall(r"'sources: \[(\w+)\]'", caught.value.hint)
        followed = suite.model_copy(update={"sources": [source]})
        assert resolving.resolver.suite("mine", followed).identity.kind == source

    def test_one_file_plain_and_gzipped_is_refused(self, tmp_path: Path, data: Path) -> None:
        (data / "mmlu_test.jsonl.gz").write_bytes(gzip.compress(b"{}"))
        with pytest.raises(EvaluationDataError) as caught:
            Resolving(tmp_path, data).resolver.suite("mmlu", Mmlu.policy(margins=MARGINS))
        assert caught.value.where == str(data)


MINE = """
name: mine
summary: two own sets of choices
suites:
  capitals: {kind: mmlu, data: data/capitals.jsonl, margins: {fp8: 0.1}, num_fewshot: 0}
  rivers: {kind: mmlu, data: data/rivers.jsonl.gz, margins: {fp8: 0.1}, num_fewshot: 0}
  notes: {kind: rouge, data: data, margins: {fp8: 0.1}}
"""
ROW = {"subject": "s", "question": "q", "choices": list("abcd"), "answer": 0}


class TestOwnData:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        rows = [f"{json.dumps({**ROW, 'question': str(n)})}\n".encode() for n in range(3)]
        (tmp_path / "place" / "data").mkdir(parents=True)
        files = {
            "policy.yaml": MINE.encode(),
            "data/capitals.jsonl": b"".join(rows[:2]),
            "data/rivers.jsonl.gz": gzip.compress(b"".join(rows)),
            "data/summarization_test.jsonl": b'{"document": "d", "summary": "s"}\n',
        }
        return write_files(tmp_path / "place", files)

    def test_paths_start_from_the_policys_directory(self, tmp_path: Path, place: Path) -> None:
        policy = load_policy(str(place / "policy.yaml"))
        resolver = Resolving(tmp_path).resolver
        numbers = {"capitals": 2, "rivers": 3, "notes": 1}
        assert Resolving(tmp_path).units(policy) == numbers
        found = resolver.suite("capitals", policy.suites["capitals"])
        assert found.folder == place / "data" / "capitals.jsonl"
        kept = resolve_generation(policy, ModelGeneration()).suites["rivers"]
        assert resolver.known("rivers", kept).questions == 3
        assert str(place) not in policy.model_dump_json()

    def test_an_absolute_path_is_not_recorded(self, tmp_path: Path, place: Path) -> None:
        file = place / "data" / "capitals.jsonl"
        written = MINE.replace("data/capitals.jsonl", str(file))
        (place / "policy.yaml").write_text(written)
        policy = load_policy(str(place / "policy.yaml"))
        assert Resolving(tmp_path).units(policy)["capitals"] == 2
        assert str(place) not in policy.model_dump_json()

    @pytest.mark.parametrize("kind", ["mmlu", "mmlu_pro", "gsm8k", "ifeval", "mbpp", "structured"])
    def test_every_kind_that_reads_files_has_it(self, tmp_path: Path, kind: str) -> None:
        file = tmp_path / "anything.jsonl"
        file.write_bytes(LINES)
        suite = kind_named(kind).policy(margins=MARGINS, data=str(file))
        found = Resolving(tmp_path).resolver.suite("mine", suite)
        assert found.folder == file

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            ("mmlu", "missing.jsonl"),
            ("mmlu", "mine.csv"),
            ("humaneval", "mine.jsonl"),
            ("needles", "mine.jsonl"),
            ("lm_eval", "mine.jsonl"),
        ],
    )
    def test_what_is_not_read_is_refused(self, tmp_path: Path, kind: str, name: str) -> None:
        write_files(tmp_path / "own", {"mine.jsonl": b"{}", "mine.csv": b"a,b"})
        task = {"task": "arc_easy"} if kind == "lm_eval" else {}
        data = str(tmp_path / "own" / name)
        suite = kind_named(kind).policy(margins=MARGINS, data=data, **task)
        with pytest.raises(UsageError) as caught:
            Resolving(tmp_path).resolver.suite("mine", suite)
        assert "policy key suites.mine.data" in caught.value.where

    def test_a_folder_without_its_files_is_refused(self, tmp_path: Path, data: Path) -> None:
        suite = Rouge.policy(margins=MARGINS, data=str(data))
        with pytest.raises(EvaluationDataError) as caught:
            Resolving(tmp_path).resolver.suite("mine", suite)
        assert caught.value.where.startswith(str(data))


LINES = b"{}\n\n  \n{}\r\n{}"


def three(first: int, **fields: Any) -> bytes:
    """Three questions, however the lines end."""
    one, two, last = (
        json.dumps({**fields, "question": f"q{n}", "prompt": f"p{n}", "task_id": n}).encode()
        for n in range(first, first + 3)
    )
    return one + b"\n\n  \n" + two + b"\r\n" + last


CHOICES = three(0, subject="s", choices=list("abcd"), answer=0)
MORE_CHOICES = three(3, subject="s", choices=list("abcd"), answer=0)
FUNCTIONS = three(
    9,
    code="def f(n):\n    return 2 * n\n",
    test_list=["assert f(2) == 4"],
    test_imports=[],
    test="assert f(3) == 6\n",
)


class TestHowMany:
    @pytest.mark.parametrize(
        ("suite", "files", "number"),
        [
            (Mmlu.policy(margins=MARGINS, num_fewshot=0), {"mmlu_test.jsonl": CHOICES}, 3),
            (
                Mmlu.policy(margins=MARGINS, num_fewshot=0),
                {
                    "mmlu_test.jsonl": CHOICES,
                    "mmlu.more.jsonl.gz": gzip.compress(MORE_CHOICES),
                    "mmlu_dev.jsonl": CHOICES,
                    "mmlu_old.jsonl.bak": LINES,
                    "mmlu_pro.jsonl": LINES,
                    "summarization.jsonl": LINES,
                },
                6,
            ),
            (Mmlu.policy(margins=MARGINS, sources=["packages"]), {}, 280),
            (HumanEval.policy(margins=MARGINS), {}, 164),
            (HumanEval.policy(margins=MARGINS, problems=["HumanEval/1", "HumanEval/2"]), {}, 2),
            (Mbpp.policy(margins=MARGINS), {"mbpp.jsonl": FUNCTIONS}, 3),
            (Mbpp.policy(margins=MARGINS, humaneval=True), {"mbpp.jsonl": FUNCTIONS}, 167),
            (Mbpp.policy(margins=MARGINS, problems=["Mbpp/9"]), {"mbpp.jsonl": FUNCTIONS}, 1),
            (Rouge.policy(margins=MARGINS, sources=["builtin"]), {}, 64),
            (Mbpp.policy(margins=MARGINS, humaneval=True, sources=["packages"]), {}, 164),
            (LmEval.policy(margins=MARGINS, task="arc_easy"), {}, 2376),
            (LmEval.policy(margins=MARGINS, task="boolq", cluster_by="passage"), {}, None),
            (LmEval.policy(margins=MARGINS, task="unheard_of"), {}, None),
        ],
    )
    def test_questions_are_counted_before_a_run(
        self, tmp_path: Path, suite: AnySuite, files: dict[str, bytes], number: int | None
    ) -> None:
        folder = write_files(tmp_path / "data", files) if files else None
        assert Resolving(tmp_path, folder).resolver.known("mine", suite).questions == number

    def test_a_limit_counts_questions_and_the_clusters_of_these(self, tmp_path: Path) -> None:
        """90 questions of 100 passages of five were planned as 90 passages; 18 are asked."""
        own = [{**ROW, "question": f"q{n}", "passage": str(n // 5)} for n in range(500)]
        rows = "".join(f"{json.dumps(row)}\n" for row in own).encode()
        folder = write_files(tmp_path / "own", {"mmlu_test.jsonl": rows})

        def counted(**asked: Any) -> int | None:
            suite = Mmlu.policy(margins=MARGINS, num_fewshot=0, **asked)
            policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"m": suite}})
            return Resolving(tmp_path, folder).units(policy)["m"]

        assert counted(cluster_by="passage") == 100
        assert counted(cluster_by="passage", questions=90) == 18
        assert clusters_asked(2_116, 3_641, 364) == 212
        assert clusters_asked(10, None, 5) == clusters_asked(10, 50, 50) == 10

    def test_copies_do_not_count(self, tmp_path: Path) -> None:
        own = [{**ROW, "question": f"q{n % 99}"} for n in range(100)]
        rows = "".join(f"{json.dumps(row)}\n" for row in own).encode()
        folder = write_files(tmp_path / "own", {"mmlu_test.jsonl": rows})
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0)
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": suite}})
        resolving = Resolving(tmp_path, folder)
        assert resolving.units(policy) == {"mine": 99}
        resolving.resolver.note_remarks(policy)
        resolving.resolver.note_remarks(policy)
        (note,) = resolving.listener.notes
        assert note.startswith("mine: 1 of 100 questions")

    def test_questions_are_laid_out_once(
        self, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An unchanged run is ready in two seconds, and laying out takes as long."""
        rows = "".join(f"{json.dumps({**ROW, 'question': str(n % 39)})}\n" for n in range(40))
        folder = write_files(tmp_path / "own", {"mmlu_test.jsonl": rows.encode()})
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0)
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": suite}})
        first = Resolving(tmp_path, folder)
        assert first.units(policy) == {"mine": 39}

        def never(*_: Any) -> Any:
            raise AssertionError("laid out again")

        with monkeypatch.context() as patched:
            patched.setattr(Mmlu, "known_questions", never)
            again = Resolving(tmp_path, folder)
            assert again.units(policy) == {"mine": 39}
            again.resolver.note_remarks(policy)
            assert len(again.listener.notes) == 1
            (folder / "mmlu_test.jsonl").write_text(json.dumps(ROW) + "\n")
            with pytest.raises(AssertionError, match="laid out again"):
                Resolving(tmp_path, folder).units(policy)
        (kept,) = (tmp_path / "known-questions").glob("*.json")
        kept.write_text("[")
        assert Resolving(tmp_path, folder).units(policy) == {"mine": 1}


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("mmlu", "mmlu_test.jsonl"),
        ("mmlu_pro", "mmlu_pro_test.jsonl"),
        ("gsm8k", "gsm8k_test.jsonl"),
        ("ifeval", "ifeval_test.jsonl"),
        ("mbpp", "mbpp_test.jsonl"),
        ("rouge", "summarization_test.jsonl"),
        ("tools", "tools_test.jsonl"),
        ("structured", "structured_test.jsonl"),
        ("fidelity", "conversations.jsonl"),
    ],
)
def test_malformed_rows_of_each_kind_are_faults(tmp_path: Path, kind: str, file: str) -> None:
    """In an environment without lm-eval and BFCL, such as this one."""
    folder = write_files(tmp_path / "data", {file: b'{"no": "question"}\n'})
    suites = {"mine": {"kind": kind, "margins": {"fp8": 0.1}}}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
    (fault,) = Resolving(tmp_path, folder).resolver.faults(policy)
    assert fault.where == f"{folder / file}, line 1"


def test_rows_are_checked_before_the_form_of_prompts_is_known(tmp_path: Path) -> None:
    row = {"prompt": "Ada is 34.", "schema": {"type": "object"}}
    folder = write_files(tmp_path / "data", {"structured_test.jsonl": json.dumps(row).encode()})
    suites = {"mine": {"kind": "structured", "margins": {"fp8": 0.1}}}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
    assert list(Resolving(tmp_path, folder).resolver.faults(policy)) == []


def test_too_few_worked_examples_are_a_fault(tmp_path: Path) -> None:
    row = {"subject": "s", "question": "q", "choices": list("abcd"), "answer": 0}
    files = {"mmlu_test.jsonl": json.dumps(row).encode()}
    suites = {"mine": {"kind": "mmlu", "num_fewshot": 2, "margins": {"fp8": 0.1}}}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
    folder = write_files(tmp_path / "data", files)
    assert len(list(Resolving(tmp_path, folder).resolver.faults(policy))) == 1


TASK = b"task: mine\ninclude: base.yaml\n"
BASE = b"dataset_path: json\ndataset_kwargs: {data_files: {test: qa*.jsonl}}\n"
TASK_FILES = {"mine.yaml": TASK, "base.yaml": BASE, "qa_1.jsonl": b"{}"}


class TestLmEvalTask:
    def identity(self, tmp_path: Path, task: Path | str) -> dict[str, Any]:
        suite = LmEval.policy(margins=MARGINS, task=str(task))
        return Resolving(tmp_path).resolver.suite("mine", suite).identity.model_dump()

    def test_a_file_is_its_content_and_that_of_all_it_names(self, tmp_path: Path) -> None:
        task = write_files(tmp_path / "task", TASK_FILES) / "mine.yaml"
        first = self.identity(tmp_path, task)
        assert first.keys() == {"kind", "digest"}
        assert first["kind"] == "task"
        moved = write_files(tmp_path / "elsewhere", TASK_FILES) / "mine.yaml"
        assert self.identity(tmp_path, moved) == first
        seen = [first]
        for name in TASK_FILES:
            with (task.parent / name).open("ab") as file:
                file.write(b"\n")
            seen.append(self.identity(tmp_path, task))
            assert seen[-1] not in seen[:-1], name

    def test_a_field_that_its_questions_share_is_said_aloud(self, tmp_path: Path) -> None:
        rows = b"".join(b'{"q": "%d", "passage_id": %d}\n' % (n, n // 4) for n in range(20))
        files = {**TASK_FILES, "qa_1.jsonl": rows}
        task = write_files(tmp_path / "task", files) / "mine.yaml"
        suites: dict[str, Any] = {
            "mine": {"kind": "lm_eval", "task": str(task), "margins": {"fp8": 0.1}},
            "long": {"kind": "needles", "margins": {"fp8": 0.1}},
        }
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
        resolving = Resolving(tmp_path)
        note_repeated_fields(policy, resolving.resolver, resolving.listener)
        (said,) = resolving.notes
        assert "mine: several questions have the same 'passage_id'" in said

    def test_made_up_texts_have_no_files(self, resolving: Resolving) -> None:
        needles = kind_named("needles")
        suite = needles.policy(margins=MARGINS)
        source = resolving.resolver.suite("long", suite)
        assert needles.local_files(suite, source.identity, source.folder) == []


class TestCalibration:
    @pytest.mark.parametrize(
        ("name", "form"),
        [
            ("texts.jsonl", "jsonl"),
            ("texts.txt", "text"),
            ("texts.csv", "csv"),
            ("texts.jsonl.gz", "jsonl"),
        ],
    )
    def test_a_local_file(self, resolving: Resolving, tmp_path: Path, name: str, form: str) -> None:
        file = tmp_path / name
        file.write_text("text")
        used, identity, path = resolving.resolver.calibration(
            Calibration(dataset=str(file), samples=3), None, "awq"
        )
        assert (identity, path) == ({"file": digest_bytes(b"text"), "form": form}, file)
        assert (used.dataset, used.samples) == (name, 3)
        assert resolving.notes == []

    @pytest.mark.parametrize("name", ["texts.parquet", "texts.json", "texts", "texts.csv.zip"])
    def test_a_file_of_another_form_is_refused(
        self, resolving: Resolving, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).write_text("text")
        with pytest.raises(UsageError):
            resolving.resolver.calibration(Calibration(dataset=str(tmp_path / name)), None, "awq")

    def test_a_profile_chooses_the_recipes_fallback(self, resolving: Resolving) -> None:
        limit = CalibrationLimit(samples=16, max_tokens=256, fallback=True)
        asked = Calibration(dataset="org/chats", fallback="builtin", samples=16, max_tokens=256)
        _, identity, file = resolving.resolver.calibration(asked, limit, "awq")
        assert file == BUILTIN_CALIBRATION
        assert identity["form"] == "jsonl"
        assert len(resolving.notes) == 1

    def test_a_limit_that_bites_is_said_aloud(self, resolving: Resolving) -> None:
        limit = CalibrationLimit(samples=16, max_tokens=256)
        used, _, _ = resolving.resolver.calibration(
            Calibration(dataset="builtin", samples=256, max_tokens=512), limit, "awq-w4a16"
        )
        assert (used.samples, used.max_tokens) == (16, 256)
        assert resolving.notes == [
            "awq-w4a16: calibrating with 16 x 256 tokens instead of 256 x 512: "
            "the profile limits it (its key calibration_limit)"
        ]


class TestHub:
    ASKED: tuple[tuple[str, Any], ...] = (
        ("calibration", {"dataset": "org/chats", "fallback": "builtin"}),
        ("calibration", {"dataset": "org/chats"}),
        ("calibration", {"dataset": "org/chats", "revision": "abc"}),
        ("suite", {"margins": {"fp8": 0.1}, "sources": ["hub", "packages"]}),
        ("suite", {"margins": {"fp8": 0.1}, "sources": ["hub"]}),
    )

    def test_offline(self, tmp_path: Path) -> None:
        said = ask_in_child(tmp_path, list(self.ASKED), HF_HUB_OFFLINE="1")
        fallen_back, refused, pinned, elsewhere, none_left = said["answers"]
        assert fallen_back["file"] == str(BUILTIN_CALIBRATION)
        assert fallen_back["calibration"]["dataset"] == "builtin"
        assert refused["kind"] == "UsageError"
        assert "'org/chats'" in refused["message"]
        assert "fallback: builtin" in refused["hint"]
        # A commit needs no looking up; whether it is in the Hub's cache shows when it is read.
        assert pinned["identity"] == {"hub": "org/chats", "revision": "abc"}
        digest = digest_bytes(DEV_FILE.read_bytes())
        identity = {"kind": "packages", "environment": "e", "digest": digest}
        assert elsewhere["identity"] == identity
        assert elsewhere["questions"] == 280
        assert none_left["kind"] == "EvaluationDataError"
        assert [note.partition(":")[0] for note in said["notes"]] == ["awq", "mmlu"]

    def test_late(self, tmp_path: Path) -> None:
        """What is used never depends on how quickly a server answers."""
        with HubStandIn() as hub:
            hub.broken = 503
            said = ask_in_child(tmp_path, list(self.ASKED), HF_ENDPOINT=hub.url)
        late, also, pinned, suite, _ = said["answers"]
        assert {late["kind"], also["kind"], suite["kind"]} == {"LateHubError"}
        assert pinned["identity"] == {"hub": "org/chats", "revision": "abc"}
        assert said["notes"] == []

    def test_reached(self, tmp_path: Path) -> None:
        with HubStandIn() as hub:
            hub.datasets = {
                name: Repository({"a.txt": b"a"}) for name in ("org/chats", "cais/mmlu")
            }
            commit = hub.datasets["org/chats"].commit
            said = ask_in_child(tmp_path, list(self.ASKED), HF_ENDPOINT=hub.url)
            # huggingface_hub makes its own requests, too.
            asked = [r.path for r in hub.requests if r.path.startswith("/api/datasets/")]
        first, second, _, suite, _ = said["answers"]
        assert first["identity"] == {"hub": "org/chats", "revision": commit}
        assert first["file"] is None
        assert first["calibration"]["dataset"] == "org/chats"
        assert first["calibration"]["revision"] == commit
        assert second["identity"] == first["identity"]
        assert suite["identity"] == {
            "kind": "hub",
            "id": "cais/mmlu",
            "config": "all",
            "split": "test",
            "shots_split": "dev",
            "revision": hub.datasets["cais/mmlu"].commit,
        }
        assert suite["questions"] == 14_042
        assert said["notes"] == []
        assert asked == ["/api/datasets/org/chats", "/api/datasets/cais/mmlu"]


SUITE = {"kind": "mmlu", "margins": {"fp8": 0.1}, "num_fewshot": 0}
ROW = {"question": "Which is it?", "choices": ["a", "b", "c", "d"], "answer": 1, "subject": "s"}


def faults_of(folder: Path, files: dict[str, list[Any]], **suites: Any) -> list[str]:
    """The messages on suites that read these files of JSON Lines."""
    data = folder / "data"
    data.mkdir()
    for name, rows in files.items():
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
    own = {name: suite.find_in(data) for name, suite in asked.suites.items()}
    eval_data = None if all(suite.data for suite in own.values()) else data
    resolver = Resolving(folder, eval_data).resolver
    found = list(resolver.faults(asked.model_copy(update={"suites": own})))
    assert all(fault.where for fault in found)
    return [fault.message for fault in found]


def numbered(rows: int, **more: Any) -> list[Any]:
    return [{**ROW, "question": f"Which is {n}?", **more} for n in range(rows)]


TOOLS = {"question": "Add.", "function": [{"name": "f"}], "ground_truth": [{"f": {"a": [1]}}]}
CALLS = {**SUITE, "kind": "tools"}
MATHS = {"question": "What is 1 + 1?", "answer": "It is 2. #### 2"}


@pytest.mark.parametrize(
    ("name", "rows", "suite"),
    [
        ("mmlu_test.jsonl", numbered(30) * 2, SUITE),
        ("mmlu_test.jsonl", [*numbered(30), *([ROW] * 4)], SUITE),
        ("tools.jsonl", [{**TOOLS, "question": q, "id": "a"} for q in "xyz"], CALLS),
        ("tools.jsonl", [TOOLS] * 9, CALLS),
        ("gsm8k.jsonl", [MATHS] * 9, {**SUITE, "kind": "gsm8k"}),
        (
            "structured.jsonl",
            [{"prompt": "A", "schema": {"type": "object"}}] * 9,
            {**SUITE, "kind": "structured"},
        ),
        (
            "summarization.jsonl",
            [{"document": "A cat sat.", "summary": "Cat."}] * 9,
            {**SUITE, "kind": "rouge"},
        ),
    ],
)
@pytest.mark.parametrize("is_own", [False, True])
def test_copies_are_refused_before_anything_runs(
    tmp_path: Path, name: str, rows: list[Any], suite: dict[str, Any], is_own: bool
) -> None:
    known = {key: value for key, value in suite.items() if key in _keys(suite["kind"])}
    own = {"data": name} if is_own else {"sources": ["eval-data"]}
    (message,) = faults_of(tmp_path, {name: rows}, mine={**known, **own})
    assert "copies" in message or "the id" in message or "each question" in message


def _keys(kind: str) -> set[str]:
    return {*kind_named(kind).policy.model_fields}


def test_clusters_that_say_nothing_are_refused_before_anything_runs(tmp_path: Path) -> None:
    suite = {**SUITE, "sources": ["eval-data"], "cluster_by": "page"}
    (message,) = faults_of(tmp_path, {"mmlu_test.jsonl": numbered(30, page="one")}, mine=suite)
    assert "page" in message


def test_copies_in_one_cluster_stay(tmp_path: Path) -> None:
    suite = {**SUITE, "sources": ["eval-data"], "cluster_by": "question"}
    assert faults_of(tmp_path, {"mmlu_test.jsonl": numbered(30) * 2}, mine=suite) == []


def test_two_suites_do_not_ask_the_same(tmp_path: Path) -> None:
    files = {"mmlu_test.jsonl": numbered(30), "mine.jsonl": numbered(31)}
    read = {**SUITE, "sources": ["eval-data"]}
    (message,) = faults_of(tmp_path, files, capitals=read, rivers=read)
    assert "capitals" in message
    assert "rivers" in message


def test_two_suites_may_ask_one_file_in_two_ways(tmp_path: Path) -> None:
    read = {**SUITE, "sources": ["eval-data"]}
    files = {"mmlu_test.jsonl": numbered(30), "mine.jsonl": numbered(31)}
    cloze = {**read, "prompt_format": "cloze"}
    assert faults_of(tmp_path, files, a=read, b=cloze, c={**SUITE, "data": "mine.jsonl"}) == []


def test_a_folder_of_a_suites_name_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "data" / "mmlu_more").mkdir(parents=True)
    (tmp_path / "data" / "mmlu_test.jsonl").write_text(json.dumps(ROW))
    suite = Mmlu.policy(margins=MARGINS, num_fewshot=0)
    with pytest.raises(EvaluationDataError) as caught:
        Resolving(tmp_path, tmp_path / "data").resolver.suite("mmlu", suite)
    assert caught.value.where.endswith("mmlu_more")
