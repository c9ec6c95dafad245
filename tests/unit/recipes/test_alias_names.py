"""Names of aliases: what every registry can have, refused where a policy is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from recipes.alias_names import can_be_alias
from recipes.policy import PromotionRule


@pytest.mark.parametrize("name", ["champion", "previous", "prod", "eu-west_2", "V", "vnext"])
def test_names_that_can(name: str) -> None:
    assert can_be_alias(name)
    assert PromotionRule(alias=name, previous_alias="former").alias == name


@pytest.mark.parametrize("name", ["", "v3", "V12", "7", "latest", "main", "a.b", "a b", "-a", "é"])
def test_names_that_cannot(name: str) -> None:
    assert not can_be_alias(name)
    with pytest.raises(ValidationError) as caught:
        PromotionRule(previous_alias=name)
    assert caught.value.errors()[0]["loc"] == ("previous_alias",)
