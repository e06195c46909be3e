"""One source, two builds: the headers of a log file, sound or not, are read equally."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import File, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.records.batch import HEADER_BYTES, set_offset_and_epoch
from tests.broker.storage.batches import batch
from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
HEADERS = both("streamlog.broker.storage.log.batch_headers")
INT64_MAX = 2**63 - 1

batches = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200)), max_size=5)
firsts = st.sampled_from([0, 7, 2**40, INT64_MAX])
edits = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2)


def log_file(sizes: list[tuple[int, int]], first: int, noise: list[tuple[int, int]]) -> File:
    """Return a file of batches, each with so many records and bytes in each; then spoil it."""
    content = bytearray()
    offset = first
    for count, value_bytes in sizes:
        data = bytearray(batch(count, value=bytes(value_bytes)))
        set_offset_and_epoch(data, min(offset, INT64_MAX), 0)
        content += data
        offset += count
    for position, byte in noise:
        if content:
            content[position % len(content)] = byte
    file = MemoryFiles().open("log", writable=True)
    write_whole(file, bytes(content), 0)
    return file


@given(batches, firsts, edits, st.integers(0, 900), st.sampled_from([HEADER_BYTES, 300]))
@example([(1, 5), (1, 5)], INT64_MAX, [], 900, 300)
def test_log_files_are_walked_equally_in_both_builds(
    sizes: list[tuple[int, int]],
    first: int,
    noise: list[tuple[int, int]],
    room_bytes: int,
    chunk_bytes: int,
) -> None:
    file = log_file(sizes, first, noise)
    end = file.size()

    def walk(module: ModuleType) -> object:
        return [*module.Headers(file, end=end, chunk_bytes=chunk_bytes).walk(0, first)]

    def last(module: ModuleType) -> object:
        header = module.header_at(file, 0, first, end=end)
        bounds = {"end": min(room_bytes, end), "log_end": end, "chunk_bytes": chunk_bytes}
        return module.last_whole(file, header, **bounds)

    for act in (walk, last):
        same(HEADERS, act)
