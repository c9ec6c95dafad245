"""A small real HTTP server that speaks the Hub's interface, as far as huggingface_hub uses it.

Model and dataset information, tree listings, and files: small ones directly, safetensors by a
redirect to another host name ("the CDN"), as the Hub does for large files. It answers Range
requests, can break a transfer off, and keeps a list of what it was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import unquote, urlsplit

from http_stand_in import HttpStandIn, SilentHandler


@dataclass(frozen=True)
class Request:
    """One request the server was sent."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Repository:
    """One repository with one commit.

    Attributes:
        files: content by path.
        revisions: names that stand for the commit.
        gated: answers "not on the list" to everybody.
        claimed_sizes: sizes it claims instead of the real ones, by path.
    """

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False
    claimed_sizes: dict[str, int] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """40 hexadecimal digits, from the content."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path in sorted(self.files):
            digest.update(path.encode() + b"\0" + self.files[path])
        return digest.hexdigest()

    def has(self, revision: str) -> bool:
        """Whether the revision stands for the commit."""
        return revision in (self.commit, *self.revisions)

    def size(self, path: str) -> int:
        """Bytes it says the file has."""
        return self.claimed_sizes.get(path, len(self.files[path]))


def sha256(content: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(content).hexdigest()


class HubStandIn(HttpStandIn):
    """The server; a context manager.

    Attributes:
        models: by org/name.
        datasets: by org/name.
        requests: all that came so far.
        break_once: after how many bytes to cut the connection while sending a file, by path;
            each happens once.
        broken: answer every request with this status; None for normal service.
        broken_once: likewise, for the next request alone.
        page: answer everything with this web page, as a guest network does.
        hold: give no answer for five seconds.
    """

    def __init__(self) -> None:
        self.reset()
        self.ending = threading.Event()
        stand_in = self

        class Handler(_Handler):
            hub = stand_in

        super().__init__(Handler)

    def reset(self) -> None:
        """Back to an empty server in normal service."""
        self.models: dict[str, Repository] = {}
        self.datasets: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.break_once: dict[str, int] = {}
        self.broken: int | None = None
        self.broken_once: int | None = None
        self.page: bytes | None = None
        self.hold = False

    @property
    def port(self) -> int:
        """The free port it was given."""
        return int(self._server.server_address[1])

    @property
    def cdn(self) -> str:
        """The same server by another host name, where large files are."""
        return f"http://localhost:{self.port}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ending.set()
        super().__exit__(kind, error, traceback)


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    hub: HubStandIn

    def do_HEAD(self) -> None:
        self.route()

    def do_GET(self) -> None:
        self.route()

    def route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(
            Request(
                self.command, path, self.headers.get("Range"), self.headers.get("Authorization")
            )
        )
        if self.hub.hold:
            self.hub.ending.wait(5)
        if self.hub.broken_once is not None:
            status = self.hub.broken_once
            self.hub.broken_once = None
            self.fail(status, None)
        elif self.hub.broken is not None:
            self.fail(self.hub.broken, None)
        elif self.hub.page is not None:
            self.send_content("", self.hub.page, {"Content-Type": "text/html"})
        elif match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(.*))?", path):
            repositories = self.hub.models if match[1] == "models" else self.hub.datasets
            self.answer_api(repositories.get(match[2]), match[2], match[3] or "revision/main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.answer_file(self.hub.models.get(match[1]), match[2], match[3])
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self.send_content(match[2], self.hub.models[match[1]].files[match[2]], {})
        else:
            self.fail(404, "EntryNotFound")

    def answer_api(self, repository: Repository | None, name: str, rest: str) -> None:
        action, _, revision = rest.partition("/")
        if not self.may_have(repository, revision) or repository is None:
            return
        if action == "revision":
            siblings = [
                {"rfilename": path, "size": repository.size(path)} for path in repository.files
            ]
            self.send_json({"id": name, "sha": repository.commit, "siblings": siblings})
        elif action == "tree":
            self.send_json([self.tree_entry(repository, path) for path in repository.files])
        else:
            self.fail(404, "EntryNotFound")

    def answer_file(self, repository: Repository | None, revision: str, path: str) -> None:
        if not self.may_have(repository, revision) or repository is None:
            return
        if path not in repository.files:
            self.fail(404, "EntryNotFound")
            return
        content = repository.files[path]
        headers = {"X-Repo-Commit": repository.commit}
        if not path.endswith(".safetensors"):
            self.send_content(path, content, headers | {"ETag": f'"{git_blob_id(content)}"'})
            return
        self.send_response(302)
        name = self.path.split("/resolve/")[0]
        linked = {
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{sha256(content)}"',
            "Location": f"{self.hub.cdn}/cdn{name}/{path}",
            "Content-Length": "0",
        }
        for key, value in (headers | linked).items():
            self.send_header(key, value)
        self.end_headers()

    def may_have(self, repository: Repository | None, revision: str) -> bool:
        if repository is None:
            self.fail(404, "RepoNotFound")
        elif repository.gated:
            self.fail(403, "GatedRepo")
        elif not repository.has(revision):
            self.fail(404, "RevisionNotFound")
        else:
            return True
        return False

    @staticmethod
    def tree_entry(repository: Repository, path: str) -> dict[str, object]:
        content = repository.files[path]
        entry: dict[str, object] = {
            "type": "file",
            "path": path,
            "size": repository.size(path),
            "oid": git_blob_id(content),
        }
        if path.endswith(".safetensors"):
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def send_content(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        start, whole = 0, len(content)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match:
            start = int(match[1])
            content = content[: int(match[2]) + 1] if match[2] else content
            headers |= {"Content-Range": f"bytes {start}-{len(content) - 1}/{whole}"}
        self.send_response(206 if match else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.break_once.pop(path, None)
        self.wfile.write(content[start:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def send_json(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def fail(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def git_blob_id(content: bytes) -> str:
    """What git names a file's content by."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
