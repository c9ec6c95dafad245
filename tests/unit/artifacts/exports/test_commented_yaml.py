"""YAML that prepare writes is read as the same data, for any text."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from artifacts.exports.commented_yaml import Noted, comment, to_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "yes", "1e3", "0x1F", "1:30", "null", "~", "{{ x }}", "$(X)", "&a *a", "#", "- a", "a: b"]
)
DATA = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def plain(value: Any) -> Any:
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(TEXTS, DATA | st.builds(Noted, TEXTS, DATA), max_size=4), TEXTS)
def test_it_is_read_as_the_same_data(data: dict[str, Any], header: str) -> None:
    assert yaml.safe_load(to_yaml(data, header=header)) == plain(data)


@given(st.lists(DATA | st.builds(Noted, TEXTS, DATA), max_size=4))
def test_lists_with_comments(data: list[Any]) -> None:
    assert yaml.safe_load(to_yaml({"a": data})) == {"a": plain(data)}


def test_a_comment_is_above_its_key() -> None:
    text = to_yaml({"a": Noted("why\nmore", {"b": 1})}, header="of what")
    assert text == "# of what\n# why\n# more\na:\n  b: 1\n"


def test_words_that_other_readers_take_for_numbers_are_quoted() -> None:
    assert to_yaml({"a": "1e3", "on": "off"}) == 'a: "1e3"\n"on": "off"\n'


def test_documents() -> None:
    assert list(yaml.safe_load_all(to_yaml({"a": 1}, {"b": 2}))) == [{"a": 1}, {"b": 2}]


def test_a_comment_ends_where_its_text_does() -> None:
    assert comment("a\r\x85b\u2028c") == ["# a b c"]
