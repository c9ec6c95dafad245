"""System calls that a program may not make: a filter in the kernel (seccomp).

It refuses calls that allocate memory beyond a limit, make namespaces, mounts or sockets, or access
keys and other processes. It also refuses unneeded calls that had kernel holes. A refused call fails
with EPERM, a newer call with ENOSYS, so that libraries use older ones. The filter is for x86-64
only; it refuses the 32-bit and x32 interfaces.
"""

from __future__ import annotations

import struct
from errno import ENOSYS, EPERM

MACHINE = "x86_64"
_ARCHITECTURE = 0xC000_003E
_X32 = 0x4000_0000
_NEWEST = 462  # mseal, of Linux 6.10

_REFUSED = {
    # Memory that no process maps.
    "shmget": 29,
    "shmat": 30,
    "shmctl": 31,
    "semget": 64,
    "semop": 65,
    "semctl": 66,
    "semtimedop": 220,
    "msgget": 68,
    "msgsnd": 69,
    "msgrcv": 70,
    "msgctl": 71,
    "mq_open": 240,
    "mq_unlink": 241,
    "memfd_create": 319,
    "memfd_secret": 447,
    "vmsplice": 278,
    "splice": 275,
    "tee": 276,
    "io_setup": 206,
    "inotify_init": 253,
    "inotify_init1": 294,
    "fanotify_init": 300,
    # Sockets, except pairs with default buffers and without descriptors in transit.
    "socket": 41,
    "setsockopt": 54,
    "sendmsg": 46,
    "sendmmsg": 307,
    # Namespaces and mounts.
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    # Landlock rules use unlimited kernel memory.
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    # Keys, and other processes.
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "process_madvise": 440,
    "pidfd_getfd": 438,
    "kcmp": 312,
    # Large parts of the kernel.
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "seccomp": 317,
    "modify_ldt": 154,
    "personality": 135,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "quotactl": 179,
    "quotactl_fd": 443,
    "acct": 163,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "syslog": 103,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
}
_CLONE, _CLONE3, _MMAP = 56, 435, 9
_NAMESPACES = 0x7E02_0000  # every CLONE_NEW* that clone(2) takes
_SHARED_ANONYMOUS = 0x21  # it stays when it is unmapped page by page
_HUGE_PAGES = 0x4_0000  # resident memory does not count them

_LOAD, _EQUAL, _ABOVE, _FROM, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000

_Step = tuple[int, int, str, str]


def program() -> bytes:
    """Return the filter as classic BPF: an array of `struct sock_filter`."""
    steps: list[_Step | str] = [
        (_LOAD, _ARCHITECTURE_AT, "", ""),
        (_EQUAL, _ARCHITECTURE, "", "refuse"),
        (_LOAD, _NUMBER_AT, "", ""),
        (_FROM, _X32, "refuse", ""),
        (_ABOVE, _NEWEST, "unknown", ""),
        (_EQUAL, _MMAP, "mmap", ""),
        (_EQUAL, _CLONE, "clone", ""),
        (_EQUAL, _CLONE3, "unknown", ""),  # its flags are in memory, which a filter cannot read
        *((_EQUAL, number, "refuse", "") for number in sorted(_REFUSED.values())),
        (_RETURN, _ALLOW, "", ""),
        "clone",
        (_LOAD, _ARGUMENTS_AT, "", ""),
        (_ANY_BIT, _NAMESPACES, "refuse", "allowed"),
        "mmap",
        (_LOAD, _ARGUMENTS_AT + 8 * 3, "", ""),
        (_ANY_BIT, _HUGE_PAGES, "refuse", ""),
        (_AND, _SHARED_ANONYMOUS, "", ""),
        (_EQUAL, _SHARED_ANONYMOUS, "refuse", "allowed"),
        "refuse",
        (_RETURN, _FAIL | EPERM, "", ""),
        "unknown",
        (_RETURN, _FAIL | ENOSYS, "", ""),
        "allowed",
        (_RETURN, _ALLOW, "", ""),
    ]
    return _assemble(steps)


def _assemble(steps: list[_Step | str]) -> bytes:
    places: dict[str, int] = {}
    instructions: list[_Step] = []
    for step in steps:
        if isinstance(step, str):
            places[step] = len(instructions)
        else:
            instructions.append(step)
    return b"".join(
        struct.pack("=HBBI", code, *(_count_ahead(places, name, at) for name in (yes, no)), value)
        for at, (code, value, yes, no) in enumerate(instructions)
    )


def _count_ahead(places: dict[str, int], name: str, at: int) -> int:
    return places[name] - at - 1 if name else 0
