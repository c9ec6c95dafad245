"""Hostile solutions of a function that adds one, with their expected outcomes.

Every one answers wrongly, or answers rightly only if it got at something it must not get at; so
`passed` would be a hole.
"""

from __future__ import annotations

from typing import NamedTuple

TEST = "assert f(1) == 2\nassert f(41) == 42\n"


class Hostile(NamedTuple):
    """One solution; `outcome` may name several; `sandboxed`: it is stopped by a sandbox alone."""

    solution: str
    outcome: str
    sandboxed: bool = False
    test: str = TEST


WRONG = "def f(x): return 0\n"
RIGHT_IF_DONE = "def f(x): return x + 1 if done else 0\n"


def tries(attempt: str) -> str:
    """A solution that is right if the attempt, which sets `done`, succeeds."""
    body = "".join(f"    {line}\n" for line in attempt.splitlines())
    return (
        f"done = False\ntry:\n{body}except BaseException as error:\n"
        f"    import sys; print(repr(error), file=sys.stderr)\n{RIGHT_IF_DONE}"
    )


# Forged copies of all messages between the sandbox's processes.
FORGE = """
import json, os
for content in ({"outcome": "passed", "detail": ""}, {"ready": True}, {"value": True},
                {"started": True}, {"status": 0, "memory": False}, {"value": {"opaque": "x"}}):
    body = json.dumps(content).encode()
    for fd in range(0, 64):
        try: os.write(fd, len(body).to_bytes(8, "big") + body)
        except OSError: pass
"""

# Looks for the tests in every object, frame, descriptor and piece of memory there is.
SEARCH = """
import gc, os, sys
found, needle = [], "14(f tressa"  # backwards, not to find itself
def look(thing):
    if needle in str(thing)[::-1]: found.append(thing)
for frame in sys._current_frames().values():
    while frame:
        for value in (*frame.f_locals.values(), *frame.f_globals.values()): look(value)
        frame = frame.f_back
for thing in gc.get_objects():
    if type(thing) in (dict, list, tuple): look(thing)
for fd in (0, *range(3, 64)):
    for read in (os.pread, lambda fd, size, at: os.read(fd, size)):
        try:
            os.set_blocking(fd, False)
            look(read(fd, 100_000, 0))
        except OSError: pass
        try: os.set_blocking(fd, True)
        except OSError: pass
done = bool(found)
"""

# Tests that go on, or end early, where the solution raises one of Python's signs of an end.
SWALLOWING = {
    "maps": "assert all(y == 2 for y in map(f, [1, 1]))",
    "has a default": "assert next(map(f, [1]), 2) == 2",
    "takes turns until one ends": "assert list(iter(lambda: f(1), 2)) == []",
    "closes a generator": ("def g():\n  try: yield\n  finally: f(1)\nx = g()\nnext(x)\nx.close()"),
    "catches everything": "try: f(1)\nexcept BaseException: pass",
}
EXPECTS = "for _ in range(2):\n  try: f(1)\n  except {}: pass"
ANY = EXPECTS.format("BaseException")


def forge(content: str) -> str:
    """A solution whose call writes a forged answer."""
    return (
        "import json, os, time\n"
        "def f(x):\n"
        f"  body = json.dumps({content}).encode()\n"
        "  for fd in range(3, 64):\n"
        "    try: os.write(fd, len(body).to_bytes(8, 'big') + body)\n"
        "    except OSError: pass\n"
        "  time.sleep(600)\n"
    )


