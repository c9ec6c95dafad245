"""Needles: the texts, the numbers in them, and the score of an answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.rows import Question
from eval_gates.suites import needles
from eval_gates.suites.needles import NEEDLES, Needles, NeedlesKind, NeedlesTask
from eval_gates.suites.sources import QuestionSource, Row
from eval_gates.suites.suite_kind import QuestionOrder
from prepare.errors import EvaluationDataError, UsageError
from prepare.events import NullProgress

KINDS = st.sampled_from(NEEDLES)
SHORT = NeedlesTask(lengths=[512, 1024], cases=12, prompt_format="completion")


def read(task: NeedlesTask) -> list[Row]:
    order = QuestionOrder(QuestionSource(kind="builtin"), None, None, NullProgress())  # type: ignore[arg-type]
    return [question.to_row() for question in NeedlesKind().questions(task, order)[0]]


class TestCase:
    @given(st.text(max_size=9), KINDS, st.integers(1_200, 40_000), st.floats(0, 0.999))
    def test_a_text_holds_its_numbers_once_and_is_no_longer_than_allowed(
        self, seed: str, kind: Needles, characters: int, depth: float
    ) -> None:
        case = needles.build_case(seed, kind, characters, depth)

        assert characters - 700 <= len(case.text) <= characters
        assert len(set(case.values)) == len(case.values) == (4 if kind == "multi_value" else 1)
        pairs = re.findall(r"One of the special numbers for ([a-z-]+) is (\d{7})\.", case.text)
        assert [number for key, number in pairs if key == case.key] == list(case.values)
        assert len({number for _, number in pairs}) == len(pairs)
        others = {key for key, _ in pairs} - {case.key}
        assert (len(others) >= 3) == (kind == "multi_key")
        assert all(set(key.split("-")) & set(case.key.split("-")) for key in others)
        assert needles.build_case(seed, kind, characters, depth) == case


class TestScore:
    @pytest.mark.parametrize(
        ("answer", "score"),
        [
            ("1234567", 1.0),
            ("The special number is **1,234,567**.", 1.0),
            ("1234568", 0.0),
            ("12345678", 0.0),
            ("123456", 0.0),
            ("", 0.0),
            ("7654321, no, 1234567", 0.0),
            ("1234567 or 7654321", 1.0),
        ],
    )
    def test_one_number_is_the_first_of_the_answer(self, answer: str, score: float) -> None:
        assert needles.share_found(answer, ["1234567"]) == score

    @pytest.mark.parametrize(
        ("answer", "score"),
        [
            ("1111111, 2222222, 3333333 and 4444444", 1.0),
            ("1. 4444444\n2. 1111111", 0.5),
            ("1111111, 1111111, 1111111, 1111111, 2222222", 0.5),
            ("9999999 8888888 7777777 6666666 1111111", 0.0),
        ],
    )
    def test_several_numbers_count_by_share(self, answer: str, score: float) -> None:
        values = ["1111111", "2222222", "3333333", "4444444"]
        assert needles.share_found(answer, values) == score

    @given(st.text(max_size=60), st.lists(st.integers(10**6, 10**7 - 1), min_size=1, unique=True))
    def test_any_answer_has_a_share(self, answer: str, numbers: list[int]) -> None:
        values = [str(number) for number in numbers]
        assert 0 <= needles.share_found(answer, values) <= 1
        assert needles.share_found(", ".join(values), values) == 1


class TestSuite:
    def test_every_length_has_all_kinds_at_all_depths(self) -> None:
        rows = read(SHORT)

        assert len(rows) == 24
        assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == 24
        for length in SHORT.lengths:
            for kind in NEEDLES:
                depths = [r["depth"] for r in rows if (r["length"], r["needles"]) == (length, kind)]
                assert depths == [0.125, 0.375, 0.625, 0.875]

    def test_a_models_own_room_is_a_quarter_of_each_length(self) -> None:
        rows = read(SHORT.model_copy(update={"max_tokens": "model"}))
        found = {row["length"]: row["characters"] for row in rows}
        tokens = {length: length - length // 4 - needles.FRAME_TOKENS for length in SHORT.lengths}
        assert found == {n: int(3.5 * number) for n, number in tokens.items()}

    def test_another_text_than_the_one_laid_out_is_refused(self) -> None:
        row = read(SHORT)[0]
        with pytest.raises(EvaluationDataError) as caught:
            needles.request_of(SHORT, Question.from_row({**row, "text_sha256": "another"}))
        assert caught.value.where == "questions.jsonl"

    @pytest.mark.parametrize(
        ("max_tokens", "max_length", "lengths"),
        [
            (128, 65536, [4096, 16384, 65536]),
            (128, 65535, [4096, 16384]),
            ("model", 4096, [4096]),
            (8192, 16384, [4096]),
            (8192, 3072 + 8192, [4096]),
        ],
    )
    def test_longer_texts_than_the_model_takes_are_left_out(
        self, max_tokens: Any, max_length: int, lengths: list[int]
    ) -> None:
        task, notes = NeedlesTask(max_tokens=max_tokens), list[str]()
        fitted = NeedlesKind().fit("long", task, max_length, notes.append)
        assert fitted.lengths == lengths
        assert bool(notes) == (lengths != task.lengths)

    @pytest.mark.parametrize(("max_tokens", "max_length"), [(128, 4095), (8192, 3071 + 8192)])
    def test_no_length_that_fits_is_refused(self, max_tokens: Any, max_length: int) -> None:
        with pytest.raises(UsageError) as caught:
            NeedlesKind().fit("long", NeedlesTask(max_tokens=max_tokens), max_length, print)
        assert caught.value.where == "policy key suites.long.lengths"
