"""alive.py FOLDER [WORD]: ids of the processes whose TMPDIR is that folder or lies in it: what a launched command has started.

With WORD, of those whose command line has it.
"""

import os
import sys

needle = b"\0TMPDIR=" + sys.argv[1].encode()
word = sys.argv[2].encode() if len(sys.argv) > 2 else b""
found = []
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = b"\0" + file.read() + b"\0"
            with open(f"/proc/{name}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # the shell that waits for the command is the kit's own
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        is_ours = line.startswith(b"bash\0-c\0") or word not in line
        if state != "Z" and not is_ours and (needle + b"\0" in variables or needle + b"/" in variables):
            found.append(name)
print(*found)
