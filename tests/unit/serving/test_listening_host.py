"""Where a served model may listen, and how the kernel and a URL write it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from free_port import free_port
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.serving.listening_host import (
    check_host,
    format_for_url,
    reachable_address,
    socket_table_addresses,
)
from pipeline.serving.server_address import ServerAddress, port_is_free


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
    assert ServerAddress(None, 80, host="::").url == "http://[::1]:80"


@given(st.integers(0, 254))
def test_the_kernel_writes_it_so(last: int) -> None:
    host = f"127.0.0.{last + 1}"
    with socket.socket() as listening:
        listening.bind((host, 0))
        listening.listen()
        port = listening.getsockname()[1]
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Others may listen on that port of other addresses.
    addresses = {f[1][:-5] for f in lines if f[1].endswith(f":{port:04X}") and f[3] == "0A"}
    (own,) = (socket_table_addresses(host) or frozenset()) - {"0" * 8, "0" * 32}
    assert own in addresses


def test_a_port_is_taken_at_its_address_alone() -> None:
    port = free_port()
    with socket.socket() as listening:
        listening.bind(("127.0.0.2", port))
        listening.listen()
        assert port_is_free(port)
        assert not port_is_free(port, "127.0.0.2")
