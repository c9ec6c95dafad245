from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare import redaction
from prepare.credentials import credential_variables, restore_credentials, strip_credentials
from prepare.errors import PrepareError, RegistryError, UsageError, from_dict
from prepare.process_environment import NetworkAccess, server_environment
from prepare.redaction import ADDRESSES_VARIABLE, redact

SECRET = "urlSECRET9999"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_given", {})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"http://me:{SECRET}@host:9/x", "http://***@host:9/x"),
        (f"https://{SECRET}@host", "https://***@host"),
        (f"http://me:{SECRET}%40{SECRET}@host", "http://***@host"),
        (f"http://me:a@{SECRET}@host", "http://***@host"),
        (f"postgresql://me:{SECRET}@host/db", "postgresql://***@host/db"),
        (f"mysql+pymysql://me:{SECRET}@host/db", "mysql+pymysql://***@host/db"),
        (f"https://host/x?a=1&sig={SECRET}&b=2", "https://host/x?a=1&sig=***&b=2"),
        (f"https://host/#access_token={SECRET}", "https://host/#access_token=***"),
        (f"postgresql://host/db?password={SECRET}", "postgresql://host/db?password=***"),
        (f"https://host/v1?api-key={SECRET}", "https://host/v1?api-key=***"),
        (f"https://host/v1?key={SECRET}&a=1", "https://host/v1?key=***&a=1"),
        (f"https://host/v1?token=ab;{SECRET}&a=1", "https://host/v1?token=***&a=1"),
    ],
)
def test_an_address_goes_on_without_its_credentials(address: str, shown: str) -> None:
    assert strip_credentials(address) == shown
    assert restore_credentials(shown) == address
    assert SECRET not in redact(f"cannot reach {address} at all")


@pytest.mark.parametrize(
    "text",
    [
        *("http://127.0.0.1:5000", "hf://team", "oci:///folder", "sqlite:////x/registry.db"),
        *("name@champion", "oci://host/name@sha256:abc", "org/name@main", "./folder", ""),
        "postgresql://me@host/db",
    ],
)
def test_what_has_no_credentials_stays(text: str) -> None:
    assert strip_credentials(text) == text == restore_credentials(text)
    assert credential_variables("") == {}


@pytest.mark.parametrize(
    "address",
    [
        f"http://me:pa/{SECRET}@host",
        f"http://me:12?{SECRET}@host",
        f"http://me:p#{SECRET}@host",
        f"sqlite:///x.db?user=me&password={SECRET}",
    ],
)
def test_what_cannot_be_taken_out_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        strip_credentials(address)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "shown",
    [
        "http://***@host.evil.example/x",
        "http://***@hostile",
        "http://***@host:9",
        "http://***@host@x",
    ],
)
def test_credentials_go_to_the_host_that_they_were_given_for(shown: str) -> None:
    """A record of a run may be another's, and name an address that only begins like ours."""
    strip_credentials(f"http://me:{SECRET}@host")
    with pytest.raises(UsageError):
        restore_credentials(shown)


@given(
    st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/?#"), min_size=4
    )
)
def test_no_password_is_shown(password: str) -> None:
    redaction._given.clear()
    secret = f"<{password}>"
    shown = strip_credentials(f"http://me:{secret}@host:80/x")
    assert secret not in shown
    assert secret not in redact(f"it said '{secret}'")
    assert restore_credentials(shown) == f"http://me:{secret}@host:80/x"


def test_an_error_has_none_whatever_a_library_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET1111")
    strip_credentials(f"http://me:{SECRET}@host")
    error = RegistryError(
        f"GET http://me:{SECRET}@host failed", where=f"http://you:{SECRET}@b", hint="hf_SECRET1111"
    )
    told = [str(error), json.dumps(error.to_dict()), repr(error), str(from_dict(error.to_dict()))]
    assert not [text for text in told if "SECRET" in text]
    assert "//***@other" in PrepareError("at ftp://nobody:knows@other").message


@pytest.mark.parametrize(
    "text",
    [
        f"no store at ./https:/me:{SECRET}@host/x",
        "401: you sent Basic bWU6dXJsU0VDUkVUOTk5OQ==, " + "a" * 9,
        f"401: Bearer {SECRET}{SECRET}",
        f"no file -----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_credential_is_redacted(text: str) -> None:
    """A path is shorter than its URL, a server quotes headers, a variable has a key's text."""
    told = str(PrepareError(text))
    assert SECRET not in told
    assert "bWU6" not in told
    assert "***" in told


def test_a_stage_that_connects_is_handed_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = strip_credentials(f"http://me:{SECRET}@host")
    here = {
        "PATH": "/bin",
        "PREPARE_REGISTRY": f"http://me:{SECRET}@host",
        **credential_variables(shown),
    }
    assert SECRET not in json.dumps(server_environment(here, {}))
    assert SECRET in json.dumps(server_environment(here, {}, needs=[NetworkAccess.ENDPOINT]))
    there = server_environment(here, {}, needs=[NetworkAccess.ENDPOINT])
    monkeypatch.setattr(redaction, "_given", {})
    monkeypatch.setenv(ADDRESSES_VARIABLE, there[ADDRESSES_VARIABLE])
    assert restore_credentials(shown) == f"http://me:{SECRET}@host"


@pytest.mark.parametrize(
    "words",
    [
        ("registry", "--registry"),
        ("registry", "x", "--registry"),
        ("pull", "x@champion", "./d", "--registry"),
        ("plan",),
    ],
)
def test_a_command_does_not_print_them(words: tuple[str, ...], tmp_path: Path) -> None:
    """A server does not answer, and its client quotes the address in its error."""
    ran = subprocess.run(
        [sys.executable, "-m", "prepare", *words, f"http://me:{SECRET}@127.0.0.1:9"],
        capture_output=True,
        text=True,
        env={
            **{"PATH": "/bin", "PREPARE_HOME": str(tmp_path), "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"},
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        },
        check=False,
    )
    assert ran.returncode in (1, 2)
    assert "***@127.0.0.1:9" in ran.stderr
    assert SECRET not in ran.stdout + ran.stderr


def test_a_child_gets_the_addresses_that_it_is_told_and_not_the_registrys() -> None:
    endpoint = strip_credentials("https://me:endpointSECRET@host/v1")
    strip_credentials(f"postgresql://me:{SECRET}@registry/db")
    told = json.dumps({"endpoint": {"url": endpoint}})
    (handed,) = credential_variables(told).values()
    assert "endpointSECRET" in handed
    assert SECRET not in handed
