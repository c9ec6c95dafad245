"""Signatures by model-signing with real keys: whose they are, and over which files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from key_pair import key_pair
from small_checkpoint import checkpoint_files, write_files

from artifacts.evidence.signing import PASSWORD_VARIABLE, check_with_key, sign_with_key
from prepare.errors import EvidenceError, UsageError
from recipes.checkpoints.weight_files import SIGNATURE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = write_files(tmp_path / "weights", checkpoint_files())
    (found / "prepare-evidence").mkdir()
    (found / "prepare-evidence" / "verdict.json").write_text("{}")
    return found


@pytest.fixture
def public(folder: Path, tmp_path: Path) -> Path:
    private, public = key_pair(tmp_path)
    assert sign_with_key(folder, private) == folder / SIGNATURE
    return public


def test_signing_again_replaces_it(folder: Path, public: Path, tmp_path: Path) -> None:
    private, other = key_pair(tmp_path, "other")
    sign_with_key(folder, private)
    check_with_key(folder, other)
    with pytest.raises(EvidenceError, match="Key mismatch"):
        check_with_key(folder, public)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".sig")] == []


def test_another_key_that_claims_to_be_the_one(folder: Path, public: Path, tmp_path: Path) -> None:
    """The signature names its key by a digest; writing another's name on it does not help."""
    signed = json.loads((folder / SIGNATURE).read_text())
    private, _ = key_pair(tmp_path, "other")
    sign_with_key(folder, private)
    forged = json.loads((folder / SIGNATURE).read_text())
    forged["verificationMaterial"] = signed["verificationMaterial"]
    (folder / SIGNATURE).write_text(json.dumps(forged))
    with pytest.raises(EvidenceError, match="the signature does not hold"):
        check_with_key(folder, public)


def test_a_stripped_signature(folder: Path, public: Path) -> None:
    (folder / SIGNATURE).unlink()
    with pytest.raises(EvidenceError) as caught:
        check_with_key(folder, public)
    assert caught.value.where == str(folder / "model.sig")


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"mediaType": "x"}'])
def test_a_damaged_signature(folder: Path, public: Path, content: str) -> None:
    (folder / SIGNATURE).write_text(content)
    with pytest.raises(EvidenceError) as caught:
        check_with_key(folder, public)
    assert str(folder / "model.sig") in caught.value.where


@pytest.mark.parametrize("place", ["added.py", "prepare-evidence/added.json"])
def test_an_added_file(folder: Path, public: Path, place: str) -> None:
    (folder / place).write_text("x")
    with pytest.raises(EvidenceError, match=re.escape(place)):
        check_with_key(folder, public)


@pytest.mark.parametrize("place", ["model.safetensors", "prepare-evidence/verdict.json"])
def test_a_changed_byte(folder: Path, public: Path, place: str) -> None:
    content = bytearray((folder / place).read_bytes())
    content[-1] ^= 1
    (folder / place).write_bytes(content)
    with pytest.raises(EvidenceError, match=f"'{place}'"):
        check_with_key(folder, public)


def test_a_key_with_a_password(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = key_pair(tmp_path, password=b"secret")
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    with pytest.raises(UsageError) as caught:
        sign_with_key(folder, private)
    assert caught.value.where == str(private)
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    sign_with_key(folder, private)
    check_with_key(folder, public)


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_key_or_signature_that_is_no_such_file(
    folder: Path, public: Path, tmp_path: Path, kind: str
) -> None:
    def put(place: Path) -> Path:
        place.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "device":
            place.symlink_to("/dev/zero")
        else:
            with place.open("wb") as file:
                file.truncate(2**31)
        return place

    with pytest.raises(UsageError) as caught:
        check_with_key(folder, put(tmp_path / "key"))
    assert caught.value.where == str(tmp_path / "key")
    with pytest.raises(UsageError) as caught:
        sign_with_key(folder, tmp_path / "key")
    assert caught.value.where == str(tmp_path / "key")
    put(folder / SIGNATURE)
    with pytest.raises(EvidenceError, match=r"cannot be read|not signed"):
        check_with_key(folder, public)


def test_keys_of_another_kind(folder: Path, public: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("hello")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "rsa.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "rsa.pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    for name in ("no.pem", "rsa.pem", "missing.pem"):
        with pytest.raises(UsageError) as caught:
            sign_with_key(folder, tmp_path / name)
        assert caught.value.where == str(tmp_path / name)
    for name in ("no.pem", "rsa.pub", "missing.pub"):
        with pytest.raises(UsageError) as caught:
            check_with_key(folder, tmp_path / name)
        assert caught.value.where == str(tmp_path / name)
