"""Prints the options of SGLang's server with their defaults, as its parser lists them.

    ENVIRONMENT/bin/python scripts/sglang_options.py > recipes/engines/sglang.txt

ENVIRONMENT is the built environment serve-sglang. Run it after the lock has changed. The lines are
as in `vllm-cpu.txt`: `name` or `name=default`, `-short=name`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib.metadata import version

with contextlib.redirect_stdout(sys.stderr):
    from prepare_sglang import serve  # noqa: F401  # makes SGLang importable
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

lines = set()
for action in parser._actions:
    names = [option[2:] for option in action.option_strings if option.startswith("--")]
    default = action.default
    if isinstance(default, bool):
        default = str(default).lower()
    known = isinstance(default, int | float | str) and default not in ("", argparse.SUPPRESS)
    lines |= {f"{name}={default}" if known and "\n" not in str(default) else name for name in names}
    shorts = [option for option in action.option_strings if not option.startswith("--")]
    lines |= {f"{short}={names[0]}" for short in shorts if names}
print(f"# sglang {version('sglang')}; made by scripts/sglang_options.py")
print("\n".join(sorted(lines)))
