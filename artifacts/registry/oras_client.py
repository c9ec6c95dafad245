"""The ORAS project's client for OCI registries, with additions for long uploads.

`oras` is an extra (`pip install '.[oci]'`), so only sending and fetching import it. Read against
oras 0.2.43.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import requests
from oras.auth import BasicAuth, TokenAuth
from oras.container import Container
from oras.provider import Registry
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from pipeline.core.untrusted.json import parse_json
from pipeline.core.untrusted.text import clip

# To connect, and between two bytes of an answer: a registry hashes a blob that it was sent once
# more before it answers that it has it; what is only asked for comes immediately.
TIMEOUT_SECONDS = (20, 600)
ASKED_SECONDS = (10, 15)
ASKED = ("GET", "HEAD")
# Bytes of an answer that is no blob: manifests, tokens, errors.
ANSWER_BYTES = 4 * 1024 * 1024
ANSWER_SECONDS = 15.0
# Until an answer begins, all tries together: a server may send a header a letter at a time.
BEGIN_SECONDS = 60.0
# Time limit of a blob: some seconds to begin, and a lowest mean rate.
BLOB_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 16 * 1024
BLOCK_BYTES = 1024 * 1024
RETRIES = 3
CHALLENGE = "WWW-Authenticate"


class OrasClient(Registry):  # type: ignore[misc]
    """Client of one registry.

    Unlike its parent, it times out after seconds instead of minutes, reports sent bytes and
    replaces insufficient tokens. `auth` is 'token' or 'basic', see `kind_of_login`.
    """

    def __init__(self, host: str, *, insecure: bool, auth: str) -> None:
        super().__init__(hostname=host, insecure=insecure, auth_backend=auth)
        mount_adapter(self.session)
        self.sent: Callable[[int], None] = lambda count: None
        self.complaints: list[str] = []
        if isinstance(self.auth, TokenAuth):
            self.auth.request_token = self._refuse_plain_realm(self.auth.request_token)

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: Any = None,
        json: Any = None,
        stream: bool = False,
    ) -> requests.Response:
        if not self._is_ours(url):
            return self._request_elsewhere(url, method, data, headers, json, stream)
        # Without the parent's retries: they wait for 131 s, also after a wrong password.
        once = Registry.do_request.__wrapped__
        if isinstance(self.auth, BasicAuth):
            # Immediately, since the parent sends every piece without it first.
            headers = {**(headers or {}), **self.auth.get_auth_header()}
        response = once(self, url, method, data, headers, json, stream)
        if response.status_code == 401 and getattr(self.auth, "token", None):
            self.auth.token = None
            response = once(self, url, method, data, headers, json, stream)
        return self._note(response, method, data)

    def _is_ours(self, url: str) -> bool:
        return _origin(url) == _origin(f"{self.prefix}://{self.hostname}")

    def _request_elsewhere(
        self, url: str, method: str, data: Any, headers: Any, json: Any, stream: bool
    ) -> requests.Response:
        kept = {k: v for k, v in (headers or {}).items() if k.lower() != "authorization"}
        response = self.session.request(
            method, url, data=data, json=json, headers=kept, stream=stream, verify=self._tls_verify
        )
        return self._note(response, method, data)

    def _note(self, response: requests.Response, method: str, data: Any) -> requests.Response:
        if response.ok and isinstance(data, bytes):
            self.sent(len(data))
        if not response.ok and method != "HEAD":
            self.complaints = _complaints(response)
        return response

    def _refuse_plain_realm(self, request_token: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def request(asked: Any) -> Any:
            if self.prefix == "https" and urlsplit(asked.realm or "").scheme == "http":
                raise requests.RequestException(
                    f"it wants the login sent without encryption, to {clip(str(asked.realm), 200)}"
                )
            return request_token(asked)

        return request


def parse_reference(reference: str, host: str | None = None) -> Container:
    """Parse HOST/REPOSITORY with :TAG or @DIGEST; raise ValueError if malformed."""
    return Container(reference, registry=host)


def kind_of_login(host: str, *, insecure: bool) -> str:
    """Return 'basic' or 'token', the registry's login method; 'token' also without a login.

    Raises:
        requests.RequestException: it does not answer.
    """
    with requests.Session() as session:
        mount_adapter(session)
        answer = session.get(f"{'http' if insecure else 'https'}://{host}/v2/")
    asks = answer.headers.get(CHALLENGE, "").lower() if answer.status_code == 401 else ""
    return "basic" if asks.startswith("basic") else "token"


def mount_adapter(session: requests.Session) -> None:
    """Give the session time limits, and retries for a busy registry."""
    tries = Retry(
        total=RETRIES,
        backoff_factor=1,
        status_forcelist=(429, 502, 503, 504),
        read=0,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # it may say days
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, _RetryingAdapter(max_retries=tries))


class _RetryingAdapter(HTTPAdapter):
    """Requests with limits of time and size, which `requests` lacks."""

    def send(
        self, request: Any, stream: bool = False, *arguments: Any, **options: Any
    ) -> requests.Response:
        """Send it; read an answer that is not streamed within the limits.

        Raises:
            requests.RequestException: there is no answer, or it is too long or too slow.
        """
        usual = ASKED_SECONDS if request.method in ASKED else TIMEOUT_SECONDS
        options["timeout"] = options.get("timeout") or usual
        request.headers["Accept-Encoding"] = "identity"
        send = super().send
        if request.method in ASKED:
            response = _begin(lambda: send(request, True, *arguments, **options))
        else:
            response = send(request, True, *arguments, **options)
        if not stream or not response.ok:
            # Where `requests` keeps what it has read; it reads no more then.
            response._content = _answer(response)
            response._content_consumed = True
        return response


def blob_blocks(response: requests.Response, size: int) -> Iterator[bytes]:
    """Yield the body of a streamed blob; `size` does not limit it.

    Raises:
        requests.RequestException: it ends early, or is too slow.
    """
    yield from _blocks(response, BLOB_SECONDS + size / SLOWEST_BYTES_PER_SECOND)


def _blocks(response: requests.Response, seconds: float) -> Iterator[bytes]:
    """Yield blocks of an answer's body; raises as `blob_blocks`."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            block = response.raw.read1(BLOCK_BYTES, decode_content=False)
        except (HTTPError, OSError) as error:
            raise requests.ConnectionError(f"its answer broke off: {error}") from error
        if not block:
            return
        yield block
    raise requests.Timeout("its answer does not come to an end")


def _answer(response: requests.Response) -> bytes:
    parts, left = [], ANSWER_BYTES
    try:
        for part in _blocks(response, ANSWER_SECONDS):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise requests.RequestException("its answer is longer than a manifest may be")
    finally:
        response.close()
    return b"".join(parts)


def _begin(send: Callable[[], requests.Response]) -> requests.Response:
    """Return the answer of `send` when it begins.

    Raises:
        requests.Timeout: it has not begun in time; a daemon thread keeps waiting.
    """
    found: Future[requests.Response] = Future()

    def wait() -> None:
        try:
            found.set_result(send())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    try:
        return found.result(BEGIN_SECONDS)
    except TimeoutError as error:
        raise requests.Timeout("its answer does not begin") from error


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL; raises ValueError for an invalid port."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _complaints(response: requests.Response) -> list[str]:
    try:
        errors = parse_json(response.content, values=1000)["errors"]
        return [clip(str(error["message"]), 300) for error in errors[:5]]
    except (ValueError, KeyError, TypeError):
        return [f"{response.status_code} {response.reason}"]
