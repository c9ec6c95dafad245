"""Copies of records change declared fields only."""

from __future__ import annotations

import pytest

from artifacts.recorded_command import CommandOptions
from pipeline.core.record import Record
from recipes.config_model import ConfigModel


class Point(Record):
    x: int = 0


class Setting(ConfigModel):
    x: int = 0


@pytest.mark.parametrize("model", [Point(), Setting()])
def test_copy_changes_declared_fields_only(model: Point | Setting) -> None:
    assert model.model_copy(update={"x": 1}).x == 1
    assert model.model_copy() == model
    with pytest.raises(ValueError, match="no field"):
        model.model_copy(update={"y": 1})


def test_copy_of_options_rejects_unknown_names() -> None:
    """Options read from a record keep unknown keys; code that changes them names a field."""
    read = CommandOptions.model_validate({"profile": "cpu", "of_a_plugin": 1})
    assert read.model_copy(update={"profile": "gpu"}).profile == "gpu"
    with pytest.raises(ValueError, match="no field"):
        read.model_copy(update={"profiles": "gpu"})
