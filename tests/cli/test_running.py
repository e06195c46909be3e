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
