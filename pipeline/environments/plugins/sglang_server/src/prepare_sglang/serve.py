"""SGLang's server; `--socket PATH` replaces its port.

Its processes import this module again, because they are spawned, so the stand-ins are theirs, too.
The API key comes from a variable: all users can read command lines.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys

from prepare_sglang.missing_parts import declare

_library = declare()

KEY_VARIABLE = "SGLANG_API_KEY"


def main(words: list[str]) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--socket")
    own, others = parser.parse_known_args(words)

    import uvicorn
    from sglang.launch_server import run_server
    from sglang.srt.entrypoints import http_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    if own.socket:
        # SGLang warms up and freezes its garbage by requests to its own port, which is not there.
        with_socket = functools.partial(uvicorn.Config, uds=own.socket)
        setattr(uvicorn, "Config", with_socket)  # noqa: B010  # a class to type checkers
        http_server._freeze_gc_after_server_warmup = lambda _: None
        others.append("--skip-server-warmup")
    settings = prepare_server_args(others)
    if key := os.environ.get(KEY_VARIABLE):
        settings.api_key = key
    try:
        run_server(settings)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
