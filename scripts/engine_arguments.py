"""Prints the long options of vLLM's server, as its own parser knows them.

    ENVIRONMENT/bin/python scripts/engine_arguments.py > recipes/engines/vllm-cpu.txt    (-cuda)

Run it after its lock has changed. The parser asks which kind of device there is and
fails without one; the names are the same for all, so on a machine without a GPU it gets "CPU".
The Python files of an unpacked wheel on PYTHONPATH will do in an environment of a near version.
"""

from __future__ import annotations

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
options = [option for action in parser._actions for option in action.option_strings]
print(f"# vllm {vllm.__version__}; made by scripts/engine_arguments.py")
print("\n".join(sorted({option[2:] for option in options if option.startswith("--")})))
