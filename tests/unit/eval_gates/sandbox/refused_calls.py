"""Attempts at system calls that a sandboxed program is refused; each sets `done` if it succeeds."""

from __future__ import annotations

_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nnone = ctypes.c_long(0)\n"


def call(number: int, *arguments: object) -> str:
    """The system call, made as a program in C would; any answer but a refusal is a success."""
    texts = [argument if isinstance(argument, str) else repr(argument) for argument in arguments]
    return (
        f"{_LIBC}result = libc.syscall({', '.join([str(number), *texts])})\n"
        "done = result >= 0 or ctypes.get_errno() not in (1, 38)"
    )


# 20 is getpid of the 32-bit way: `mov eax, 20; int 0x80; ret`.
_THIRTY_TWO_BIT = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                 prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
done = ctypes.CFUNCTYPE(ctypes.c_int)(at)() > 0
"""

_IN_FLIGHT = """
import os, socket
one, other = socket.socketpair()
socket.send_fds(one, [b"x"], [os.open(os.devnull, os.O_RDONLY)])
done = True
"""

_LARGE_BUFFER = """
import socket
one, other = socket.socketpair()
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
done = True
"""

REFUSED_CALLS: dict[str, str] = {
    "memfd": "import os\nos.memfd_create('x')\ndone = True",
    "secret memfd": call(447, 0),
    "System V memory": call(29, 0, 4096, 0o1600),
    "System V semaphores": call(64, 0, 32_000, 0o1600),
    "System V messages": call(68, 0, 0o1600),
    "POSIX messages": call(240, b"/x", 0o102, 0o600, "None"),
    "shared memory without a file": "import mmap\nmmap.mmap(-1, 4096)\ndone = True",
    "shared zeroes": (
        "import mmap, os\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)\ndone = True"
    ),
    "huge pages": call(9, "none", 2**21, 3, 0x40022, -1, 0),
    "pages in a pipe": call(278, 1, "None", 0, 0),
    "moving between pipes": call(275, 0, "None", 1, "None", 1, 0),
    "asynchronous files": call(206, 1, "ctypes.byref(none)"),
    "watching files": call(294, 0),
    "descriptors in flight": _IN_FLIGHT,
    "a larger buffer": _LARGE_BUFFER,
    **{
        f"socket of family {family}": f"import socket\nsocket.socket({family}, {kind})\ndone = True"
        for family, kind in {1: 1, 2: 1, 10: 2, 16: 3, 17: 3, 38: 5, 40: 1}.items()
    },
    **{f"unshare {flags:#x}": call(272, flags) for flags in (0x1000_0000, 0x1002_0000, 0x80)},
    **{
        f"clone {flags:#x}": (
            f"{_LIBC}pid = libc.syscall(56, {flags} | 17, 0, 0, 0, 0)\n"
            "if pid == 0: os._exit(0)\ndone = pid > 0 or ctypes.get_errno() != 1"
        )
        for flags in (0x1000_0000, 0x1002_0000, 0x6000_0000)
    },
    "rules without a limit": call(444, "ctypes.create_string_buffer(b'\\0' * 8 + b'\\3')", 16, 0),
    "clone3": call(435, "None", 0),
    "setns": call(308, 0, 0),
    "mount": call(165, b"x", b"/tmp", b"tmpfs", 0, "None"),
    "unmount": call(166, b"/tmp", 2),
    "pivot_root": call(155, b"/tmp", b"/tmp"),
    "chroot": call(161, b"/tmp"),
    "open_tree": call(428, -100, b"/", 1),
    "open_tree_attr": call(467, -100, b"/", 1, "None", 0),
    "fsopen": call(430, b"tmpfs", 0),
    "mount_setattr": call(442, -100, b"/", 0, "None", 0),
    "add_key": call(248, b"user", b"x", b"x", 1, -3),
    "request_key": call(249, b"user", b"x", "None", -3),
    "keyctl": call(250, 0, -3, 0),
    "ptrace": call(101, 0, 0, "None", "None"),
    "another's memory": call(310, "os.getppid()", "None", 0, "None", 0, 0),
    "another's descriptor": call(438, 0, 0, 0),
    "bpf": call(321, 0, "None", 0),
    "perf": call(298, "None", 0, -1, -1, 0),
    "userfaultfd": call(323, 1),
    "io_uring": call(425, 1, "ctypes.create_string_buffer(120)"),
    "another filter": call(317, 2, 0, "None"),
    "segments": call(154, 0, "None", 0),
    "the kernel's log": call(103, 10, "None", 0),
    "the x32 way": call(0x4000_0000 | 39),
    "a call of tomorrow": call(1_000),
    "the 32-bit way": _THIRTY_TWO_BIT,
}
