"""What names a repository of an OCI registry; the rest is tested with a real one, in tests/e2e."""

from __future__ import annotations

import re
import sys

import pytest

from artifacts.registry.oci_repository import OciRepository
from pipeline.core.errors import RegistryError, UsageError

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("reference", "repository", "tag"),
    [
        ("localhost:5000/model", "localhost:5000/model", None),
        ("localhost:5000/model:v1", "localhost:5000/model", "v1"),
        ("oci://localhost:5000/model:v1", "localhost:5000/model", "v1"),
        ("registry.example.com/team/model-1.5", "registry.example.com/team/model-1.5", None),
        ("registry.example.com/a/b/c:x", "registry.example.com/a/b/c", "x"),
        (f"registry.example.com/a@{DIGEST}", "registry.example.com/a", None),
    ],
)
def test_a_reference_in_its_parts(reference: str, repository: str, tag: str | None) -> None:
    found = OciRepository(reference)
    assert (found.repository, found.tag) == (repository, tag)


@pytest.mark.parametrize(
    "reference",
    ["", "model", "team/model", "host:5000", "host:5000/", "/folder/model", "oci:///x/y"],
)
def test_what_names_no_repository(reference: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'{reference}'")):
        OciRepository(reference)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oras.container", None)
    monkeypatch.delitem(sys.modules, "artifacts.registry.oras_client", raising=False)
    with pytest.raises(RegistryError) as caught:
        OciRepository("localhost:5000/model")
    assert caught.value.where == "localhost:5000/model"
    assert ".[oci]" in caught.value.hint
