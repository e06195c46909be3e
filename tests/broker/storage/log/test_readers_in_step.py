"""Readers that ask for the same offsets one after the other, as followers do, between cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.records.batch import split_batches
from tests.broker.storage.batches import batch, new_log

appends = st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([b"", b"a", b"b" * 40]))
"""Batches to cut off first, then the records of another batch, and their value."""
reads = st.integers(1, 4)
"""How far before the end to read, twice."""


@given(st.lists(st.one_of(appends, reads), min_size=12, max_size=40))
def test_each_reader_gets_what_the_log_holds_now(steps: list[tuple[int, int, bytes] | int]) -> None:
    log = new_log(MemoryFiles())
    values: list[bytes] = []
    """The value of the record at each offset."""
    bases: list[int] = []
    """The first offset of its batch."""
    for step in steps:
        if isinstance(step, tuple):
            cut, count, value = step
            firsts = sorted(set(bases))
            if 0 < cut <= len(firsts):
                end = firsts[-cut]
                log.truncation.begin(end)
                log.truncation.cut(end)
                del values[end:], bases[end:]
            bases += [len(values)] * count
            values += [value] * count
            log.append(batch(count, value=value), now_ms=0)
        elif step <= len(values):
            offset = len(values) - step
            for _ in range(2):
                found = list(split_batches(log.read(offset, max_bytes=1, min_one=True)))
                assert [each.base_offset for each in found] == [bases[offset]]
                assert {record.value for record in found[0].records()} == {values[offset]}
