"""Clusters of questions: one unit of evidence each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

Documents = Sequence[Mapping[str, Any]]


class Clustered(Protocol):
    """A question or an answer."""

    @property
    def cluster(self) -> str:
        """Label of what it belongs to; '' if it is alone."""


Row = TypeVar("Row", bound=Clustered)

_PASSAGE = 80  # characters of a text that is no mere word or name
_FEW = 0.05  # of the documents; copies are counted by the same share
_LARGEST_MEAN_CLUSTER = 20  # rows; a field with fewer values sorts rows, as a subject does
_NAMES = re.compile("passage|document|doc|context|article|story|paragraph|problem|group|cluster")


def labels_of(rows: Sequence[Clustered]) -> list[str]:
    """Return each row's cluster, or a unique label."""
    return [row.cluster or f"#{number}" for number, row in enumerate(rows)]


def group_by_cluster(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows by cluster, if they have one."""
    pairs = zip(labels_of(rows), rows, strict=True)
    return [[row for _, row in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def means(rows: Sequence[Clustered], key: str) -> list[float]:
    """Return each cluster's mean of that key; a row without a cluster is one."""
    return [
        sum(float(getattr(row, key)) for row in cluster) / len(cluster)
        for cluster in group_by_cluster(rows)
    ]


def whole_end(labels: Sequence[str], end: int) -> int:
    """Return the first position from `end` on that cuts no cluster."""
    while 0 < end < len(labels) and labels[end] == labels[end - 1]:
        end += 1
    return min(end, len(labels))


def partners(labels: Sequence[str]) -> list[int]:
    """Return for each question one of another cluster.

    Clusters swap in pairs; an odd last one uses the first.
    """
    groups: list[list[int]] = []
    for number, label in enumerate(labels):
        if number and labels[number - 1] == label:
            groups[-1].append(number)
        else:
            groups.append([number])
    positions = []
    for place, group in enumerate(groups):
        other = groups[place ^ 1] if place ^ 1 < len(groups) else groups[0]
        positions += [other[position % len(other)] for position in range(len(group))]
    return positions


def shared_text(documents: Documents) -> str | None:
    """Return the field of a long text that documents share."""
    for field in documents[0] if documents else ():
        texts = Counter(
            text
            for document in documents
            if isinstance(text := document.get(field), str) and len(text) >= _PASSAGE
        )
        commonest = max(texts.values(), default=0)
        if _repeats(texts, len(documents)) and commonest < (1 - _FEW) * len(documents):
            return str(field)
    return None


def repeated_field(rows: Documents) -> str | None:
    """Return the field that suggests clusters, if any."""
    if (field := shared_text(rows)) is not None:
        return field
    for field in rows[0] if rows else ():
        if not _NAMES.search(str(field).lower()):
            continue
        values = Counter(
            value for row in rows if isinstance(value := row.get(field), (str, int)) and value != ""
        )
        if _repeats(values, len(rows)) and len(rows) <= _LARGEST_MEAN_CLUSTER * len(values):
            return str(field)
    return None


def _repeats(values: Counter[Any], rows: int) -> bool:
    return sum(count for count in values.values() if count > 1) > _FEW * rows
