"""What is said of a user's YAML file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from pipeline.core.errors import UsageError
from recipes.config_file import parse, validate
from recipes.config_model import ConfigModel


class Numbers(ConfigModel):
    share: float = Field(0.5, description="of it all")
    count: int = Field(1, description="how many")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("share: 5e-2", "write 0.05:"),
        ("share: 1.0e7", "write 10000000:"),
        ("share: '0.25'", "write 0.25:"),
        ("count: 1e3", "write 1000:"),
        ("share: a tenth", "of it all"),
        ("share: 1e999", "of it all"),
        ("share: nan e", "of it all"),
    ],
)
def test_a_number_that_yaml_takes_for_text_is_written_out(
    tmp_path: Path, line: str, hint: str
) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text(line)
    with pytest.raises(UsageError) as error:
        parse(path, "file", Numbers)
    assert hint in error.value.hint
    path.write_text(line.partition(":")[0] + ": " + hint.removeprefix("write ").strip(":"))
    if hint.startswith("write"):
        assert parse(path, "file", Numbers)


@given(st.text(max_size=12) | st.floats().map(str))
def test_any_text_for_a_number_has_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as error:
        validate({"share": text}, Path("x.yaml"), "file", Numbers)
    assert 0 < len(error.value.hint) < 200
