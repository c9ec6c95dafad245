"""uv with a clean process environment and pip's package sources."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.environments.definition import LOCKED_PYTHON
from prepare.errors import EnvironmentBuildError, raise_as
from prepare.process_environment import NetworkAccess, server_environment
from prepare.supervisor import die_with_parent
from prepare.user_path import nearest_existing

CPU_TORCH = "https://download.pytorch.org/whl/cpu/torch/"
"""Page of PyTorch's own CPU builds, which the common index does not carry."""
_LINES_QUOTED = 12
_PIP_TIMEOUT_S = 30

_UV_VARIABLES = {
    "find-links": ("UV_FIND_LINKS",),
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "cert": ("SSL_CERT_FILE", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"),
    "proxy": ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
}
_CACHE = "UV_CACHE_DIR"
_PYTHONS = "python-build-standalone"  # in the address of uv's Pythons
_PYTHON_CURE = "install Python 3.11, or set UV_PYTHON_INSTALL_MIRROR to a mirror of uv's Pythons"
# What uv prints of a cause, and what to do; the first match is used.
_CURES = (
    (
        r"No space left|Disk quota exceeded",
        "free some space (`prepare gc` may help), or set PREPARE_HOME, and UV_CACHE_DIR if it is "
        "set, to a larger disk",
    ),
    (
        r"UnknownIssuer|invalid peer certificate",
        "a proxy or a mirror has a certificate that uv does not know: set SSL_CERT_FILE to the "
        "file of your site's certificates, or UV_SYSTEM_CERTS=true for the system's",
    ),
    (r"No interpreter found for", _PYTHON_CURE),
    (
        r"(?i)proxy|tunnel",
        "HTTPS_PROXY or pip's setting `proxy` names a proxy that does not answer: correct or "
        "remove it",
    ),
)
_CURE = (
    "behind a mirror set UV_DEFAULT_INDEX, and UV_FIND_LINKS to where torch's CPU wheel is; "
    "PREPARE_HOME and UV_CACHE_DIR select a larger or writable disk; the locks are for x86-64 "
    "Linux and Python 3.11, which uv fetches where there is none; or name an interpreter in the "
    "settings file"
)


def run_uv(
    arguments: Sequence[str],
    *,
    folder: Path,
    cache: Path | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run uv to its end; it is killed with this process.

    `cache` is its cache where the user's is on another disk than `folder`. uv would read a project
    in `folder`. No configuration file is read: one of any folder above would count, and another
    user may have written it.
    """
    from uv import find_uv_bin

    hint = "reinstall this package: its dependency uv is damaged"
    with raise_as(EnvironmentBuildError, "the uv program is missing", "uv", hint):
        command = [find_uv_bin(), "--no-config", *arguments]
    lines: deque[str] = deque(maxlen=_LINES_QUOTED)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_with_cache(cache, folder, installer_variables()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Otherwise the uv of a killed build would write to the next build's folder.
        preexec_fn=die_with_parent,
    ) as process:
        try:
            for line in process.stdout or ():
                if line.strip() and not line.startswith((" + ", " - ")):
                    lines.append(f"    {line.rstrip()}")
                on_line(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        quoted = "\n".join(lines)
        raise EnvironmentBuildError(
            f"uv could not install (exit code {process.returncode}). Its last lines:\n{quoted}",
            where=" ".join(command),
            hint=_cure_of(quoted),
        )


def _cure_of(printed: str) -> str:
    """Return what to do about a failure of uv, by what it printed."""
    if _PYTHONS in printed:
        return _PYTHON_CURE
    words = re.sub(r"https?://\S+", "", printed)  # a mirror may be called a proxy
    return next((cure for cause, cure in _CURES if re.search(cause, words)), _CURE)


def _with_cache(cache: Path | None, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the variables with that cache if the usual one is on another disk than the folder.

    uv links files of its cache into environments. From another disk it copies them, and that one
    may be small: a home of 300 MB, next to a large PREPARE_HOME. Without a network the usual one
    may have what is needed.
    """
    if cache is None or any(environment.get(name) for name in (_CACHE, "UV_OFFLINE")):
        return environment
    try:
        caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        is_same = _disk_of(Path(caches)) == _disk_of(folder)
    except (OSError, RuntimeError):  # no home, or one that cannot be read
        is_same = False
    return environment if is_same else {**environment, _CACHE: str(cache)}


def _disk_of(path: Path) -> int:
    return nearest_existing(path).stat().st_dev


def locked_python() -> str:
    """Return what uv makes environments with: this interpreter, or one that it finds or fetches."""
    if sys.version_info[:2] == LOCKED_PYTHON:
        return sys.executable
    return ".".join(map(str, LOCKED_PYTHON))


def find_locked_python() -> Path | None:
    """Return the interpreter of environments; None if uv would have to fetch one."""
    if sys.version_info[:2] == LOCKED_PYTHON:
        return Path(sys.executable)
    from uv import find_uv_bin

    answer = subprocess.run(
        [find_uv_bin(), "--no-config", "python", "find", locked_python()],
        env={**installer_variables(), "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Path(answer.stdout.strip()) if answer.returncode == 0 else None


def installer_variables() -> dict[str, str]:
    """Return uv's process environment, with pip's package sources where uv has none.

    Builds of packages inherit it, so it has no credentials but those of package indexes.
    """
    environment = server_environment(os.environ, {}, needs=(NetworkAccess.PACKAGES,))
    settings = pip_settings()
    for option, names in _UV_VARIABLES.items():
        value = os.environ.get("PIP_" + option.upper().replace("-", "_")) or settings.get(option)
        if value and not any(environment.get(name) for name in names):
            # pip separates places by white space, uv by commas.
            environment[names[0]] = ",".join(value.split()) if option == "find-links" else value
    return environment


def pip_settings() -> dict[str, str]:
    """Return pip's settings for installing; none without pip.

    `install` takes precedence over `global`.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONSAFEPATH"] = "1"  # a pip.py in the working directory is not pip
    for interpreter in filter(None, (sys.executable, getattr(sys, "_base_executable", ""))):
        try:
            listing = subprocess.run(
                [interpreter, "-m", "pip", "config", "list"],
                capture_output=True,
                text=True,
                timeout=_PIP_TIMEOUT_S,
                env=environment,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}}
        for line in listing.splitlines():
            key, separator, quoted = line.partition("=")
            section, _, option = key.partition(".")
            if separator and section in by_section:
                by_section[section][option] = str(ast.literal_eval(quoted))
        return by_section["global"] | by_section["install"]
    return {}


def has_cpu_torch(find_links: str) -> bool:
    """Return whether `find_links` (comma-separated) may have torch for CPUs."""
    places = [place.removeprefix("file://") for place in find_links.split(",") if place]
    return any("://" in place or list(Path(place).glob("torch-*+cpu-*.whl")) for place in places)
