"""Signatures of a weights folder, by model-signing."""

from __future__ import annotations

import getpass
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.environments.settings import Settings
from prepare.digest import digest_bytes
from prepare.errors import EvidenceError, UsageError, raise_as
from prepare.untrusted import MEBIBYTE, open_regular, read_regular
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, SIGNATURE

KEY_BYTES = MEBIBYTE
SIGNATURE_BYTES = 16 * MEBIBYTE  # every file with its digest
PASSWORD_VARIABLE = "PREPARE_KEY_PASSWORD"  # noqa: S105 - the variable's name
CURVES = "an elliptic curve key (P-256, P-384 or P-521) as PEM: "
PASSWORD = f"its password is asked for, or {PASSWORD_VARIABLE}"
MAKE_KEYS = (
    "openssl ecparam -name prime256v1 -genkey -noout -out signer.key && "
    "openssl ec -in signer.key -pubout -out signer.pub"
)


@dataclass(frozen=True)
class Signer:
    """A private key."""

    private_key: Path
    fingerprint: str  # sha256 of its public key, in hexadecimal


def find_signer(settings: Settings, *, sign: bool) -> Signer | None:
    """Return the signer of a promotion, if it signs."""
    keys = settings.signing
    if not sign:
        if keys.public_key is not None:
            raise UsageError(
                "a version must be signed here, and this promotion is not",
                where=f"public key {keys.public_key}",
                hint="add --sign",
            )
        return None
    if keys.private_key is None:
        raise UsageError(
            "--sign needs a private key",
            where="--sign",
            hint="PREPARE_PRIVATE_KEY=FILE, or the key signing.private_key of the settings file",
        )
    signer = Signer(keys.private_key, fingerprint_of(keys.private_key))
    if keys.public_key is not None and fingerprint_of(keys.public_key) != signer.fingerprint:
        raise UsageError(
            "the private key is not that of the public key which versions must be signed with",
            where=f"{keys.private_key}, {keys.public_key}",
            hint="name the two files of one key pair",
        )
    return signer


def fingerprint_of(key: Path) -> str:
    """Return the hexadecimal sha256 of a key's public part."""
    with _library_errors("sign", key):
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            PublicFormat,
            load_pem_private_key,
            load_pem_public_key,
        )
    with _key_errors(key, f"{MAKE_KEYS}; {PASSWORD}"):
        content = read_regular(key, KEY_BYTES)
        loaded: Any
        if b"PRIVATE KEY" in content:
            loaded = load_pem_private_key(content, _password(key))
        else:
            loaded = load_pem_public_key(content)
        if isinstance(loaded, ec.EllipticCurvePrivateKey):
            loaded = loaded.public_key()
        if not isinstance(loaded, ec.EllipticCurvePublicKey):
            raise ValueError("it is of another kind")
        plain = loaded.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return digest_bytes(plain)


def sign_with_key(folder: Path, private_key: Path) -> Path:
    """Sign every file of a folder; return the signature's file."""
    with _library_errors("sign", folder):
        from model_signing import signing

        config: Any = signing.Config().set_hashing_config(_hashing(folder))
    with _key_errors(private_key, f"{MAKE_KEYS}; {PASSWORD}"):
        config.use_elliptic_key_signer(private_key=private_key, password=_password(private_key))
    final = folder / SIGNATURE
    # Renamed last, so that no signature is incomplete or lost.
    partial = folder.parent / f".{folder.resolve().name}.{SIGNATURE}.{os.getpid()}"
    hint = "copy the folder to where you may write (`prepare pull`), and sign it there"
    try:
        with raise_as(EvidenceError, "the signature cannot be written", final, hint):
            with _library_errors("sign", folder):
                config.sign(folder, partial)
            partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
    return final


def check_with_key(folder: Path, public_key: Path) -> None:
    """Check that the key's owner signed exactly these files."""
    signature = folder / SIGNATURE
    if not signature.is_file():
        raise EvidenceError(
            "the folder is not signed, or its signature was removed",
            where=str(signature),
            hint="promote it again with --sign; without a public key (--public-key, "
            "PREPARE_PUBLIC_KEY, or signing.public_key in the settings) only its consistency is "
            "checked",
        )
    with raise_as(EvidenceError, "the signature cannot be read", signature):
        open_regular(signature, SIGNATURE_BYTES).close()
    with _library_errors("verify", folder):
        from model_signing import verifying

        config = verifying.Config().set_hashing_config(_hashing(folder))
    with _key_errors(public_key, "the file that `openssl ec -pubout` made of the signer's"):
        open_regular(public_key, KEY_BYTES).close()
        config.use_elliptic_key_verifier(public_key=public_key)
    try:
        with warnings.catch_warnings(action="ignore"):  # of its dependencies
            config.verify(folder, signature)
    # The library's own errors are ValueErrors.
    except Exception as error:
        raise EvidenceError(
            f"the signature does not hold: {str(error).strip() or 'it is not of this content'}",
            where=f"{signature}, against the key in {public_key}",
            hint="do not use this folder; get it, and the key, again from whom you trust",
        ) from error


def _hashing(folder: Path) -> Any:
    from model_signing import hashing

    config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
    # A copy may lack the answers; the signed manifest has their digest.
    there = [path for path in (*ADDED_LATER, ARCHIVE) if (folder / path).is_file()]
    # Also git's files: a hook in .git runs for everyone who works in the folder.
    return config.set_ignored_paths(paths=[*{SIGNATURE, *there}], ignore_git_paths=False)


def _password(private_key: Path) -> bytes | None:
    if b"ENCRYPTED" not in read_regular(private_key, KEY_BYTES):
        return None
    return (os.environ.get(PASSWORD_VARIABLE) or _ask_password(private_key)).encode()


@cache
def _ask_password(private_key: Path) -> str:
    """Prompt once: a promotion signs hours after the key check."""
    return getpass.getpass(f"Password of {private_key}: ")


@contextmanager
def _key_errors(key: Path, how: str) -> Iterator[None]:
    errors = (OSError, ValueError, TypeError, AttributeError)
    with raise_as(UsageError, "the key cannot be used", key, f"{CURVES}{how}", errors=errors):
        yield


@contextmanager
def _library_errors(verb: str, folder: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of its dependencies
            yield
    except ImportError as error:
        raise EvidenceError(
            f"model-signing, which can {verb} a folder, is not installed",
            where=str(error.name),
            hint="in the clone of prepare: pip install '.[sign]'",
        ) from error
    except OSError:
        raise
    except Exception as error:
        raise EvidenceError(
            f"could not {verb} the folder: {str(error).strip() or type(error).__name__}",
            where=str(folder),
            hint="a folder with links cannot be signed",
        ) from error
