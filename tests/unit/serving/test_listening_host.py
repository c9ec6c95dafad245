from __future__ import annotations

import pytest

from pipeline.serving.front import (
    check_host,
    format_for_url,
    reachable_address,
)
from prepare.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")],
)
def test_the_loopback_needs_no_key(text: str, host: str) -> None:
    assert check_host(text, "", "SECRET") == host


@pytest.mark.parametrize("key", ["", " ", "\t\n"])
def test_who_others_reach_needs_a_key(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_host("0.0.0.0", key, "SECRET")
    assert "SECRET" in caught.value.hint
    assert caught.value.where == "--host 0.0.0.0"
    assert check_host("0.0.0.0", "sk", "SECRET") == "0.0.0.0"


@pytest.mark.parametrize("text", ["192.0.2.1", "example.org", "", "127.0.0.1:80", "http://x", "1"])
def test_what_is_no_address_of_this_machine(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_host(text, "sk", "SECRET")
    assert "0.0.0.0" in caught.value.hint


def test_its_url_is_one_that_we_can_ask() -> None:
    assert (
        reachable_address("0.0.0.0"),
        reachable_address("::"),
        reachable_address("10.0.0.7"),
    ) == (
        *("127.0.0.1", "::1"),
        "10.0.0.7",
    )
    assert (format_for_url("::1"), format_for_url("10.0.0.7")) == ("[::1]", "10.0.0.7")
