"""Prints the options of llama.cpp's server, as its parser lists them.

    ENVIRONMENT/bin/python scripts/llamacpp_options.py > recipes/engines/llamacpp.txt

ENVIRONMENT is the built environment serve-llamacpp. Run it after the lock has changed. The lines
are as in `vllm-cpu.txt`: `name`, `-short=name`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

text = subprocess.run(
    [sys.executable, "-m", "prepare_llamacpp", "--help"], capture_output=True, text=True, check=True
).stdout
lines = set()
for line in text.splitlines():
    found = re.match(r"(?:-{1,2}[a-zA-Z][\w-]*,?\s*)+", line)
    names = re.findall(r"-{1,2}[\w-]+", found[0]) if found else []
    longs = [name[2:] for name in names if name.startswith("--")]
    lines |= set(longs)
    if longs:
        lines |= {f"{name}={longs[0]}" for name in names if not name.startswith("--")}
print(f"# llama.cpp of xllamacpp {version('xllamacpp')}; made by scripts/llamacpp_options.py")
print("\n".join(sorted(lines)))
