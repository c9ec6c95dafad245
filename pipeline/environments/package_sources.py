"""Package sources: the site's pip settings, forwarded to uv.

uv does not read pip's settings. A site that configured an index or a wheel folder for pip should
not have to configure it twice.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_UV_VARIABLES = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX"}
_ALTERNATIVES = {"UV_DEFAULT_INDEX": ("UV_INDEX_URL",), "UV_FIND_LINKS": ()}
_PIP_TIMEOUT_S = 30


def package_source_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make uv use pip's package sources.

    Settings for uv take precedence.
    """
    wanted = {
        option: variable
        for option, variable in _UV_VARIABLES.items()
        if not any(environment.get(name) for name in (variable, *_ALTERNATIVES[variable]))
    }
    if not wanted:
        return {}
    settings = pip_settings()
    added = {}
    for option, variable in wanted.items():
        value = environment.get("PIP_" + option.upper().replace("-", "_")) or settings.get(option)
        if value:
            # pip separates values by white space, uv by commas.
            added[variable] = ",".join(value.split())
    return added


def has_cpu_torch(find_links: str) -> bool:
    """Return whether `find_links` (uv's comma-separated form) has a CPU build of torch.

    A web page is assumed to have one.
    """
    places = [place.removeprefix("file://") for place in find_links.split(",") if place]
    return any("://" in place or list(Path(place).glob("torch-*+cpu-*.whl")) for place in places)


def pip_settings() -> dict[str, str]:
    """Return pip's settings for installing, by option; none without pip."""
    for interpreter in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", ""))):
        listing = _query_pip(interpreter) if interpreter else None
        if listing is not None:
            return parse_pip_settings(listing)
    return {}


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Return value by option from the output of ``pip config list`` (``section.option='value'``).

    `install` takes precedence over `global`. ``:env:`` lines are skipped: the caller reads the
    environment.
    """
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for line in listing.splitlines():
        key, separator, quoted = line.partition("=")
        section, _, option = key.partition(".")
        if separator and section in found:
            try:
                found[section][option] = str(ast.literal_eval(quoted))
            except (ValueError, SyntaxError):
                found[section][option] = quoted
    return found["global"] | found["install"]


def _query_pip(interpreter: str) -> str | None:
    """Return the output of ``pip config list``; None without a working pip."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONSAFEPATH"] = "1"  # a pip.py in the working directory is not pip
    try:
        answer = subprocess.run(
            [interpreter, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            timeout=_PIP_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