HOSTILE: dict[str, Hostile] = {
    "sleep": Hostile("import time\ntime.sleep(600)", "timeout"),
    "spin": Hostile("while True: pass", "timeout"),
    "sleep in the call": Hostile("def f(x):\n  import time\n  time.sleep(600)", "timeout"),
    "endless output": Hostile("while True: print('x' * 10_000)", "timeout"),
    "endless errors": Hostile("import sys\nwhile True: sys.stderr.write('é' * 10_000)", "failed"),
    "memory in one step": Hostile("x = bytearray(2**40)", "memory"),
    "memory by and by": Hostile("x = []\nwhile True: x.append(bytearray(2**20))", "memory"),
    "memory in the call": Hostile("def f(x): return [0] * 2**40", "memory"),
    "memory of many": Hostile(
        "import os, time\n"
        "for _ in range(8):\n"
        "  if os.fork() == 0:\n"
        "    x = bytearray(b'x' * (60 * 2**20))\n    time.sleep(600)\n"
        "time.sleep(600)",
        "memory",
        sandboxed=True,
    ),
    "fork bomb": Hostile(
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", "timeout memory", True
    ),
    "many children": Hostile(
        "import os, time\nfor _ in range(40):\n  if os.fork() == 0: time.sleep(600)\n" + WRONG,
        "failed memory",  # memory that the children share with their parent counts for each
    ),
    "threads": Hostile(
        "import threading, time\nwhile True:\n"
        "  try: threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "  except RuntimeError: break\n" + WRONG,
        "failed timeout memory",
    ),
    "daemon": Hostile(
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n"
        "  os._exit(0)\n" + WRONG,
        "failed",
    ),
    "daemon whose parent leaves": Hostile(
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n"
        "  os._exit(0)\nos._exit(0)",
        "failed",
    ),
    "daemon that answers": Hostile(
        "import os\nif os.fork(): os._exit(0)\nos.setsid()\n" + WRONG, "failed"
    ),
    "huge file": Hostile("open('big', 'wb').write(bytes(2**26))\n" + WRONG, "failed"),
    "many files": Hostile(
        tries("for n in range(40):\n  open(f'/tmp/{n}', 'wb').write(bytes(2**20))\ndone = True"),
        "failed",
        sandboxed=True,
    ),
    "a million files": Hostile(
        "for n in range(1_000_000): open(f'/tmp/{n}', 'w').close()\n" + WRONG,
        "failed memory",
        sandboxed=True,
    ),
    "writing outside": Hostile(
        tries(
            "import os\n"
            "for place in ('', '/usr', '/etc', '/dev', '/proc/sys/kernel', '/packages', '/home',\n"
            "              os.path.dirname(os.__file__), '/root', '/var/tmp', '/dev/shm'):\n"
            "  try:\n    open(place + '/prepare-hostile', 'w').close()\n    done = True\n"
            "  except OSError: pass"
        ),
        "failed",
        sandboxed=True,
    ),
    "remounting": Hostile(
        tries(
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "done = libc.mount(None, b'/', None, 32 | 4096, None) == 0\n"
            "done = done or libc.umount2(b'/usr', 2) == 0"
        ),
        "failed",
        sandboxed=True,
    ),
    "becoming root": Hostile(
        tries(
            "import os\nfor call in (os.setuid, os.setgid):\n"
            "  try:\n    call(0)\n    done = True\n  except OSError: pass"
        ),
        "failed",
        sandboxed=True,
    ),
    "leaving before the tests": Hostile("import os\nos._exit(0)", "failed"),
    "leaving in the call": Hostile("def f(x):\n  import os\n  os._exit(0)", "failed"),
    "sys.exit": Hostile("import sys\nsys.exit(0)", "failed"),
    "sys.exit in the call": Hostile("def f(x):\n  import sys\n  sys.exit(0)", "failed"),
    "printing what is expected": Hostile(
        "print('passed')\nprint('{\"outcome\": \"passed\"}')\n" + WRONG, "failed"
    ),
    "forging messages": Hostile(FORGE + WRONG, "failed"),
    "forging messages and leaving": Hostile(FORGE + "os._exit(0)", "failed"),
    "forging messages in the call": Hostile(
        "def f(x):\n" + "".join(f"  {line}\n" for line in FORGE.splitlines()), "failed"
    ),
    "closing every descriptor": Hostile("import os\nos.closerange(0, 64)\n" + WRONG, "failed"),
    "searching for the tests": Hostile(tries(SEARCH), "failed"),
    "equal to everything": Hostile(
        "class Yes:\n  __eq__ = __ne__ = __lt__ = __gt__ = lambda self, other: True\n"
        "  __bool__ = __index__ = lambda self: True\ndef f(x): return Yes()",
        "failed",
    ),
    "a number equal to everything": Hostile(
        "class Yes(int):\n  __eq__ = lambda self, other: True\n  __hash__ = int.__hash__\n"
        "def f(x): return Yes(0)",
        "failed",
    ),
    "patching builtins": Hostile(
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.exec = builtins.compile"
        " = builtins.AssertionError = None\n" + WRONG,
        "failed",
    ),
    "patching the solver": Hostile(
        "import os, sys\nfor module in list(sys.modules.values()):\n"
        "  for name in ('write_message', '_send', 'encode', 'judge', 'check'):\n"
        "    if hasattr(module, name): setattr(module, name, lambda *a: {'value': True})\n" + WRONG,
        "failed timeout",
    ),
    "naming itself check": Hostile("def check(candidate): pass\n" + WRONG, "failed"),
    "equal to everything, one by one": Hostile(
        "class Yes:\n  __eq__ = lambda self, other: True\n  __iter__ = lambda self: self\n"
        "  __next__ = lambda self: Yes()\ndef f(x): return Yes()",
        "failed",
        test="assert next(f(1)) == 2",
    ),
    "an iterator that leaves": Hostile(
        "import os\nclass Leaves:\n  __iter__ = lambda self: self\n"
        "  __next__ = lambda self: os._exit(0)\ndef f(x): return Leaves()",
        "failed",
        test="assert all(y == 2 for y in f(1))",
    ),
    "an iterator without an end": Hostile(
        "import itertools\ndef f(x): return itertools.repeat(2)",
        "memory timeout",
        test="assert list(f(1)) == [2]",
    ),
    "an iterator that says more is to come, and has nothing": Hostile(
        forge("{'iterator': 0}").replace("  time.sleep(600)\n", "")
        + "  body = json.dumps({'items': [], 'ended': False}).encode()\n"
        "  while True: os.write(4, len(body).to_bytes(8, 'big') + body)\n",
        "failed timeout",
        test="assert list(f(1)) == []",
    ),
    "at exit": Hostile(
        "import atexit, os\natexit.register(lambda: os._exit(0))\n" + WRONG, "failed"
    ),
    "a hook for exceptions": Hostile(
        "import sys\nsys.excepthook = lambda *a: None\nassert False", "failed"
    ),
    "killing its parent": Hostile(
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + WRONG, "failed", True
    ),
    "killing everyone": Hostile(
        "import os, signal\nos.kill(-1, signal.SIGKILL)\n" + WRONG, "failed", sandboxed=True
    ),
    "stopping its parent": Hostile(
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nos._exit(0)", "failed", True
    ),
    "killing its group": Hostile("import os\nos.killpg(0, 9)", "crashed"),
    "tracing its parent": Hostile(
        tries("import ctypes, os\ndone = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0"),
        "failed",
        sandboxed=True,
    ),
    "its parent's memory": Hostile(
        tries("import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').close()\ndone = True"),
        "failed",
        sandboxed=True,
    ),
    "the environments of others": Hostile(
        tries(
            "import glob\n"
            "for path in glob.glob('/proc/[0-9]*/environ'):\n"
            "  try: done = done or 'SOMEBODYS_TOKEN' in open(path).read()\n"
            "  except OSError: pass"
        ),
        "failed",
        sandboxed=True,
    ),
    "its own environment": Hostile(
        tries(
            "import os\ndone = 'SOMEBODYS_TOKEN' in str(os.environ) or bool(set(os.environ) - {\n"
            "  'PATH', 'LANG', 'PYTHONHASHSEED', 'OPENBLAS_NUM_THREADS', 'PWD', 'LC_CTYPE'})"
        ),
        "failed",
    ),
    "the network": Hostile(
        tries(
            "import socket\nfor kind in (socket.AF_INET, socket.AF_INET6):\n"
            "  try:\n    socket.socket(kind, socket.SOCK_DGRAM).connect(\n"
            "      ('192.0.2.1' if kind == socket.AF_INET else '2001:db8::1', 9))\n"
            "    done = True\n  except OSError: pass"
        ),
        "failed",
        sandboxed=True,
    ),
    "installed packages": Hostile(
        tries(
            "import glob, importlib.util, os, sys\n"
            "shown = set(os.listdir('/packages')) if os.path.exists('/packages') else set()\n"
            "done = bool(importlib.util.find_spec('pytest') or shown - {'numpy', 'numpy.libs'})\n"
            "for prefix in (sys.prefix, '/usr', '/usr/local'):\n"
            "  for kind in ('site-packages', 'dist-packages'):\n"
            "    done = done or bool(glob.glob(f'{prefix}/lib/python3*/{kind}/*'))"
        ),
        "failed",
        sandboxed=True,
    ),
    **{
        f"{name} where the test {way}": Hostile(
            f"def f(x): raise {name}({text})", "failed", test=test
        )
        for name, text in {
            "StopIteration": "",
            "StopAsyncIteration": "",
            "GeneratorExit": "",
            "SystemExit": "0",
            "KeyboardInterrupt": "",
            "BaseException": "'x'",
            "type('Mine', (StopIteration,), {})": "",
            "type('Mine', (GeneratorExit, KeyError), {})": "",
        }.items()
        for way, test in SWALLOWING.items()
    },
    "no memory where the test expects it": Hostile(
        "def f(x): return [0] * 2**40", "memory", test=SWALLOWING["catches everything"]
    ),
    "a class that calls itself KeyError": Hostile(
        "class KeyError(Exception): pass\ndef f(x): raise KeyError(x)",
        "failed",
        test=EXPECTS.format("KeyError"),
    ),
    "an exception that cannot be described": Hostile(
        "class Meta(type):\n  __mro__ = property(lambda cls: 1 / 0)\n"
        "class E(Exception, metaclass=Meta): pass\ndef f(x): raise E",
        "failed",
        test=EXPECTS.format("KeyError"),
    ),
    **{
        f"an init that gets signal {number}": Hostile(
            f"import os, time\ndef f(x):\n  os.kill(os.getppid(), {number})\n  time.sleep(0.3)\n"
            "  os._exit(0)",
            "failed",
            sandboxed=number != 2,
            test=EXPECTS.format("KeyError"),
        )
        for number in (1, 2, 3, 10, 14, 15, 25, 34)
    },
    **{
        f"an answer that is {name}": Hostile(forge(content), "failed timeout", test=ANY)
        for name, content in {
            "no mapping": "[]",
            "without a value": "{}",
            "an exception without kinds": "{'raised': {}}",
            "an exception of no list": "{'raised': {'kinds': 7, 'text': '', 'trace': ''}}",
            "an exception whose name is a lone surrogate": (
                "{'raised': {'kinds': ['\\ud800'], 'text': '', 'trace': ''}}"
            ),
            "an end without a reason": (
                "{'raised': {'kinds': ['StopIteration'], 'text': '', 'trace': ''}}"
            ),
            "an unknown form": "{'value': {'nonsense': 1}}",
            "unhashable": "{'value': {'set': [[1]]}}",
            "a fraction of zero": "{'value': {'fraction': [1, 0]}}",
            "a text that is no number": "{'value': {'int': 'x'}}",
            "bytes that are none": "{'value': {'bytes': 'x'}}",
            "a name that is code": "{'value': {'namedtuple': ['a', ['b=f(1)'], 1]}}",
            "a type that is a function": "{'value': {'type': ['eval']}}",
            "an array of addresses": "{'value': {'ndarray': ['|O', [1], '0' * 16]}}",
            "an iterator without items": "{'iterator': 0}",
        }.items()
    },
}


