"""lm-eval tasks with documents in memory, of which any batch can be requested.

A document's worked examples depend on its number alone, not on one random stream as in lm-eval.
Several samples of one answer are requests with different seeds, because lm-eval's `repeats` uses
one constant seed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

FIRST_SEED = 1234  # lm-eval's own, of worked examples
SEEDS = 1 << 31
Document = dict[str, Any]
ChatOf = Callable[[Document], dict[str, Any]]
"""A document's chat request: `messages`, and `tools` if it has some."""


class InMemoryDataset(list[Document]):
    """Rows in memory, with the part of a dataset's interface that lm-eval uses."""

    @property
    def features(self) -> Mapping[str, None]:
        return dict.fromkeys(self[0])


def task_of(
    config: dict[str, Any],
    documents: list[Document],
    samples: int = 1,
    chat_of: ChatOf | None = None,
) -> Any:
    """Return an lm-eval task over rows in memory, numbered by position; see `fixed_task`."""
    splits = {"test": InMemoryDataset(documents)}
    return fixed_task(config, splits, samples=samples, chat_of=chat_of)


def fixed_task(
    config: dict[str, Any],
    splits: Mapping[str, Any],
    order: Sequence[int] | None = None,
    samples: int = 1,
    chat_of: ChatOf | None = None,
) -> Any:
    """Return an lm-eval task over given splits; the config's dataset is ignored.

    Args:
        splits: by name; each a dataset of the `datasets` library, or :class:`InMemoryDataset`.
        order: documents of the evaluated split, in their new order; None: all in their own order.
        samples: answers per document, each with another seed.
        chat_of: for documents that are asked by a chat request of the server.
    """
    from lm_eval.api.task import ConfigurableTask

    wanted_samples = samples

    class FixedTask(ConfigurableTask):  # type: ignore[misc]
        """Overrides that read no dataset and make documents independent."""

        documents: InMemoryDataset | None = None

        def download(self, dataset_kwargs: Any = None, **kwargs: Any) -> None:
            self.dataset = splits

        @property
        def eval_docs(self) -> Any:
            return super().eval_docs if self.documents is None else self.documents

        def doc_iterator(
            self,
            *,
            rank: int = 0,
            limit: int | None = None,
            world_size: int = 1,
            samples: list[int] | None = None,
        ) -> Iterator[tuple[int, Document]]:
            numbers = range(len(self.eval_docs)) if samples is None else samples
            return enumerate(self.eval_docs[number] for number in numbers)

        def fewshot_context(self, doc: Document, *args: Any, **kwargs: Any) -> Any:
            self.set_fewshot_seed(_seed_of(doc))
            return super().fewshot_context(doc, *args, **kwargs)

        def construct_requests(self, doc: Document, ctx: Any, **kwargs: Any) -> Any:
            request = super().construct_requests(doc=doc, ctx=ctx, **kwargs)
            if self.OUTPUT_TYPE != "generate_until":
                return request
            prompt, settings = request.args
            if chat_of is not None:
                settings = {**settings, "chat": chat_of(doc)}
            is_drawn = wanted_samples > 1 or bool(settings.get("do_sample"))
            key = digest_of(doc)
            return [
                replace(
                    request,
                    arguments=(
                        prompt,
                        {**settings, "seed": sample_seed(key, number)} if is_drawn else settings,
                    ),
                    idx=number,
                    resps=[],  # or all would share one list
                    filtered_resps={},
                )
                for number in range(wanted_samples)
            ]

        def process_results(self, doc: Document, results: Any) -> Any:
            # Suites score generated answers themselves, each alone and with a limit.
            if self.OUTPUT_TYPE == "generate_until":
                return {}
            return super().process_results(doc, results)

        def score_answer(self, doc: Document, answer: Any) -> dict[str, Any]:
            """Return lm-eval's metrics of a generated answer; unlimited, see :func:`grade_all`."""
            random.seed(0)  # IFEval's checkers draw arguments that are out of their range
            return dict(super().process_results(doc, [answer]))

        def aggregation(self) -> dict[str, Any]:
            return defaultdict(lambda: len)

    # Some of lm-eval's tasks shuffle an item's choices with the global generator.
    random.seed(0)
    task = FixedTask(config=config)
    found = task.eval_docs
    task.documents = InMemoryDataset(
        found if order is None else [found[number] for number in order]
    )
    return task


def sample_seed(question: str, number: int) -> int:
    """Return the seed of a question's answer of that number.

    With common seeds, one random stream would make questions dependent.
    """
    content = hashlib.sha256(f"{number}/{question}".encode()).hexdigest()
    return int(content[:12], 16) % SEEDS


def digest_of(document: Document) -> str:
    """Return the SHA-256 of a document's content, in hex."""
    content = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _seed_of(document: Document) -> int:
    return FIRST_SEED + int(digest_of(document)[:12], 16)
