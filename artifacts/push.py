"""Copies of registered versions on the Hugging Face Hub and in OCI registries.

Copies have no aliases, and answers only on request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from artifacts.evidence.manifest import ManifestFile
from artifacts.registry import Version
from prepare.digest import FileDigests, digest_bytes
from prepare.errors import RegistryError, UsageError
from prepare.escape import clip
from prepare.events import Progress
from prepare.untrusted import parse_json, read_json_file
from recipes.checkpoints.hub import LOG_IN
from recipes.checkpoints.weight_files import ARCHIVE, plain_files

HUB = "hf://"
OCI = "oci://"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.prepare.model.v1"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
TITLE = "org.opencontainers.image.title"  # `oras pull` names files by it, too
MAX_MANIFEST_BYTES = 4 * 2**20
BLOCK_BYTES = 2**20
MIN_BYTES = 2**16
MAX_BLOCK_S = 60  # an answer that comes slower than this has no end
ANSWER_S = 60  # seconds until headers are there
STORED_S = 600  # of a stored blob, which a registry hashes before it answers
TIMEOUT = httpx.Timeout(STORED_S, connect=20)
_HEADERS_READ = tuple(f"http11.receive_response_headers.{end}" for end in ("complete", "failed"))
_OCI_NAME = re.compile(
    r"(?P<host>[\w.-]+(?::\d+)?)/(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Pushed:
    """A version's copy elsewhere."""

    reference: str
    digest_reference: str  # by digest, so that `prepare pull` gets exactly these files
    files: int
    sent_bytes: int


def push(
    version: Version,
    folder: Path,
    destination: str,
    tag: str,
    *,
    with_questions: bool,
    digests: FileDigests,
    progress: Progress,
    insecure: bool = False,
) -> Pushed:
    """Send a version's checked folder to hf://ORG/REPO[@TAG] or oci://HOST/REPO[:TAG].

    `insecure` means HTTP for OCI.
    """
    files = dict(plain_files(folder, () if with_questions else (ARCHIVE,)))
    if destination.startswith(HUB):
        return _push_to_hub(destination, tag, folder, version, files)
    with _Oci(destination, insecure=insecure, progress=progress) as remote:
        return remote.push(files, remote.tag or tag, version, digests)


def fetch(source: str, folder: Path, progress: Progress, *, insecure: bool = False) -> str:
    """Copy hf://ORG/REPO@REVISION or oci://HOST/REPO@DIGEST into an empty folder.

    Returns the reference by digest.
    """
    if source.startswith(HUB):
        return _fetch_from_hub(source, folder)
    with _Oci(source, insecure=insecure, progress=progress) as remote:
        return remote.fetch(folder)


def _push_to_hub(
    destination: str, tag: str, folder: Path, version: Version, files: dict[str, Path]
) -> Pushed:
    from huggingface_hub import HfApi

    repo, wanted = _read_hub(destination)
    with _hub_errors(destination):
        api = HfApi()
        api.create_repo(repo, private=True, exist_ok=True)
        made = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=list(files),
            delete_patterns="*",
            commit_message=f"{version.name} version {version.version}",
        )
        name = wanted or tag
        if any(reference.name == name for reference in api.list_repo_refs(repo).tags):
            api.delete_tag(repo, tag=name)
        api.create_tag(repo, tag=name, revision=made.oid)
    size = sum(file.stat().st_size for file in files.values())
    return Pushed(f"{HUB}{repo}@{name}", f"{HUB}{repo}@{made.oid}", len(files), size)


