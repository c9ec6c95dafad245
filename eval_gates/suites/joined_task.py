"""Several lm-eval tasks as one: each document is asked and scored by its own task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval_gates.suites.fixed_task import Document


class MemberDocument(Document):
    """Document that knows its task; lm-eval keeps the object."""

    member: str


def join_tasks(members: Mapping[str, Any], order: Sequence[tuple[str, int]]) -> Any:
    """Return one lm-eval task over the documents of several fixed tasks.

    Args:
        members: tasks by name, of one output type, with filters of the same names.
        order: each document's task and its number there.
    """
    from lm_eval.api.task import Task

    first = next(iter(members.values()))

    class JoinedTask(Task):  # type: ignore[misc]
        """Delegates all that concerns one document."""

        VERSION, OUTPUT_TYPE = first.VERSION, first.OUTPUT_TYPE

        def __init__(self) -> None:
            self._config = first.config
            self._instances = None
            self.documents = [_document(name, members[name], number) for name, number in order]

        @property
        def eval_docs(self) -> Any:
            return self.documents

        def doc_iterator(self, *, samples: list[int] | None = None, **_: Any) -> Any:
            numbers = range(len(self.documents)) if samples is None else samples
            return enumerate(self.documents[number] for number in numbers)

        def fewshot_context(
            self, doc: MemberDocument, num_fewshot: int = 0, **settings: Any
        ) -> Any:
            task = members[doc.member]
            return task.fewshot_context(doc, num_fewshot=task.config.num_fewshot or 0, **settings)

        def construct_requests(self, doc: MemberDocument, ctx: Any, **settings: Any) -> Any:
            return members[doc.member].construct_requests(doc, ctx, **settings)

        def process_results(self, doc: MemberDocument, results: Any) -> Any:
            return members[doc.member].process_results(doc, results)

        def score_answer(self, doc: MemberDocument, answer: Any) -> dict[str, Any]:
            found: dict[str, Any] = members[doc.member].score_answer(doc, answer)
            return found

        def doc_to_text(self, doc: MemberDocument) -> Any:
            return members[doc.member].doc_to_text(doc)

        def doc_to_target(self, doc: MemberDocument) -> Any:
            return members[doc.member].doc_to_target(doc)

        def doc_to_choice(self, doc: MemberDocument) -> Any:
            return members[doc.member].doc_to_choice(doc)

        def doc_to_prefix(self, doc: MemberDocument) -> Any:
            return members[doc.member].doc_to_prefix(doc)

        def apply_filters(self) -> None:
            for name, task in members.items():
                task._instances = [i for i in self.instances if i.doc.member == name]
                if task._instances:
                    task.apply_filters()

        def has_training_docs(self) -> bool:
            return False

        has_validation_docs = has_test_docs = has_training_docs

        def aggregation(self) -> Any:
            return first.aggregation()

        def higher_is_better(self) -> Any:
            return first.higher_is_better()

    return JoinedTask()


def _document(name: str, task: Any, number: int) -> MemberDocument:
    document = MemberDocument(task.eval_docs[number])
    document.member = name
    return document
