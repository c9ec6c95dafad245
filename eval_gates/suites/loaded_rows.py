"""Rows as the library `datasets` loads them, compared with the lines of their file.

It gives a column one type: next to 2.5 an 18 becomes 18.0, and a day becomes a time. A prompt or
the right answer would then have another text than the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from eval_gates.suites.json_lines import READ, read_rows
from prepare.errors import EvaluationDataError


def check_loaded(rows: Iterable[Mapping[str, Any]], files: Sequence[str]) -> None:
    """Raise EvaluationDataError for the first value that is another one than in JSON Lines.

    `rows` are the first ones of the files, in their order. Files in other forms are not compared.
    """
    if not all(name.endswith(READ) for name in files):
        return
    written = chain.from_iterable(read_rows(Path(name)) for name in files)
    for loaded, (place, row) in zip(rows, written, strict=False):
        for key, value in row.items():
            if not is_kept(value, loaded.get(key)):
                raise EvaluationDataError(
                    f"the library 'datasets' reads the field '{key}' as {loaded.get(key)!r:.80}, "
                    f"and the file has {value!r:.80}",
                    where=place,
                    hint="give the field values of one form in all lines: texts, such as "
                    '"18" and "2.5", are kept as they are',
                )


def is_kept(written: Any, loaded: Any) -> bool:
    """Return whether a JSON value was loaded as it is; objects may have further empty keys."""
    if isinstance(written, dict) and isinstance(loaded, dict):
        return all(is_kept(value, loaded.get(key)) for key, value in written.items())
    if isinstance(written, list) and isinstance(loaded, list):
        pairs = zip(written, loaded, strict=False)
        return len(written) == len(loaded) and all(is_kept(*pair) for pair in pairs)
    return type(written) is type(loaded) and bool(written == loaded)
