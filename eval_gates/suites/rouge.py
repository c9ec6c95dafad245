"""Summaries scored by ROUGE (Lin 2004) and BLEU.

ROUGE is by rouge-score over words of any script; those of a-z and 0-9 are stemmed (Porter).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from eval_gates.reply_forms import without_added_entities
from eval_gates.rows import Question, Reply
from eval_gates.suites.generation import GeneratingTask, TextKind, is_unsolved
from eval_gates.suites.json_lines import TEXT, check_row, id_of, read_rows
from eval_gates.suites.sources import HubQuestions, QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, Read
from eval_gates.suites.word_tokens import bleu_form, bleu_tokenizer, words_of
from prepare.errors import EvaluationDataError
from recipes.generation import MaxTokens

Document = dict[str, Any]

STEM = "summarization"
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
METRICS = (*ROUGE, "bleu")
CARRIED_FILE = Path(__file__).parents[1] / "data" / "summaries.jsonl"

PROMPTS: dict[str, str] = {
    "chat": "Summarize the following text in one sentence.\n\n{document}",
    "completion": (
        "Summarize the following text in one sentence.\n\nText: {document}\n\n"
        "Summary in one sentence:"
    ),
}
# A base model continues after its sentence; a chat model may begin with a heading.
STOPS = {"completion": ["\n"], "chat": ["\n\n"]}

# A sentence ends at its mark and any quotes or brackets, before space and its next start; some
# scripts' marks need no space.
_SENTENCE_END = re.compile(
    r"""([.!?…؟۔।॥։]["')\]”’»]*)\s+(?=["'(\[“‘A-Z0-9]|[^\x00-\x7f])"""
    r"""|([。！？｡።།។။]["')\]”’」』）]*)\s*(?=\S)"""
)

_FIELDS = "each line needs document, and summary (a text) or references (a list of texts)"


class RougeTask(GeneratingTask):
    """Texts to summarize."""

    kind: Literal["rouge"] = "rouge"
    metric: Literal["rouge1", "rouge2", "rougeL", "rougeLsum", "bleu"] = "rougeL"
    max_tokens: MaxTokens = 96


def read_carried() -> list[Document]:
    """Return the project's documents."""
    return [_document(row, place) for place, row in read_rows(CARRIED_FILE)]


def score(candidate: str, references: list[str]) -> dict[str, float]:
    """Return a summary's ROUGE-1, -2, -L and -Lsum F-measures and its BLEU, each in [0, 1].

    ROUGE takes the best reference (Cachola et al. 2020), BLEU all (Papineni et al. 2002; sacrebleu,
    one sentence).
    """
    if not references:
        raise ValueError("a summary without a reference cannot be scored")
    lines = a_sentence_a_line(candidate)
    best = _scorer().score_multi([a_sentence_a_line(text) for text in references], lines)
    scores = {metric: float(best[metric].fmeasure) for metric in ROUGE}
    return {**scores, "bleu": _bleu(candidate, references)}


def a_sentence_a_line(text: str) -> str:
    """Return the text with a line per sentence, as ROUGE-Lsum needs."""
    return _SENTENCE_END.sub(r"\1\2\n", text.strip())


def _bleu(candidate: str, references: list[str]) -> float:
    from sacrebleu import sentence_bleu

    tokenizer = bleu_tokenizer(references)
    percent = sentence_bleu(
        bleu_form(candidate, tokenizer),
        [bleu_form(text, tokenizer) for text in references],
        use_effective_order=True,
        tokenize=tokenizer,
    ).score
    return min(1.0, float(percent) / 100)  # a perfect one is 100.00000000000004


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), tokenizer=_StemmedWords())


class _StemmedWords:
    """Tokenizer of rouge-score, which for ASCII gives what its own does."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self._stem = PorterStemmer().stem

    def tokenize(self, text: str) -> list[str]:
        return [
            self._stem(word) if word.isascii() and len(word) > 3 else word
            for word in words_of(text)
        ]


def _document(row: dict[str, Any], place: str) -> Document:
    texts = {"type": "array", "minItems": 1, "items": TEXT}
    right = {"references": texts} if "references" in row else {"summary": TEXT}
    check_row(row, place, _FIELDS, document=TEXT, **right)
    references = row["references"] if "references" in row else [row["summary"]]
    if not all(map(words_of, references)):
        raise EvaluationDataError(
            "a reference has no letter and no digit, so no summary scores",
            where=place,
            hint=_FIELDS,
        )
    named = {"id": id_of(row, ""), "title": str(row.get("title") or "")}
    return {**named, "document": row["document"], "references": references}


class Rouge(TextKind[RougeTask]):
    """Summaries, scored by rouge-score or sacrebleu."""

    task = RougeTask
    sources = ("eval-data", "hub")
    folder_stem = STEM
    carried = CARRIED_FILE
    hub = HubQuestions(
        QuestionSource(kind="hub", id="abisee/cnn_dailymail", config="3.0.0", split="test"), 11_490
    )
    assumed_baseline = 0.3
    scores_unrelated = True
    reads_cut_off = True
    stops = STOPS

    def questions(self, task: RougeTask, order: QuestionOrder) -> Read:
        rows = self.read(order.source, order.folder)
        if order.source.kind == "hub":
            renamed = {"article": "document", "highlights": "summary"}
            rows = [(at, {new: row[old] for old, new in renamed.items()}) for at, row in rows]
        documents = [_document(row, place) for place, row in rows]
        template = PROMPTS["completion" if task.prompt_format == "completion" else "chat"]
        return [
            Question(
                row.get("id") or f"document/{number}",
                template.format(document=row["document"]),
                expected="\n\n".join(row["references"]),
                data={key: row[key] for key in ("title", "document", "references")},
            )
            for number, row in enumerate(documents)
        ], {}

    def prepare_scoring(self, task: RougeTask) -> None:
        score("Once.", ["Once."])

    def score_text(self, task: RougeTask, question: Question, reply: Reply) -> float:
        return score(_plain(reply, question), question.data["references"])[task.metric]

    def own(self, task: RougeTask, question: Question, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return all metrics' means over the samples."""
        texts = ["" if is_unsolved(task, reply) else _plain(reply, question) for reply in replies]
        scores = [score(text, question.data["references"]) for text in texts]
        return {name: sum(score[name] for score in scores) / len(scores) for name in METRICS}

    def metric(self, task: RougeTask, laid_out: str | None) -> str:
        return task.metric

    def typical_change(self, task: RougeTask) -> float:
        return 0.1


def _plain(reply: Reply, question: Question) -> str:
    return without_added_entities(reply.text, question.prompt)
