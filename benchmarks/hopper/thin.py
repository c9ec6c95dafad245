#!/usr/bin/env python3
"""Cuts a CUDA library down to the machine code of one GPU.

usage: thin.py FILE.so [--arch 90] [--only REGEX] [--ptx BYTES]

Each container of the section .nv_fatbin is rewritten in place with only its ELF entries for the architecture, as if
the library had been compiled for that one alone; what is left over of it becomes zeros, so that it compresses away.
Nothing else of the file changes. A container without code for it is given its first entry with the architecture
changed to one that no GPU here has and an empty body: kernels of it fail with "no kernel image", as they did before.

--only   keeps code only where a kernel's name in it matches (for libraries whose entries are not compressed)
--ptx    keeps PTX up to so many bytes where a container has no machine code for the architecture, as the kernels that repack 4-bit
         weights for Marlin (the driver compiles it on first use)
"""

import argparse
import re
import struct
from pathlib import Path

ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")


def section(data: bytes, wanted: str) -> tuple[int, int]:
    (at,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    for head in heads:
        start = heads[names][4] + head[0]
        if data[start : data.index(b"\0", start)].decode() == wanted:
            return head[4], head[5]
    raise SystemExit("no section " + wanted)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", type=Path)
    p.add_argument("--arch", type=int, default=90)
    p.add_argument("--only", type=lambda text: re.compile(text.encode()))
    p.add_argument("--ptx", type=int, default=0)
    a = p.parse_args()
    data = bytearray(a.file.read_bytes())
    at, size = section(bytes(data), ".nv_fatbin")
    where, end = at, at + size
    kept = dropped = bytes_kept = 0
    while where < end:
        if data[where : where + 4] != b"\x50\xed\x55\xba":
            where += 8
            continue
        (head_size,) = struct.unpack_from("<H", data, where + 6)
        (body,) = struct.unpack_from("<Q", data, where + 8)
        stop = where + head_size + body
        entries, q = [], where + head_size
        while q < stop:
            fields = ENTRY.unpack_from(data, q)
            entries.append((fields[0], fields[8], bytes(data[q : q + fields[2] + fields[3]]), fields[2]))
            q += fields[2] + fields[3]
        mine = [raw for kind, arch, raw, _ in entries if kind == 2 and arch == a.arch and (not a.only or a.only.search(raw))]
        if not mine and a.ptx and not any(kind == 2 and arch == a.arch for kind, arch, _, _ in entries):
            mine = [raw for kind, arch, raw, _ in entries if kind == 1 and arch <= a.arch and len(raw) <= a.ptx]
        kept, dropped = kept + bool(mine), dropped + (not mine)
        new = b"".join(mine)
        bytes_kept += len(new)
        rest = body - len(new)
        if new:  # the container ends earlier, as if made for this GPU alone; zeros lie between it and the next
            struct.pack_into("<Q", data, where + 8, len(new))
            new += bytes(rest)
        else:  # PTX for a GPU that this one is not: never chosen
            new = ENTRY.pack(1, 0x101, ENTRY.size, rest - ENTRY.size, 0, 0, 0, 8, 120, 0, 0, 0x11, 0, 0) + bytes(rest - ENTRY.size)
        data[where + head_size : stop] = new
        where = stop
    a.file.write_bytes(data)
    print(f"{a.file.name}: {kept} containers kept, {dropped} emptied, {bytes_kept / 2**20:.1f} MiB of code for sm_{a.arch} left")


if __name__ == "__main__":
    main()
