"""lm-eval tasks whose documents are fixed beforehand, so that any batch of them can be asked.

lm-eval is made to ask a whole task at once: it reads the dataset through a cache in the user's
home, walks through all documents to find a few, and draws worked examples from one stream of
random numbers, so that a question's prompt depends on which were asked before it. Here the
documents lie in memory, each is found by its number, and its examples depend on itself alone.

Several samples of one answer are requests with seeds of their own: lm-eval's `repeats` sends one
request several times, with one constant seed, to which a server gives one answer several times.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

FIRST_SEED = 1234  # lm-eval's own, of worked examples
SEEDS = 1 << 31
Document = dict[str, Any]


class InMemoryDataset(list[Document]):
    """Rows in memory, with what lm-eval asks of a dataset: the names of its columns."""

    @property
    def features(self) -> Mapping[str, None]:
        """The columns, as the first row has them."""
        return dict.fromkeys(self[0])


def task_of(config: dict[str, Any], documents: list[Document], samples: int = 1) -> Any:
    """An lm-eval task over rows in memory; the numbers to ask for are the rows' own.

    Args:
        documents: at least one.
        samples: answers drawn for each document; more than one only where text is generated.
    """
    return fixed_task(config, {"test": InMemoryDataset(documents)}, samples=samples)


def fixed_task(
    config: dict[str, Any],
    splits: Mapping[str, Any],
    order: Sequence[int] | None = None,
    samples: int = 1,
) -> Any:
    """An lm-eval task over splits that are already here, whatever dataset the config names.

    Args:
        config: of an lm-eval `ConfigurableTask`.
        splits: by name; each a dataset of the `datasets` library, or :class:`InMemoryDataset`.
        order: which documents of the evaluated split, in the order of their new numbers; all in
            their own order when absent.
        samples: answers drawn for each document; with several each document has an `id`.
    """
    from lm_eval.api.task import ConfigurableTask

    wanted_samples = samples

    class FixedTask(ConfigurableTask):  # type: ignore[misc]
        """Overrides what would read a dataset, or make one document depend on others."""

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
            """Number within the batch, and document: lm-eval looks its own number up itself."""
            numbers = range(len(self.eval_docs)) if samples is None else samples
            return enumerate(self.eval_docs[number] for number in numbers)

        def fewshot_context(self, doc: Document, *args: Any, **kwargs: Any) -> Any:
            self.set_fewshot_seed(_seed_of(doc))
            return super().fewshot_context(doc, *args, **kwargs)

        def construct_requests(self, doc: Document, ctx: Any, **kwargs: Any) -> Any:
            request = super().construct_requests(doc=doc, ctx=ctx, **kwargs)
            if wanted_samples == 1:
                return request
            prompt, settings = request.args
            return [
                replace(
                    request,
                    arguments=(prompt, {**settings, "seed": sample_seed(doc["id"], number)}),
                    idx=number,
                    resps=[],  # or all would share one list
                    filtered_resps={},
                )
                for number in range(wanted_samples)
            ]

        def aggregation(self) -> dict[str, Any]:
            """Nothing: some means over a batch do not exist, and none is used."""
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
    """The seed by which a question's answer of that number is drawn.

    Each question has seeds of its own: with the same ones everywhere, one lucky stream of random
    numbers would favour one side in all of them, and the questions would not be independent.
    """
    content = hashlib.sha256(f"{number}/{question}".encode()).hexdigest()
    return int(content[:12], 16) % SEEDS


def digest_of(document: Document) -> str:
    """SHA-256 of a document's content, in hex."""
    content = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _seed_of(document: Document) -> int:
    return FIRST_SEED + int(digest_of(document)[:12], 16)
