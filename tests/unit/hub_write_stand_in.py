"""A small real HTTP server that speaks the Hub's interface for writing, as huggingface_hub uses it.

Model repositories with commits, branches and tags; uploads by LFS (not Xet, which
HF_HUB_DISABLE_XET turns off in the client). As on the real Hub every write is atomic:
here under one lock. A commit whose parent is not the branch's head is refused with status 412, a
tag or branch that is there already with 409.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import threading
import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from http_stand_in import HttpStandIn, SilentHandler
from hub_stand_in import git_blob_id, sha256

WRITER, STRANGER = "hf_writer", "hf_stranger"
LFS_PATTERNS = ("*.safetensors", "*.gz", "*.zst")
SUMMARY_OF_A_CONFLICT = "A commit has happened since. Please refresh and try again."


@dataclass(frozen=True)
class Commit:
    """One commit: every file's content by path, and what it said."""

    files: dict[str, bytes]
    message: str
    parent: str | None


@dataclass
class ModelRepository:
    """One model repository.

    Attributes:
        commits: by id.
        branches, tags: commit id by name.
        blobs: what was uploaded by LFS, by sha256.
    """

    private: bool
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def add(self, branch: str, files: dict[str, bytes], message: str) -> str:
        """Put a commit at the end of the branch; returns its id."""
        parent = self.branches.get(branch)
        seed = json.dumps([parent, message, len(self.commits), sorted(files)])
        commit = hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = Commit(files, message, parent)
        self.branches[branch] = commit
        return commit

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or commit id stands for."""
        known = revision if revision in self.commits else None
        return self.branches.get(revision) or self.tags.get(revision) or known

    def card_tags(self) -> list[str]:
        """The tags of the card on the main branch."""
        card = self.commits[self.branches["main"]].files.get("README.md", b"").decode()
        matter = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else {}
        return list(matter.get("tags", []))


@dataclass
class Fault:
    """What goes wrong once.

    Args:
        what: pattern of method and path.
        status: that is answered.
        done: whether the request is carried out all the same.
    """

    what: str
    status: int
    done: bool = False


class HubWriteStandIn(HttpStandIn):
    """The server; a context manager.

    Attributes:
        models: by org/name.
        requests: 'METHOD path' of all that came so far.
        faults: each happens once.
        writable: namespaces that WRITER may write to.
        roles: of tokens, as it says them; else 'write'.
        owners: of tokens, what it says otherwise than of a user.
        jitter_seconds: at most so long a request waits before it is carried out, for races.
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelRepository] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.writable = {"acme"}
        self.roles: dict[str, str] = {}
        self.owners: dict[str, dict[str, Any]] = {}
        self.jitter_seconds = 0.0
        self.lock = threading.Lock()
        stand_in = self

        class Handler(_Handler):
            hub = stand_in

        super().__init__(Handler)

    def count(self, what: str) -> int:
        """How many requests of that pattern came."""
        return sum(fnmatchcase(request, what) for request in self.requests)


def point_there(patch: pytest.MonkeyPatch, url: str, token: str | None = WRITER) -> None:
    """Have huggingface_hub, in this process, use that server; it reads its settings at import."""
    from huggingface_hub import constants

    patch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setenv("HF_ENDPOINT", url)  # for processes that are started
    patch.setenv("HF_HUB_DISABLE_XET", "1")
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    patch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    patch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    if token is None:
        patch.delenv("HF_TOKEN", raising=False)
    else:
        patch.setenv("HF_TOKEN", token)


