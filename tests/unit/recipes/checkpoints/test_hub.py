"""Downloads from a real local server that speaks the Hub's interface.

huggingface_hub reads its settings when it is imported, so downloads run in child processes, one
for each kind of settings.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from hub_stand_in import HubStandIn, Repository
from small_checkpoint import checkpoint_files, safetensors

from eval_gates.sandbox import bubblewraps
from prepare.digest import FileDigests
from prepare.errors import HubError
from recipes.checkpoints.checkpoint import hash_checkpoint, inspect_folder, read_folder
from recipes.checkpoints.hub import explain_hub_errors
from recipes.checkpoints.source_info import describe_source

CHILD = """
import json, sys
from prepare.errors import PrepareError
from recipes.checkpoints import hub
from recipes.checkpoints.hub import download, resolve_dataset_revision

hub.ANSWER_TIMEOUT_S = float(sys.argv[1])

class Listener:
    def __init__(self):
        self.events = []
    def advance(self, task, done, total, unit=""):
        self.events.append([task, done, total, unit])
    def note(self, text):
        self.events.append(text)

def answer(action, *arguments):
    listener = Listener()
    try:
        if action == "dataset":
            return {"commit": resolve_dataset_revision(*arguments)}
        path, commit = download(*arguments, progress=listener)
        return {"path": str(path), "commit": commit, "events": listener.events}
    except PrepareError as error:
        return error.to_dict()

for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""

CARD = {"README.md": b"---\nlicense: apache-2.0\n---\n# A model\n"}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "model.pt": b"pickle",
    "original/consolidated.safetensors": b"twice",
    "consolidated.safetensors": b"twice",
    "onnx/config.json": b"{}",
}


