"""Effects of a command on its own process; each in a separate process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

TELL = """
import gc
from streamlog.cli.session import collect_rarely
{before}
collect_rarely()
print(gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 1_000)
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", "(100000, 20, 50) True True"),
        ("gc.set_threshold(100, 5, 5)", "(100, 5, 5) True True"),
        ("gc.disable()", "(100000, 20, 50) False True"),
    ],
)
def test_a_worker_collects_garbage_less_often_by_default(before: str, expected: str) -> None:
    code = TELL.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


COUNT_FAULTS = """
import resource
from streamlog.cli.session import keep_freed_memory
keep_freed_memory()
kept = bytearray(2_000_000), bytearray(3_000_000)
del kept
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    kept = bytearray(2_000_000), bytearray(3_000_000)
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_worker_keeps_freed_memory_by_default() -> None:
    pages = 50 * 5_000_000 // 4096
    assert _faults() < pages // 10
    assert _faults(MALLOC_TRIM_THRESHOLD_="100000", MALLOC_MMAP_THRESHOLD_="100000") > pages // 2


GIVE_BACK = """
from pathlib import Path
from streamlog.cli.session import give_back_freed_memory

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

kept = [bytearray(20_000) for _ in range(4_000)]
del kept[:-1:2], kept[:-1:3], kept[:-1:4]
while len(kept) > 200:
    del kept[:-1:2]
before = resident_kib()
give_back_freed_memory()
print(before - resident_kib())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_scattered_free_memory_is_returned_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIVE_BACK], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 20_000


FREEZE = """
import gc
import weakref
from streamlog.cli.session import FrozenPartitions

class Part:
    def __init__(self):
        self.itself = self

parts, dropped = [], 0
frozen = FrozenPartitions(lambda: (len(parts), dropped))
frozen.freeze()
gc.callbacks.append(frozen.on_collection)
walked = []
gc.callbacks.append(lambda phase, _: phase == "start" and walked.append(len(gc.get_objects())))

def is_exempt(more):
    parts.extend(Part() for _ in range(more))
    gc.collect(0)
    return walked[-1] < more

def is_freed(some, generation):
    global dropped
    gone = weakref.ref(parts[0])
    del parts[:some]
    dropped += some
    gc.collect(generation)
    return gone() is None

{does}
"""


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        # New ones are exempt once they are a quarter of the others.
        ("print(is_exempt(8_000), is_exempt(1_000), is_exempt(1_000))", "True False True"),
        # Deleted ones are freed by the full collection that finds that a quarter of them is gone.
        ("print(is_exempt(8_000), is_freed(1_000, 2), is_freed(1_000, 2))", "True False True"),
        # If a small collection finds it, nothing is exempt until the next full one.
        ("print(is_exempt(8_000), is_freed(8_000, 0), is_exempt(8_000))", "True False False"),
        (
            "print(is_exempt(8_000), is_freed(4_000, 0), is_freed(1, 2), is_exempt(8_000))",
            "True False True True",
        ),
    ],
)
def test_the_collector_walks_only_new_and_deleted_partitions(does: str, expected: str) -> None:
    code = FREEZE.format(does=does)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
