"""Prints the options of vLLM's server with their defaults, and its variables, as it knows them.

    ENVIRONMENT/bin/python scripts/engine_arguments.py > recipes/engines/vllm-cpu.txt    (-cuda)

`name` or `name=default` of a long option, `-short=name`, `VLLM_VARIABLE`. A default that is found
when the engine starts, or is no number, truth or text, is left out.

Run it after its lock has changed. The parser asks which kind of device there is and fails without
one; the names are the same for all, so on a machine without a GPU it gets "CPU".
The Python files of an unpacked wheel on PYTHONPATH will do in an environment of a near version.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

with contextlib.redirect_stdout(sys.stderr):  # the engine prints banners
    import vllm
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    if not vllm.platforms.current_platform.device_type:
        vllm.platforms._current_platform = CpuPlatform()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # since 0.33
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    parser = make_arg_parser(FlexibleArgumentParser())
import vllm.envs


def plain(value: object) -> str | None:
    """Return a default as written; None if there is none, or the engine computes it."""
    value = getattr(value, "value", value)  # of an enumeration
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | str) and value != "" else None


lines = set()
for action in parser._actions:
    default = None if action.default == argparse.SUPPRESS else plain(action.default)
    names = [option for option in action.option_strings if option.startswith("--")]
    if not names:
        continue
    first, *others = names
    # The second name of a switch is its opposite.
    opposite = {"true": "false", "false": "true"}.get(default) if action.nargs == 0 else default
    lines |= {f"{first[2:]}={default}" if default else first[2:]}
    lines |= {f"{each[2:]}={opposite}" if opposite else each[2:] for each in others}
    lines |= {f"{s}={first[2:]}" for s in action.option_strings if not s.startswith("--")}
lines |= {name for name in vllm.envs.environment_variables if name.startswith("VLLM_")}
print(f"# vllm {vllm.__version__}; made by scripts/engine_arguments.py")
print("\n".join(sorted(lines)))