class Child:
    """A process that does one job after the other, with one endpoint and one cache folder."""

    def __init__(
        self,
        endpoint: str | None,
        home: Path,
        *,
        within: Sequence[str] = (),
        timeout: float = 10,
        **settings: str,
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        self._process = subprocess.Popen(
            [*within, sys.executable, "-c", CHILD, str(timeout)],
            env=environment
            | ({"HF_ENDPOINT": endpoint} if endpoint is not None else {})
            | {
                "HF_HOME": str(home),
                "HF_HUB_DISABLE_XET": "1",
                "HF_TOKEN": "hf_secret",
                "NO_PROXY": "127.0.0.1,localhost",
            }
            | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=30)

    def _do(self, *job: str | None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def download(self, name: str, revision: str | None = None) -> dict[str, Any]:
        return self._do("download", name, revision)

    def dataset(self, name: str) -> dict[str, Any]:
        return self._do("dataset", name)


@pytest.fixture(scope="module")
def server() -> Iterator[HubStandIn]:
    with HubStandIn() as stand_in:
        yield stand_in


@pytest.fixture
def hub(server: HubStandIn) -> HubStandIn:
    """The server, with nothing on it but a repository that no other test has asked for."""
    server.reset()
    server.models["org/name"] = Repository(
        checkpoint_files() | CARD | UNWANTED | {"x.py": os.urandom(8)}, ("main", "v1")
    )
    return server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def child(server: HubStandIn, home: Path) -> Iterator[Child]:
    with Child(server.url, home) as process:
        yield process


def test_named_chat_templates_are_fetched_and_digested(
    hub: HubStandIn, child: Child, tmp_path: Path
) -> None:
    name = "additional_chat_templates/rag.jinja"
    files = hub.models["org/name"].files | {name: b"{{ documents }}"}
    hub.models["org/templates"] = Repository(files, ("main",))
    folder = Path(child.download("org/templates")["path"])
    assert (folder / name).read_bytes() == files[name]
    assert not (folder / "onnx").exists()
    found = hash_checkpoint(
        read_folder(folder, "org/templates", "hub"), FileDigests(tmp_path / "digests.json")
    )
    assert name in {file.name for file in found.files}


def test_whole_download_then_offline(
    hub: HubStandIn, child: Child, home: Path, tmp_path: Path
) -> None:
    repository = hub.models["org/name"]
    wanted = {name: repository.files[name] for name in (*checkpoint_files(), *CARD, "x.py")}
    answer = child.download("org/name")
    assert answer["commit"] == repository.commit
    folder = Path(answer["path"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted

    resolved = [r for r in hub.requests if "/resolve/" in r.path]
    assert {r.path.rpartition("/")[2] for r in resolved} == set(wanted)
    # The token goes to the Hub and to nobody else.
    assert {r.token for r in resolved} == {"Bearer hf_secret"}
    assert {r.token for r in hub.requests if "/cdn/" in r.path} == {None}

    size = len(wanted["model.safetensors"])
    assert answer["events"][-1] == ["download org/name", size, size, "bytes"]
    assert all(done <= total for _, done, total, _ in answer["events"])

    # What came from the Hub's cache is checked as such.
    digests = FileDigests(tmp_path / "digests.json")
    found = hash_checkpoint(read_folder(folder, "org/name", "hub"), digests)
    assert {file.name for file in found.files} == set(wanted) - set(CARD)

    # The card counts for no digest, and tells the license.
    (tmp_path / "bare").mkdir()
    for name in set(wanted) - set(CARD):
        (tmp_path / "bare" / name).write_bytes(wanted[name])
    bare = inspect_folder(tmp_path / "bare", digests)
    assert bare.digest == found.digest
    assert describe_source(found).license == "apache-2.0"

    hub.requests.clear()
    with Child(hub.url, home, HF_HUB_OFFLINE="1") as offline:
        again = offline.download("org/name")
        unknown = offline.download("org/never-fetched")
        dataset = offline.dataset("org/data")
    assert again == {"path": str(folder), "commit": repository.commit, "events": []}
    assert unknown["message"].startswith("HF_HUB_OFFLINE is set")
    assert dataset == {"commit": None}
    assert not hub.requests


def test_server_down_is_an_error_unless_a_commit_is_cached(hub: HubStandIn, child: Child) -> None:
    """A branch may have moved since."""
    hub.models["org/down"] = hub.models["org/name"]
    commit = child.download("org/down", "v1")["commit"]
    hub.broken = 503
    assert child.download("org/down", commit)["commit"] == commit
    hub.requests.clear()
    error = child.download("org/down", "v1")
    assert error["kind"] == "LateHubError"
    assert len(hub.requests) == 3
    assert child.dataset("org/data")["kind"] == "LateHubError"


def test_server_that_recovers_is_asked_again(hub: HubStandIn, child: Child) -> None:
    hub.datasets["org/data"] = Repository({"a.txt": b"a"})
    hub.broken_once = 503
    assert child.dataset("org/data") == {"commit": hub.datasets["org/data"].commit}


def test_unknown_dataset_is_refused(hub: HubStandIn, child: Child) -> None:
    """A typo is not a machine without a Hub."""
    assert child.dataset("org/no-such-data")["kind"] == "HubError"


def test_machine_without_a_network_has_no_hub(tmp_path: Path) -> None:
    alone = (next(bubblewraps()), "--dev-bind", "/", "/", "--unshare-net")
    names = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    with Child(None, tmp_path, within=alone, **dict.fromkeys(names, "")) as child:
        assert child.dataset("org/data") == {"commit": None}
        assert "cache is incomplete" in child.download("org/name")["message"]


def test_named_hub_that_refuses_connections_is_an_error(tmp_path: Path) -> None:
    with Child(f"http://127.0.0.1:{free_port()}", tmp_path) as child:
        assert child.dataset("org/data")["kind"] == "LateHubError"


def test_shards_by_the_index(hub: HubStandIn, child: Child) -> None:
    files = checkpoint_files(shards=2) | {"model-00003-of-00003.safetensors": b"left over"}
    hub.models["org/sharded"] = Repository(files)
    commit = hub.models["org/sharded"].commit
    answer = child.download("org/sharded", commit)
    assert answer["commit"] == commit
    names = {path.name for path in Path(answer["path"]).iterdir()}
    assert names == set(checkpoint_files(shards=2))


def test_broken_transfer_is_taken_up_then_kept(hub: HubStandIn, child: Child) -> None:
    content = safetensors({"a": ("U8", (12 << 20,))})
    hub.models["org/name"].files["model.safetensors"] = content
    hub.break_once["model.safetensors"] = 11 << 20
    answer = child.download("org/name")
    path = Path(answer["path"])
    assert (path / "model.safetensors").read_bytes() == content
    ranges = [r.range for r in hub.requests if r.method == "GET" and "/cdn/" in r.path]
    # The library writes in blocks of 10 MiB, and goes on after the last whole one.
    assert ranges == [None, f"bytes={10 << 20}-"]
    progress = [done for _, done, _, _ in answer["events"]]
    assert progress == sorted(progress)
    assert progress[-1] == len(content)

    (path / "tokenizer.json").unlink()
    hub.requests.clear()
    assert child.download("org/name")["events"] == []
    resolved = [r.path.rpartition("/")[2] for r in hub.requests if "/resolve/" in r.path]
    assert set(resolved) == {"tokenizer.json"}
    assert (path / "tokenizer.json").exists()


def test_refusals(hub: HubStandIn, child: Child) -> None:
    hub.models["org/gated"] = Repository(checkpoint_files(), gated=True)
    hub.models["org/old"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"pickle"})

    unknown = child.download("org/nome")
    assert "does not exist" in unknown["message"]
    assert "no folder of the name 'org/nome' exists" in unknown["message"]
    assert "hf auth login" in unknown["hint"]

    revision = child.download("org/name", "v2")
    assert revision["message"] == "the revision 'v2' does not exist"
    assert revision["where"] == "org/name@v2"

    gated = child.download("org/gated")
    assert gated["message"] == "the repository is gated"
    assert "terms" in gated["hint"]

    pickled = child.download("org/old")
    assert pickled["message"] == "the repository has no safetensors weights"
    assert "pickled" in pickled["hint"]

    assert {error["kind"] for error in (unknown, revision, gated, pickled)} == {"HubError"}
    assert not [r for r in hub.requests if "/resolve/" in r.path]


def test_too_large_for_the_disk(hub: HubStandIn, child: Child) -> None:
    hub.models["org/name"].claimed_sizes["model.safetensors"] = 10**18
    error = child.download("org/name")
    assert "the weights need 1.0 EB more" in error["message"]
    assert "HF_HOME" in error["hint"]
    assert not [r for r in hub.requests if "/cdn/" in r.path]


@pytest.mark.parametrize("page", [b"<html>log in to the guest network", b"[]", b"{}", b"null"])
def test_a_server_that_is_no_hub(hub: HubStandIn, child: Child, page: bytes) -> None:
    hub.page = page
    error = child.download("org/name")
    assert "does not behave like a Hub" in error["message"]
    assert "HF_ENDPOINT" in error["hint"]


def test_silent_server_is_an_error(hub: HubStandIn, tmp_path: Path) -> None:
    hub.hold = True
    with Child(hub.url, tmp_path, timeout=0.3) as child:
        assert child.dataset("org/data")["kind"] == "LateHubError"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_that_fills_up_meanwhile(number: int) -> None:
    with (
        pytest.raises(HubError, match="the disk is full") as caught,
        explain_hub_errors("org/name", None),
    ):
        raise OSError(number, os.strerror(number), "/cache/blob")
    assert caught.value.where == "/cache/blob"
    assert "HF_HOME" in caught.value.hint
