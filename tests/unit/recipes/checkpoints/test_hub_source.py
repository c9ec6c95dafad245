"""Headers from a real local server that speaks the Hub's interface, by ranged reads.

huggingface_hub reads its settings when it is imported, so the reading is done in child processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn, Repository
from small_checkpoint import checkpoint_files, safetensors, write_files

from prepare.digest import FileDigests
from recipes.checkpoints.checkpoint import inspect_folder, read_folder

CHILD = """
import json, sys
from prepare.errors import PrepareError
from recipes.checkpoints.hub_headers import read_hub
try:
    found = read_hub(sys.argv[1], sys.argv[2] or None)
    answer = {
        "config": found.config,
        "tensors": {name: [t.dtype, t.shape] for name, t in found.tensors.items()},
        "bytes": found.weights_bytes,
        "where": found.where,
        "names": sorted(found.small.names),
        "template": found.generation.has_template,
    }
except PrepareError as error:
    answer = error.to_dict()
print(json.dumps(answer))
"""
# The headers, then the download; counts what opens files of the snapshot.
FETCHED = """
import json, os, sys
from collections import Counter
from pathlib import Path
opened = Counter()
def note(event, arguments):
    if event == "open" and "/snapshots/" in str(arguments[0]) and arguments[1] in (None, "r", "rb"):
        opened[Path(str(arguments[0])).name] += 1
sys.addaudithook(note)
from pipeline.preflight.checkpoint_faults import checkpoint_faults
from prepare.digest import FileDigests
from prepare.events import NullProgress
from recipes.catalog import load_profile
from recipes.checkpoints.checkpoint import hash_checkpoint
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.hub import download
from recipes.checkpoints.reference import parse_reference
reference = parse_reference(sys.argv[1])
known = Checkpoints()
read = known.read(reference)
profile = load_profile("cpu")
asked = {"quantizes": True, "trust_remote_code": False}
faults = [fault.where for fault in checkpoint_faults(read, profile, **asked)]
assert known.read(reference) is read
folder, commit = download(reference.name, None, progress=NullProgress())
opened_by_download = opened.copy()
local = known.downloaded(reference, folder, commit)
hashed = hash_checkpoint(local, FileDigests(Path(sys.argv[2])))
assert known.downloaded(reference, folder, commit) is local
print(json.dumps({
    "faults": faults,
    "here": read.here,
    "revision": [read.revision, hashed.revision],
    "files": [file.name for file in hashed.files],
    "opened": opened - opened_by_download,
    "digest": hashed.digest,
}))
"""
LARGE = 2 << 20


@pytest.fixture(scope="module")
def hub() -> Iterator[HubStandIn]:
    with HubStandIn() as stand_in:
        yield stand_in


def settings(hub: HubStandIn, home: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def read(hub: HubStandIn, home: Path, name: str, revision: str = "") -> dict[str, Any]:
    return run_child(CHILD, hub, home, name, revision)


def run_child(script: str, hub: HubStandIn, home: Path, *arguments: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment | settings(hub, home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def shards() -> dict[str, bytes]:
    files = checkpoint_files(shards=2)
    weight_map = {}
    for number, name in enumerate(n for n in list(files) if n.endswith(".safetensors")):
        tensor = f"layers.{number}.weight"
        files[name] = safetensors({tensor: ("U8", (LARGE, 1))})
        weight_map[tensor] = name
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


def test_the_headers_and_nothing_more(hub: HubStandIn, tmp_path: Path) -> None:
    hub.reset()
    hub.models["org/name"] = Repository(shards() | {"consolidated.safetensors": b"twice"})
    found = read(hub, tmp_path, "org/name", "main")
    assert found["tensors"] == {f"layers.{n}.weight": ["U8", [LARGE, 1]] for n in range(2)}
    assert found["config"]["model_type"] == "llama"
    assert found["where"] == "org/name@main/config.json"
    assert found["bytes"] == sum(len(c) for n, c in shards().items() if n.endswith(".safetensors"))
    weights = [r for r in hub.requests if r.method == "GET" and "/cdn/" in r.path]
    assert len(weights) == 2
    for request in weights:
        first, _, last = (request.range or "").removeprefix("bytes=").partition("-")
        assert int(last) - int(first) < LARGE / 10
    # The same from a folder.
    local = read_folder(write_files(tmp_path / "local", shards()))
    assert {n: [t.dtype, list(t.shape)] for n, t in local.tensors.items()} == found["tensors"]
    assert local.weights_bytes == found["bytes"]
    assert sorted(local.small.names | {"consolidated.safetensors"}) == found["names"]
    assert local.generation.has_template is found["template"] is True


def test_one_file_and_a_hub_that_is_down(hub: HubStandIn, tmp_path: Path) -> None:
    hub.reset()
    hub.models["org/one"] = Repository(checkpoint_files())
    assert len(read(hub, tmp_path, "org/one")["tensors"]) == 4
    assert not list(tmp_path.rglob("*.safetensors"))
    fetch = "from huggingface_hub import snapshot_download; snapshot_download('org/one')"
    subprocess.run(
        [sys.executable, "-c", fetch],
        env=dict(os.environ) | settings(hub, tmp_path),
        capture_output=True,
        timeout=60,
        check=True,
    )
    hub.broken = 503
    commit = hub.models["org/one"].commit
    assert len(read(hub, tmp_path, "org/one", commit)["tensors"]) == 4
    down = read(hub, tmp_path, "org/one")  # whose branch may have moved
    assert down["kind"] == "LateHubError"


def test_refusals(hub: HubStandIn, tmp_path: Path) -> None:
    hub.reset()
    hub.models["org/gated"] = Repository(checkpoint_files(), gated=True)
    hub.models["org/pickled"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"x"})
    damaged = checkpoint_files() | {"model.safetensors": b"\xff" * 200}
    hub.models["org/damaged"] = Repository(damaged)
    lacking = {n: c for n, c in shards().items() if "00002-of" not in n}
    hub.models["org/lacking"] = Repository(lacking)
    assert "gated" in read(hub, tmp_path, "org/gated")["message"]
    assert "no safetensors" in read(hub, tmp_path, "org/pickled")["message"]
    assert "damaged" in read(hub, tmp_path, "org/damaged")["message"]
    assert "1 of 2 weight files are missing" in read(hub, tmp_path, "org/lacking")["message"]


def test_what_the_headers_showed_is_not_read_again(hub: HubStandIn, tmp_path: Path) -> None:
    """Before the download the index shows a fault: a relative path would have missed it."""
    hub.reset()
    hub.models["org/twice"] = Repository(shards())
    found = run_child(FETCHED, hub, tmp_path / "home", "org/twice", str(tmp_path / "digests.json"))
    commit = hub.models["org/twice"].commit
    assert found["faults"] == ["org/twice/model.safetensors.index.json, key metadata"]
    assert found["here"] is None
    assert found["revision"] == [commit, commit]
    assert sorted(found["files"]) == sorted(shards())
    read_before = {"config.json", "tokenizer_config.json", "model.safetensors.index.json"}
    assert not read_before & found["opened"].keys()
    # Its header, and its digest.
    assert found["opened"]["model-00001-of-00002.safetensors"] == 2
    local = inspect_folder(
        write_files(tmp_path / "local", shards()), FileDigests(tmp_path / "others.json")
    )
    assert found["digest"] == local.digest