def _fetch_from_hub(source: str, folder: Path) -> str:
    import shutil

    from huggingface_hub import HfApi, snapshot_download

    repo, revision = _read_hub(source)
    with _hub_errors(source):
        commit = str(HfApi().model_info(repo, revision=revision).sha)
        snapshot_download(repo, revision=commit, local_dir=folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    (folder / ".gitattributes").unlink(missing_ok=True)
    return f"{HUB}{repo}@{commit}"


def _read_hub(address: str) -> tuple[str, str | None]:
    parsed = _HUB_NAME.fullmatch(address.removeprefix(HUB))
    if parsed is None:
        raise UsageError(
            f"'{address}' is not a repository on the Hub",
            where=address,
            hint="hf://ORG/REPO, or hf://ORG/REPO@TAG",
        )
    return parsed["repo"], parsed["revision"]


@contextmanager
def _hub_errors(where: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    from recipes.checkpoints.hub import NOT_A_HUB, transport_error

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise RegistryError(
            "HF_HUB_OFFLINE is set", where=where, hint="unset HF_HUB_OFFLINE"
        ) from error
    except (HfHubHTTPError, transport_error(), OSError, RuntimeError, *NOT_A_HUB) as error:
        raise RegistryError(
            f"the Hub failed: {(str(error).strip().splitlines() or [type(error).__name__])[0]}",
            where=where,
            hint=f"{LOG_IN}, with a token that may use that repository; files that are there are "
            "not sent again",
        ) from error


def read_layers(manifest: bytes, where: str) -> list[ManifestFile]:
    """Return the files of a copy's manifest."""
    try:
        return [
            ManifestFile(
                path=layer["annotations"][TITLE],
                size=layer["size"],
                sha256=layer["digest"].removeprefix("sha256:"),
            )
            for layer in parse_json(manifest)["layers"]
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RegistryError(
            f"it is no copy that prepare made: {' '.join(str(error).split())[:200]}",
            where=where,
            hint="check the repository's name, and the tag or digest",
        ) from error


class _Oci:
    """One repository of an OCI registry."""

    def __init__(self, address: str, *, insecure: bool, progress: Progress) -> None:
        parsed = _OCI_NAME.fullmatch(address.removeprefix(OCI))
        if parsed is None or not address.startswith(OCI):
            raise UsageError(
                f"'{address}' is not a repository",
                where=address,
                hint="hf://ORG/REPO, or oci://HOST[:PORT]/REPOSITORY[:TAG]",
            )
        self._host = parsed["host"]
        self._path = parsed["path"]
        self.tag: str | None = parsed["tag"]
        self._digest: str | None = parsed["digest"]
        self._repository = f"{OCI}{self._host}/{self._path}"
        self._base = f"{'http' if insecure else 'https'}://{self._host}"
        self._secure = not insecure
        self._progress = progress
        self._login = _find_login(self._host)
        self._authorization = ""
        self._done = 0
        self._client = httpx.Client(timeout=TIMEOUT, headers={"Accept-Encoding": "identity"})
        self._clock = _HeadersClock()

    def __enter__(self) -> _Oci:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def push(
        self, files: dict[str, Path], tag: str, version: Version, digests: FileDigests
    ) -> Pushed:
        hashed = digests.digest_all(list(files.values()), self._progress)
        layers = [
            {
                "mediaType": "application/octet-stream",
                "digest": f"sha256:{digest}",
                "size": file.stat().st_size,
                "annotations": {TITLE: name},
            }
            for (name, file), digest in zip(files.items(), hashed, strict=True)
        ]
        config = {
            "mediaType": EMPTY_TYPE,
            "digest": f"sha256:{digest_bytes(EMPTY)}",
            "size": len(EMPTY),
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": config,
            "layers": layers,
            "annotations": {TITLE: f"{version.name} version {version.version}"},
        }
        content = json.dumps(manifest, sort_keys=True).encode()
        missing = {
            str(layer["digest"]): file
            for layer, file in zip(layers, files.values(), strict=True)
            if not self._has(str(layer["digest"]))
        }
        total = sum(file.stat().st_size for file in missing.values())
        for digest, file in missing.items():
            self._upload(digest, file.stat().st_size, self._read(file, total))
        if not self._has(str(config["digest"])):
            self._upload(str(config["digest"]), len(EMPTY), iter([EMPTY]))
        self._ask(
            "PUT", f"manifests/{tag}", content=content, headers={"Content-Type": MANIFEST_TYPE}
        )
        digest = f"sha256:{digest_bytes(content)}"
        return Pushed(
            f"{self._repository}:{tag}", f"{self._repository}@{digest}", len(layers), total
        )

    def fetch(self, folder: Path) -> str:
        wanted = self._digest or self.tag or "latest"
        _, content = self._ask("GET", f"manifests/{wanted}", headers={"Accept": MANIFEST_TYPE})
        digest = f"sha256:{digest_bytes(content)}"
        if self._digest not in (None, digest):
            raise self._refusal("it sent another manifest than the one that was asked for")
        layers = read_layers(content, self._repository)
        total = sum(layer.size for layer in layers)
        for layer in layers:
            self._download(layer, folder / layer.path, total)
        return f"{self._repository}@{digest}"

    def _has(self, digest: str) -> bool:
        return self._ask("HEAD", f"blobs/{digest}", allowed=(404,))[0].status_code == 200

    def _upload(self, digest: str, size: int, blocks: Iterator[bytes]) -> None:
        # As `docker push`: one request for the bytes, one for their digest.
        started, _ = self._ask("POST", "blobs/uploads/")
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        place, _ = self._ask("PATCH", self._location(started), content=blocks, headers=headers)
        # httpx's own `params` would replace the registry's.
        url = httpx.URL(self._location(place)).copy_merge_params({"digest": digest})
        self._ask("PUT", str(url))

    def _location(self, answer: httpx.Response) -> str:
        base = httpx.URL(self._base)
        with self._errors():
            place = base.join(answer.headers.get("Location", ""))
        if (place.scheme, place.host) != (base.scheme, base.host):
            raise self._refusal(f"it wants the files sent to {clip(str(place), 100)}")
        return str(place)

    def _read(self, file: Path, total: int) -> Iterator[bytes]:
        with file.open("rb") as content:
            while block := content.read(BLOCK_BYTES):
                self._done += len(block)
                self._progress.advance("push", self._done, total, "bytes")
                yield block

    def _create(self, path: str, file: Path) -> BinaryIO:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            what = f"{clip(path, 100)} is a file and a folder, or there twice"
            raise self._refusal(what) from error

    def _download(self, wanted: ManifestFile, file: Path, total: int) -> None:
        sha256 = hashlib.sha256()
        left = wanted.size
        url = f"{self._base}/v2/{self._path}/blobs/sha256:{wanted.sha256}"
        # httpx removes the credentials when a redirect names another host.
        with (
            self._errors(),
            self._client.stream(
                "GET",
                url,
                headers=self._headers(),
                follow_redirects=True,
                extensions=self._clock.of(ANSWER_S),
            ) as answer,
            self._create(wanted.path, file) as content,
        ):
            answer.raise_for_status()
            for block in _blocks(answer):
                left -= len(block)
                if left < 0:  # more than the manifest says must not fill the disk
                    break
                sha256.update(block)
                content.write(block)
                self._done += len(block)
                self._progress.advance("pull", self._done, total, "bytes")
        if left or sha256.hexdigest() != wanted.sha256:
            raise self._refusal(f"{clip(wanted.path, 100)} is not the file of its digest")

    def _ask(
        self, method: str, where: str, *, allowed: tuple[int, ...] = (), **options: Any
    ) -> tuple[httpx.Response, bytes]:
        """Return answer and body; other statuses than `allowed` raise."""
        url = where if "://" in where else f"{self._base}/v2/{self._path}/{where}"
        headers = options.pop("headers", {})
        with self._errors():
            if not self._authorization:
                self._log_in()
            answer, content = self._read_answer(
                method, url, headers={**headers, **self._headers()}, **options
            )
        if not answer.is_success and answer.status_code not in allowed:
            said = clip(content.decode(errors="replace"), 300)
            raise self._refusal(f"{answer.status_code} {answer.reason_phrase}: {said}")
        return answer, content

    def _read_answer(self, method: str, url: str, **options: Any) -> tuple[httpx.Response, bytes]:
        content = bytearray()
        seconds = STORED_S if method in ("PUT", "PATCH") else ANSWER_S
        clock = self._clock.of(seconds)
        with self._client.stream(method, url, extensions=clock, **options) as answer:
            for block in _blocks(answer):
                content += block
                if len(content) > MAX_MANIFEST_BYTES:
                    raise self._refusal("its answer is longer than a manifest may be")
        return answer, bytes(content)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization != "none" else {}

    def _log_in(self) -> None:
        """Get the login that the registry asks for."""
        answer, _ = self._read_answer("GET", f"{self._base}/v2/", timeout=MAX_BLOCK_S)
        asked = answer.headers.get("WWW-Authenticate", "") if answer.status_code == 401 else ""
        if not asked:
            self._authorization = "none"
        elif asked.lower().startswith("basic"):
            if self._login is None:
                raise self._refusal("it wants a login")
            self._authorization = f"Basic {self._login}"
        else:
            told = dict(re.findall(r'(\w+)="([^"]*)"', asked))
            realm = told.get("realm", "")
            if self._secure and not realm.startswith("https://"):
                raise self._refusal(f"it wants the login sent without encryption, to {realm[:100]}")
            scope = f"repository:{self._path}:pull,push"
            headers = {"Authorization": f"Basic {self._login}"} if self._login else {}
            wanted = {"service": told.get("service", ""), "scope": scope}
            answer, content = self._read_answer(
                "GET", realm, params=wanted, headers=headers, timeout=MAX_BLOCK_S
            )
            answer.raise_for_status()
            granted = dict(parse_json(content))
            self._authorization = f"Bearer {granted.get('token') or granted['access_token']}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError) as error:
            raise self._refusal(str(error) or type(error).__name__) from error

    def _refusal(self, why: str) -> RegistryError:
        return RegistryError(
            f"the OCI registry failed: {why}",
            where=self._repository,
            hint=f"check the name {self._host}; `docker login {self._host}` where it wants a "
            "login; --insecure where it speaks HTTP only. A push that is repeated sends what is "
            "missing",
        )


class _HeadersClock:
    """Breaks a connection whose headers take too long: a read's timeout begins at every byte."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._timer: threading.Timer | None = None

    def of(self, seconds: float) -> dict[str, Any]:
        """Return a request's extensions: the time from its last byte to the end of the headers."""

        def trace(event: str, told: dict[str, Any]) -> None:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                self._stream = told["return_value"]
            elif event == "http11.send_request_body.complete":
                self._timer = threading.Timer(seconds, self._break)
                self._timer.daemon = True
                self._timer.start()
            elif event in _HEADERS_READ and self._timer:
                self._timer.cancel()

        return {"trace": trace}

    def _break(self) -> None:
        with suppress(OSError):
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _blocks(answer: httpx.Response) -> Iterator[bytes]:
    """Yield a body; ReadTimeout if MIN_BYTES take longer than MAX_BLOCK_S: a read has no end."""
    began = time.monotonic()
    size = 0
    for block in answer.iter_raw():
        size += len(block)
        if size >= MIN_BYTES:
            began = time.monotonic()
            size = 0
        elif time.monotonic() - began > MAX_BLOCK_S:
            raise httpx.ReadTimeout(f"{MIN_BYTES:,} bytes took more than {MAX_BLOCK_S} s")
        yield block


def _find_login(host: str) -> str | None:
    """Return docker's or podman's login as Basic's base64."""
    folder = os.environ.get("DOCKER_CONFIG")
    places = [
        Path(folder or Path.home() / ".docker") / "config.json",
        Path(os.environ.get("XDG_RUNTIME_DIR", "/run")) / "containers" / "auth.json",
    ]
    for place in places:
        try:
            config = dict(read_json_file(place))
            auths = dict(config.get("auths", {}))
            helpers = dict(config.get("credHelpers", {}))
            login = dict(auths.get(host, {})).get("auth")
        except (OSError, TypeError, ValueError):
            continue
        if login:
            return str(login)
        helper = helpers.get(host) or config.get("credsStore")
        if helper:
            command = [f"docker-credential-{helper}", "get"]
            try:
                done = subprocess.run(
                    command, input=host, capture_output=True, text=True, timeout=60, check=True
                )
                told = parse_json(done.stdout)
                secret = f"{told['Username']}:{told['Secret']}"
            except (OSError, LookupError, TypeError, ValueError, subprocess.SubprocessError):
                continue
            return base64.b64encode(secret.encode()).decode()
    return None
