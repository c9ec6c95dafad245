"""Readers of JSON Lines, plain or gzipped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prepare.errors import EvaluationDataError, raise_as
from prepare.untrusted import UntrustedLinesError, list_names, parse_json, read_lines

TEXT = {"type": "string", "pattern": r"\S"}  # JSON schema of a text that is not blank
_MAX_FAULT = 300  # characters
READ = (".jsonl", ".jsonl.gz")
# What other files with questions may be called; a backup's name ends otherwise.
_OTHER_FORMS = re.compile(
    r"\.(jsonl|csv|tsv|json|ndjson|parquet|arrow|feather|xlsx?|ya?ml|txt)(\.(gz|bz2|xz|zst|zip))?$",
    re.IGNORECASE,
)
FIELDS = "fields"  # key of a laid-out row: all of its fields, where clusters are wanted


def find_files(folder: Path, stem: str, *, but_not: Iterable[str | None] = ()) -> list[Path]:
    """Return `<stem>*.jsonl` and `<stem>*.jsonl.gz` of `folder`, by name; see :func:`has_stem`.

    `but_not` has the stems of other files. EvaluationDataError: what has that stem is a
    folder or in another form, or there both plain and gzipped.
    """
    if not folder.is_dir():
        raise EvaluationDataError(
            "the folder of evaluation data does not exist",
            where=str(folder),
            hint="give a folder that exists to --eval-data",
        )
    there = _names_in(folder)
    others = [other for other in but_not if other]
    named = [
        name
        for name in there
        if has_stem(name, stem) and not any(has_stem(name, other) for other in others)
    ]
    for name in named:
        if (folder / name).is_dir() or (not name.endswith(READ) and _OTHER_FORMS.search(name)):
            raise EvaluationDataError(
                "these questions are in a form that is not read",
                where=str(folder / name),
                hint=f"write JSON Lines, a question a line, to {stem}*.jsonl or {stem}*.jsonl.gz "
                "(docs/how-to/suites.md has the keys), and move this out of the folder",
            )
    files = [folder / name for name in named if name.endswith(READ)]
    names = {path.name for path in files}
    for name in sorted(names):
        if f"{name}.gz" in names:
            raise EvaluationDataError(
                f"{name} and {name}.gz are both there, and would count every question twice",
                where=str(folder),
                hint="remove one of the two",
            )
    return files


def has_stem(name: str, stem: str) -> bool:
    """Return whether a file's name begins with that word: mmlu_professional_law has no mmlu_pro."""
    return name.startswith(stem) and not name[len(stem) :][:1].isalpha()


def question_files(folder: Path) -> list[str]:
    """Return names of a folder's files that may hold questions, in any form; raises as above."""
    return [name for name in _names_in(folder) if name.endswith(READ) or _OTHER_FORMS.search(name)]


def _names_in(folder: Path) -> list[str]:
    with raise_as(
        EvaluationDataError,
        "the folder of evaluation data cannot be read",
        folder,
        "give a folder with little else in it to --eval-data",
    ):
        return list_names(folder)


def package_file(package: str, *parts: str) -> Path:
    """Return a package's data file without an import; EvaluationDataError without it."""
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if (file := Path(folder, *parts)).is_file():
            return file
    raise EvaluationDataError(
        "the questions' package is not installed here",
        where=f"package {package}, {'/'.join(parts)}",
        hint="run in the evaluate environment: prepare doctor --build evaluate",
    )


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's place (`file, line 3`) and object."""
    for number, line in enumerate(data_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _object(line, place)


def data_lines(path: Path) -> Iterator[str]:
    """Yield lines, including empty ones."""
    with raise_as(
        EvaluationDataError,
        "cannot read the evaluation data",
        path,
        "check that the file is complete, readable, UTF-8 text (gzipped if it ends .gz)",
        errors=(OSError, UntrustedLinesError),
    ):
        yield from read_lines(path)


def check_row(row: Mapping[str, Any], place: str, hint: str, **keys: Any) -> None:
    """Raise EvaluationDataError unless the row has these keys, by JSON schema."""
    check_schema(row, {"required": [*keys], "properties": keys}, place, hint)


def check_schema(row: Mapping[str, Any], schema: Mapping[str, Any], place: str, hint: str) -> None:
    """Raise EvaluationDataError for a row that does not fit."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    fault = best_match(Draft202012Validator(schema).iter_errors(row))
    if fault is None:
        return
    words = fault.message
    if len(words) > _MAX_FAULT:  # it shows the value
        words = f"does not fit {json.dumps({fault.validator: fault.validator_value})}"
    key = f"'{fault.absolute_path[0]}': " if fault.absolute_path else ""
    raise EvaluationDataError(f"{key}{words}"[:_MAX_FAULT], where=place, hint=hint)


def id_of(row: Mapping[str, Any], otherwise: str) -> str:
    """Return the row's own id as a text; `otherwise` where it is missing, null or blank."""
    id_ = row.get("id")
    return str(id_) if id_ is not None and str(id_).strip() else otherwise


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON Lines."""
    # Half of a surrogate pair has no UTF-8, but an escape in JSON.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        row = parse_json(line, whole_text=False)
    except ValueError as error:
        raise EvaluationDataError(
            f"this line is not JSON: {error}", where=place, hint="fix or remove the line"
        ) from error
    if not isinstance(row, dict):
        raise EvaluationDataError(
            f"this line is a JSON {type(row).__name__}, not an object",
            where=place,
            hint="write one object a line",
        )
    return row
