"""What engines count of speculative decoding: rate and length, and what tells nothing."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from eval_gates.engine_metrics import NAMES, counts_between
from eval_gates.spec_decode_stats import SpecDecodeStats

counts = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 50))


def test_rate_and_length_are_vllms() -> None:
    found = SpecDecodeStats(drafts=100, draft_tokens=400, accepted_tokens=120)
    assert found.rate == 0.3
    assert found.length == 2.2
    assert "30 %" in found.words
    assert "2.20" in found.words


def test_a_record_has_both_and_is_believed_in_neither() -> None:
    found = SpecDecodeStats(drafts=100, draft_tokens=400, accepted_tokens=120)
    told = found.model_dump(mode="json")
    assert told == {
        **{"drafts": 100, "draft_tokens": 400, "accepted_tokens": 120},
        **{"rate": 0.3, "length": 2.2},
    }
    assert SpecDecodeStats.model_validate_json(json.dumps({**told, "rate": 1.0})) == found


def test_where_nothing_was_drafted_there_is_no_rate() -> None:
    found = SpecDecodeStats(drafts=0, draft_tokens=0, accepted_tokens=0)
    assert found.rate is None
    assert found.length is None
    assert found.words == "nothing was drafted"


def test_the_names_are_those_of_the_record() -> None:
    assert set(NAMES) == set(SpecDecodeStats.model_fields)


def test_a_counter_that_was_not_there_yet_began_at_nothing() -> None:
    after = {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 3}
    assert counts_between({}, after) == after
    assert counts_between(None, after) is None
    assert counts_between(after, None) is None
    assert counts_between(after, {**after, "drafts": 1}) is None  # it was started again


@given(before=counts, after=counts)
def test_differences_are_counts_or_nothing(
    before: dict[str, int | None], after: dict[str, int | None]
) -> None:
    found = counts_between(before, after)
    if found is not None:
        drafted = SpecDecodeStats(**found)
        assert all((after[name] or 0) - (before.get(name) or 0) == found[name] for name in NAMES)
        assert drafted.rate is None or 0 <= drafted.rate <= 1
