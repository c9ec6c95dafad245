"""How much of a layer is compared at a time, and by how many threads.

It imports nothing: the estimates of memory need these numbers alone.
"""

ROW_STEP = 128
"""A multiple of all packing: words of zero points have 8 or 4 rows, blocks 128."""
CHUNK_ELEMENTS = 2**19
"""2 MB as float32, so that a few arrays fit in the CPU cache."""
MAX_THREADS = 4
