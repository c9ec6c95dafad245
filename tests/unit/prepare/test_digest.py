from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from prepare.digest import digest_bytes, digest_json

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # No surrogates: they are not text.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(PLAIN, PLAIN)
def test_different_data_differs(one: object, other: object) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest_json(one) == digest_json(other)) == same


def test_json_digest_is_stable_over_versions() -> None:
    assert digest_json({"b": [1, 2.5, None], "a": "é"}) == digest_bytes(
        b'{"a":"\\u00e9","b":[1,2.5,null]}'
    )