class _Refusal(Exception):  # noqa: N818
    """A status to answer with."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


Answer = tuple[int, bytes, dict[str, str]]


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one packet; else the other side waits 40 ms before it acknowledges.
    wbufsize = 1 << 16
    hub: HubWriteStandIn

    def do_HEAD(self) -> None:
        self.serve()

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def do_PUT(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def serve(self) -> None:
        """Carry the request out, all of it under the lock, and answer."""
        split = urlsplit(self.path)
        path, query = unquote(split.path), parse_qs(split.query)
        body = self.read_body()
        if self.hub.jitter_seconds:
            time.sleep(random.uniform(0, self.hub.jitter_seconds))
        with self.hub.lock:
            asked = f"{self.command} {path}"
            self.hub.requests.append(asked)
            fault = next((f for f in self.hub.faults if fnmatchcase(asked, f.what)), None)
            if fault is not None:
                self.hub.faults.remove(fault)
            try:
                if fault is not None and not fault.done:
                    raise _Refusal(fault.status)
                status, content, headers = self.route(path, query, body)
                if fault is not None:
                    raise _Refusal(fault.status)
            except _Refusal as refusal:
                status = refusal.status
                told = {"error": refusal.message, "url": f"{self.hub.url}/x/y"}
                content = json.dumps(told).encode()
                headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
                headers = {key: value for key, value in headers.items() if value}
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def read_body(self) -> bytes:
        """The request's body, also one that comes in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def route(self, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        """Answer one request, or raise _Refusal."""
        if path == "/api/repos/create":
            return self.create_repo(json.loads(body))
        if path == "/api/validate-yaml":
            return as_json({"errors": [], "warnings": []})
        if path == "/api/whoami-v2":
            return self.whoami()
        if path == "/api/models":
            return self.list_models(query)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([a-z]+)(?:/(.+))?)?", path):
            return self.model(match[1], match[2] or "revision", match[3] or "main", body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.lfs_batch(match[1], json.loads(body))
        if match := re.fullmatch(r"/lfs/([^/]+/[^/]+)/(\w+)", path):
            if sha256(body) != match[2]:
                raise _Refusal(400, message="not the content that was announced")
            self.hub.models[match[1]].blobs[match[2]] = body
            return 200, b"", {}
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(match[1], match[2], match[3])
        raise _Refusal(404, "EntryNotFound")

    # Who may do what.

    def token(self) -> str | None:
        given = self.headers.get("Authorization")
        token = given.removeprefix("Bearer ") if given else None
        if token not in (None, WRITER, STRANGER):
            raise _Refusal(401, message="Invalid credentials in Authorization header")
        return token

    def readable(self, name: str) -> ModelRepository:
        token, found = self.token(), self.hub.models.get(name)
        allowed = token == WRITER and name.split("/")[0] in self.hub.writable
        if found is None or (found.private and not allowed):
            raise _Refusal(401 if token is None else 404, "RepoNotFound", "Repository not found")
        if found.gated and not allowed:
            raise _Refusal(403, "GatedRepo", "Access to this model is restricted")
        return found

    def writing(self, namespace: str) -> None:
        token = self.token()
        if token is None:
            raise _Refusal(401, message="Invalid username or password.")
        if token != WRITER or namespace not in self.hub.writable:
            raise _Refusal(403, message=f"You don't have the rights to write to {namespace}")

    # Requests.

    def whoami(self) -> Answer:
        token = self.token()
        if token is None:
            raise _Refusal(401, message="Invalid username or password.")
        role = self.hub.roles.get(token, "write")
        orgs = [{"type": "org", "name": name} for name in sorted(self.hub.writable)]
        return as_json(
            {
                "type": "user",
                "name": token.removeprefix("hf_"),
                "orgs": orgs if token == WRITER else [],
                "auth": {"type": "access_token", "accessToken": {"role": role}},
                **self.hub.owners.get(token, {}),
            }
        )

    def create_repo(self, wanted: dict[str, Any]) -> Answer:
        self.writing(wanted["organization"])
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.models:
            raise _Refusal(409, message="You already created this model repo")
        made = ModelRepository(private=wanted.get("visibility") == "private")
        made.add("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self.hub.models[name] = made
        return as_json({"url": f"{self.hub.url}/{name}"})

    def list_models(self, query: dict[str, list[str]]) -> Answer:
        namespace, wanted = query["author"][0], set(query.get("filter", []))
        allowed = self.token() == WRITER and namespace in self.hub.writable
        return as_json(
            [
                {"id": name, "tags": model.card_tags(), "private": model.private}
                for name, model in self.hub.models.items()
                if name.startswith(f"{namespace}/")
                and (allowed or not model.private)
                and wanted <= set(model.card_tags())
            ]
        )

    def model(self, name: str, action: str, rest: str, body: bytes) -> Answer:
        model = self.readable(name)
        if self.command != "GET":
            self.writing(name.split("/")[0])
        if action == "refs":
            return as_json(refs_of(model))
        if action == "branch":
            return self.change_branch(model, rest, body)
        if action == "tag":
            return self.change_tag(model, rest, body)
        commit = model.commit_of(rest)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {rest}")
        files = model.commits[commit].files
        if action == "revision":
            siblings = [{"rfilename": path} for path in files]
            return as_json({"id": name, "sha": commit, "siblings": siblings})
        if action == "tree":
            return as_json([tree_entry(path, content) for path, content in files.items()])
        if action == "preupload":
            return as_json(
                {"files": [preupload(each, files) for each in json.loads(body)["files"]]}
            )
        if action == "commit":
            return self.commit(model, rest, body)
        raise _Refusal(404, "EntryNotFound")

    def change_branch(self, model: ModelRepository, branch: str, body: bytes) -> Answer:
        if self.command == "DELETE":
            if model.branches.pop(branch, None) is None:
                raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {branch}")
            return as_json({})
        if branch in model.branches:
            raise _Refusal(409, message="Reference already exists")
        commit = model.commit_of(json.loads(body).get("startingPoint", "main"))
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", "Invalid starting point")
        model.branches[branch] = commit
        return as_json({})

    def change_tag(self, model: ModelRepository, rest: str, body: bytes) -> Answer:
        if self.command == "DELETE":
            if model.tags.pop(rest, None) is None:
                raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {rest}")
            return as_json({})
        tag, commit = json.loads(body)["tag"], model.commit_of(rest)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {rest}")
        if tag in model.tags:
            raise _Refusal(409, message="Tag reference exists already")
        model.tags[tag] = commit
        return as_json({})

    def commit(self, model: ModelRepository, branch: str, body: bytes) -> Answer:
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        head = model.branches.get(branch)
        if head is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        if header.get("parentCommit", head) != head:
            raise _Refusal(412, message=SUMMARY_OF_A_CONFLICT)
        files = dict(model.commits[head].files)
        for line in lines[1:]:
            value, path = line["value"], line["value"]["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in model.blobs:
                    raise _Refusal(400, message=f"no such LFS object: {value['oid']}")
                files[path] = model.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[path]
        made = model.add(branch, files, header["summary"])
        return as_json({"commitUrl": f"{self.hub.url}/x/y/commit/{made}", "commitOid": made})

    def lfs_batch(self, name: str, wanted: dict[str, Any]) -> Answer:
        model = self.readable(name)
        self.writing(name.split("/")[0])
        objects = []
        for each in wanted["objects"]:
            href = f"{self.hub.url}/lfs/{name}/{each['oid']}"
            actions = {} if each["oid"] in model.blobs else {"actions": {"upload": {"href": href}}}
            objects.append(each | actions)
        return as_json({"objects": objects, "transfer": "basic"})

    def resolve(self, name: str, revision: str, path: str) -> Answer:
        model = self.readable(name)
        commit = model.commit_of(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in model.commits[commit].files:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        content = model.commits[commit].files[path]
        tag = sha256(content) if is_large(path) else git_blob_id(content)
        return 200, content, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}


def refs_of(model: ModelRepository) -> dict[str, Any]:
    """As the Hub lists them."""

    def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
        return [
            {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}
            for name, commit in refs.items()
        ]

    return {
        "branches": listed("heads", model.branches),
        "tags": listed("tags", model.tags),
        "converts": [],
    }


def is_large(path: str) -> bool:
    """Whether the Hub keeps such a file by LFS."""
    return any(fnmatchcase(path, pattern) for pattern in LFS_PATTERNS)


def tree_entry(path: str, content: bytes) -> dict[str, Any]:
    """One file of a listing."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    entry["oid"] = git_blob_id(content)
    if is_large(path):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return entry


def preupload(wanted: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
    """How a file is to be uploaded, and what is there now."""
    path = wanted["path"]
    answer = {
        "path": path,
        "uploadMode": "lfs" if is_large(path) else "regular",
        "shouldIgnore": ignored(path, files.get(".gitignore", b"").decode()),
    }
    if path in files:
        content = files[path]
        answer["oid"] = sha256(content) if is_large(path) else git_blob_id(content)
    return answer


def ignored(path: str, patterns: str) -> bool:
    """Whether a .gitignore of plain patterns names the file."""
    return any(fnmatchcase(path, pattern) for pattern in patterns.split())


def as_json(value: object) -> Answer:
    """A value as the body of an answer."""
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}
