"""Summaries against references by ROUGE (Lin 2004) and BLEU, generated through lm-eval.

Where the documents come from (a folder, or the project's own short texts), the lm-eval task that
asks for a summary of each, and its scores.

ROUGE is by rouge-score with Porter stemming, whose tokens are runs of a-z and 0-9: texts in other
scripts have none and score 0, so gate those by BLEU.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from eval_gates.suites.json_lines import read_rows, rows_of_files, text_of
from pipeline.core.errors import EvaluationDataError

Form = Literal["completion", "chat"]
Document = dict[str, Any]

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
METRICS = (*ROUGE, "bleu")
CARRIED_FILE = Path(__file__).parents[1] / "data" / "summaries.jsonl"

PROMPTS: dict[Form, str] = {
    "chat": "Summarize the following text in one sentence.\n\n{{document}}",
    "completion": (
        "Summarize the following text in one sentence.\n\nText: {{document}}\n\n"
        "Summary in one sentence:"
    ),
}
# A base model goes on writing after its sentence; a chat model may begin with a short heading.
STOPS: dict[Form, list[str]] = {"completion": ["\n"], "chat": ["\n\n"]}

# A sentence ends at its mark and any quotes or brackets, before a space and what can begin one.
_SENTENCE_END = re.compile(r"""([.!?]["')\]”’]*)\s+(?=["'(\[“‘A-Z0-9])""")

_FIELDS = "each line needs document, and summary (a text) or references (a list of texts)"


def read_folder(folder: Path) -> list[Document]:
    """The documents of `summarization*.jsonl[.gz]`, in the files' own order.

    Each has `document` and `references` (one text or more), and `id` and `title`, which may be
    empty.
    """
    documents = [_document(row, place) for place, row in rows_of_files(folder, "summarization")]
    if not documents:
        raise EvaluationDataError(
            "there are no documents to summarize",
            where=str(folder),
            hint=f"put them in summarization_test.jsonl[.gz] there; {_FIELDS}",
        )
    return documents


def read_builtin() -> list[Document]:
    """The short documents that were written for this project, with their summaries."""
    return [_document(row, place) for place, row in read_rows(CARRIED_FILE)]


def score(candidate: str, references: list[str]) -> dict[str, float]:
    """A summary's ROUGE-1, -2, -L and -Lsum F-measures and its BLEU, each in [0, 1].

    With several references a ROUGE metric takes its best reference, as SciTLDR's protocol does
    (Cachola et al. 2020); BLEU counts against all of them at once, as it is defined (Papineni et
    al. 2002), by sacrebleu for one sentence (exponential smoothing, effective order). Lsum wants
    a sentence a line: :func:`a_sentence_a_line` makes it so. Needs the evaluate environment.

    Raises:
        ValueError: there is no reference.
    """
    if not references:
        raise ValueError("a summary without a reference cannot be scored")
    lines = a_sentence_a_line(candidate)
    best = _scorer().score_multi([a_sentence_a_line(text) for text in references], lines)
    scores = {metric: float(best[metric].fmeasure) for metric in ROUGE}
    return {**scores, "bleu": _bleu(candidate, references)}


def a_sentence_a_line(text: str) -> str:
    """The text with a line break after each sentence, for ROUGE-Lsum; its words stay.

    Line breaks that are there (CNN/DailyMail's highlights have them) stay too. A sentence ends at
    `.`, `!` or `?` before space and a capital, digit or quote: no model of the language, which
    would have to be downloaded, so `Dr. Who` is cut in two, in candidate and reference alike.
    """
    return _SENTENCE_END.sub(r"\1\n", text.strip())


def task_config(form: Form, max_tokens: int) -> dict[str, Any]:
    """The configuration of an lm-eval `ConfigurableTask` that asks for a summary of each document.

    Args:
        form: `chat` for a user's message, `base` for a text to go on from.
    """
    return {
        "task": "rouge",
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": PROMPTS[form],
        "doc_to_target": "{{references[0]}}",
        "generation_kwargs": {
            "until": list(STOPS[form]),
            "max_gen_toks": max_tokens,
            "do_sample": False,
            "temperature": 0.0,
        },
        "num_fewshot": 0,
        "process_results": score_answer,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in METRICS
        ],
        "metadata": {"version": 1.0},
    }


def score_answer(document: Document, answers: list[str]) -> dict[str, float]:
    """lm-eval's hook: the scores of the one answer to a document."""
    return score(answers[0], list(document["references"]))


def _bleu(candidate: str, references: list[str]) -> float:
    from sacrebleu import sentence_bleu

    percent = sentence_bleu(candidate, references, use_effective_order=True).score
    return min(1.0, float(percent) / 100)  # a perfect one is 100.00000000000004


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)


def _document(row: dict[str, Any], place: str) -> Document:
    return {
        "id": str(row.get("id", "")),
        "title": str(row.get("title", "")),
        "document": text_of(row, "document", place, _FIELDS),
        "references": _references(row, place),
    }


def _references(row: dict[str, Any], place: str) -> list[str]:
    if "references" not in row:
        return [text_of(row, "summary", place, _FIELDS)]
    references = row["references"]
    if (
        not isinstance(references, list)
        or not references
        or not all(isinstance(text, str) and text.strip() for text in references)
    ):
        raise EvaluationDataError(
            "'references' is not a list of one text or more", where=place, hint=_FIELDS
        )
    return references
