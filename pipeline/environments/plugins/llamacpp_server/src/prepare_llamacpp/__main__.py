"""Serves a checkpoint's folder: `python -m prepare_llamacpp --model FOLDER ...`.

The options are those of llama.cpp's own `llama-server`. A folder without `model.gguf` is converted
first, into a file that vanishes with this process. A host that is a path is a Unix socket.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prepare_llamacpp.convert import WEIGHTS, write_gguf

# For xllamacpp 2026.10.11549. Its library has llama.cpp's parser, but its Python classes do not
# offer it: it fills the C++ structure that follows the header of a `CommonParams` object.
PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
HEADER_BYTES = 16
SERVER_EXAMPLE = 12
SOCKET_SUFFIX = ".sock"  # llama.cpp recognizes a Unix socket by it


def main(arguments: list[str]) -> None:
    """Serve until a signal."""
    own = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    own.add_argument("--model", type=Path)
    own.add_argument("--host", default="127.0.0.1")
    own.add_argument("--trust-remote-code", action="store_true")
    known, others = own.parse_known_args(arguments)
    if known.model is None:  # such as --help
        parse(others)
        return
    socket = known.host if os.sep in known.host else ""
    others += ["--host", socket + SOCKET_SUFFIX if socket else known.host]
    with tempfile.TemporaryFile() as converted:  # has no name, so that nothing is left of it
        weights = str(known.model / WEIGHTS)
        if not Path(weights).exists():
            weights = f"/proc/self/fd/{converted.fileno()}"
            try:
                write_gguf(
                    known.model,
                    weights,
                    trust_remote_code=known.trust_remote_code,
                    descriptor=converted.fileno(),
                )
            except subprocess.CalledProcessError:
                sys.exit("error: llama.cpp's converter does not take this model")
        serve(parse([*others, "--model", weights]), socket)


def serve(parameters: Any, socket: str) -> None:
    """Load the model, serve it, and wait for a signal."""
    from xllamacpp import Server

    server = Server(parameters)
    if socket:
        Path(socket + SOCKET_SUFFIX).rename(socket)
    signal.pause()  # llama.cpp's own handlers of SIGINT and SIGTERM stop the server
    del server


def parse(arguments: list[str]) -> Any:
    """Return xllamacpp's parameters of llama-server's options; prints an error and exits."""
    import xllamacpp
    import xllamacpp.xllamacpp as library

    parameters = xllamacpp.CommonParams()
    words = (ctypes.c_char_p * (len(arguments) + 2))(
        b"llama-server", *map(os.fsencode, arguments), None
    )
    function = getattr(ctypes.CDLL(library.__file__), PARSE)
    function.restype = ctypes.c_bool
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    place = id(parameters) + HEADER_BYTES
    if not function(len(arguments) + 1, ctypes.addressof(words), place, SERVER_EXAMPLE, None):
        sys.exit(2)
    if (
        "--model" in arguments
        and parameters.model.path != arguments[arguments.index("--model") + 1]
    ):
        sys.exit("error: this version of xllamacpp lays its parameters out otherwise")
    return parameters


if __name__ == "__main__":
    main(sys.argv[1:])
