"""Where packages come from: the site's own pip settings, handed on to uv.

uv does not read pip's settings. A site that has told pip where its packages are (an index of its
own, a folder of wheels such as torch's CPU build) should not have to say so twice.
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
    """The variables to add to `environment` so that uv looks where pip does.

    What is set for uv already is left alone.
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
            # pip separates several by white space, uv by commas.
            added[variable] = ",".join(value.split())
    return added


def has_cpu_torch(find_links: str) -> bool:
    """Whether uv finds a CPU build of torch under `find_links` (uv's comma-separated form).

    A page on the network is taken to have one: whoever set it knows why.
    """
    places = [place.removeprefix("file://") for place in find_links.split(",") if place]
    return any("://" in place or list(Path(place).glob("torch-*+cpu-*.whl")) for place in places)


def pip_settings() -> dict[str, str]:
    """pip's own settings for installing, by option name; none where there is no pip."""
    for interpreter in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", ""))):
        listing = _query_pip(interpreter) if interpreter else None
        if listing is not None:
            return parse_pip_settings(listing)
    return {}


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Value by option of what ``pip config list`` prints (``section.option='value'``).

    `install` is more particular than `global`. ``:env:`` lines are left out: the environment
    was asked already.
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
    """What ``pip config list`` prints; None where that interpreter has no working pip."""
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
