"""The work of a `SyncThread`: compiled, it is C that does not take the interpreter lock.

`serve` reads from an eventfd the number of a job, which is a descriptor plus 1, syncs the file, and
writes to another eventfd: the number of the error plus 1 in the lowest 16 bits, and the nanoseconds
that the sync took above them. What stands here is for Linux without a compiler; `sync_loop.pxd` has
the C.
"""

from __future__ import annotations

import os
import sys
import time

CODE_BITS = 16
END = 2**32
"""Ends the thread; no descriptor has this number."""


def serve(jobs: int, results: int) -> None:
    """Sync one file after another, until the job `END`."""
    while (job := int.from_bytes(os.read(jobs, 8), sys.byteorder)) < END:
        began_ns, code = time.perf_counter_ns(), 0
        # Once: a second fdatasync may succeed although the first has lost what it had to write.
        try:
            os.fdatasync(job - 1)
        except OSError as error:
            code = error.errno or 0
        took_ns = time.perf_counter_ns() - began_ns
        os.write(results, ((took_ns << CODE_BITS) + code + 1).to_bytes(8, sys.byteorder))
