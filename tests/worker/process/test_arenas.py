"""Arenas in huge pages, each in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.worker.process import arenas

IS_COMPILED = not str(arenas.__file__).endswith(".py")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CODE = """
from pathlib import Path
from streamlog.worker.process.arenas import use_huge_pages

def kib(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

assert use_huge_pages() and use_huge_pages()
before = kib("Rss")
for _ in range(3):
    objects = [number.to_bytes(20, "big") for number in range(3_000_000)]
    assert all(each == number.to_bytes(20, "big") for number, each in enumerate(objects))
    huge, much = kib("AnonHugePages"), kib("Rss") - before
    del objects[::2]
    more = [str(number) for number in range(1_000_000)]
    assert sum(map(int.from_bytes, objects)) == sum(range(1, 3_000_000, 2))
    del objects, more
print(huge, much, kib("Rss") - before)
"""

pytestmark = pytest.mark.skipif(
    not IS_COMPILED or sys.platform != "linux", reason="not compiled, or not Linux"
)


def test_arenas_use_huge_pages_and_return_their_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    huge_kib, much_kib, left_kib = map(int, done.stdout.split())
    if SETTING.exists() and "[never]" not in SETTING.read_text():
        assert huge_kib > much_kib / 2
    assert much_kib > 150_000
    assert left_kib < much_kib / 3