RIGHT = "def f(x): return x + 1\n"


def contained(attempt: str) -> str:
    """A dataset's test that passes where its attempt, which sets `done`, is contained."""
    body = "".join(f"    {line}\n" for line in attempt.splitlines())
    return f"{TEST}done = False\ntry:\n{body}except OSError: pass\nassert not done\n"


# Rows of a dataset: what their tests would do to the machine that runs them.
HOSTILE_TESTS = {
    "reads the users": "open('/etc/passwd').read()\ndone = True",
    "lists the home": "import os\ndone = bool(os.listdir(os.path.expanduser('~root')))",
    "lists all homes": "import os\ndone = bool(os.listdir('/home'))",
    "opens a socket": "import socket\nsocket.socket()\ndone = True",
    "opens a socket of the machine": "import socket\nsocket.socket(socket.AF_UNIX)\ndone = True",
    "sees other processes": (
        "import os\ndone = sum(name.isdigit() for name in os.listdir('/proc')) > 4"
    ),
    "is a normal user": "import os\ndone = os.getuid() == 0",
    "leaves a file": "open('/var/tmp/prepare-left', 'w').close()\ndone = True",
    "writes among the libraries": "import os\nos.mkdir(os.__file__ + '.d')\ndone = True",
    "starts a program that stays": (
        "import os, time\n"
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n  os._exit(0)"
    ),
    "makes namespaces": ("import ctypes\ndone = ctypes.CDLL(None).unshare(0x10000000) == 0"),
}

# Rows whose tests do not come to an end, with the outcomes that are right.
ENDLESS_TESTS = {
    "sleeps": ("import time\ntime.sleep(600)", "timeout"),
    "spins": ("while True: pass", "timeout crashed"),
    "takes all memory": ("x = []\nwhile True: x.append(bytearray(2**24))", "memory crashed"),
    "forks": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", "timeout memory"),
    "ends early": ("import os\nos._exit(0)", "crashed"),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", "crashed"),
    "says nonsense": (
        "import os\nfor fd in range(3, 64):\n"
        "  try: os.write(fd, (10).to_bytes(8, 'big') + b'no verdict')\n  except OSError: pass\n"
        "os._exit(0)",
        "crashed failed",
    ),
}
