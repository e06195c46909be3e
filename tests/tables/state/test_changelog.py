"""Checkpoints, progress, and restores from a changelog in any slices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.tables.state.changelog import (
    OFFSET_KEY,
    PROGRESS_KEY,
    WRITE_KEYS_MAX,
    Restoration,
    SourceLog,
    TaskProgress,
    apply_records,
    changelog_offset,
    checkpoint,
    stored_progress,
)
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change, Changes

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
logs = st.builds(
    SourceLog,
    st.just(b"") | st.binary(min_size=16, max_size=16),
    st.integers(-1, 9),
    st.integers(0, 9),
)


@st.composite
def some_progress(draw: st.DrawFn) -> TaskProgress:
    inputs = st.tuples(st.text(max_size=5), st.integers(0, 99))
    offsets = draw(st.dictionaries(inputs, st.integers(0, 1 << 62), max_size=4))
    found = {input_: log for input_ in offsets if (log := draw(logs)) != SourceLog()}
    sections = draw(st.dictionaries(st.text(max_size=5), plain, max_size=3))
    return TaskProgress(offsets=offsets, logs=found, sections=sections)


keys = st.binary(max_size=2).map(b"\x01s".__add__)
checkpoints = st.lists(
    st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=5), max_size=8
)


@given(some_progress())
def test_progress_round_trips(progress: TaskProgress) -> None:
    assert TaskProgress.decode(progress.encode()) == progress


def test_equal_progress_gives_equal_bytes() -> None:
    one = TaskProgress(offsets={("b", 0): 1, ("a", 1): 2, ("a", 0): 3}, sections={"y": 1, "x": {}})
    other = TaskProgress(
        offsets={("a", 0): 3, ("a", 1): 2, ("b", 0): 1}, sections={"x": {}, "y": 1}
    )
    assert one.encode() == other.encode()
    assert one.encode() == (
        b'{"version":2,"offsets":[["a",0,3,"",-1,0],["a",1,2,"",-1,0],["b",0,1,"",-1,0]],'
        b'"sections":{"x":{},"y":1}}'
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not readable"),
        (b"\x80\x04", "not readable"),
        (b'{"version":2,"offsets":[["a",0]],"sections":{}}', r"\$.offsets\[0\]"),
        (b'{"version":2,"offsets":[["a",0,1,"x",0,0]],"sections":{}}', "not readable"),
        (b'{"version":3,"offsets":[],"sections":{}}', "format 3.*a newer version has written it"),
    ],
)
def test_progress_that_cannot_be_trusted_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptData, match=message):
        TaskProgress.decode(data)


def log_of(batches: list[list[Change]]) -> list[Change]:
    """Return the changelog after these commits; its offsets are its indexes."""
    log: list[Change] = []
    for number, changes in enumerate(batches):
        ordered = Changes.of(sorted(dict(changes).items()))
        log += checkpoint(ordered, TaskProgress(offsets={("t", 0): number}))
    return log


def oracle_of(log: list[Change]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes | None] = dict(log)
    return {key: value for key, value in state.items() if value is not None}


def state_of(store: MemoryStore) -> dict[bytes, bytes]:
    return {key: value for key, value in store.range() if key != OFFSET_KEY}


@given(checkpoints, st.data())
def test_restore_gives_the_state_from_any_start_in_any_slices(
    batches: list[list[Change]], data: st.DataObject
) -> None:
    log = log_of(batches)
    store = MemoryStore()
    # A crash leaves the store at an older offset, with some of the later changes.
    reflected = data.draw(st.integers(0, len(log)))
    apply_records(store, log[:reflected], next_offset=reflected)
    store.write(log[reflected : data.draw(st.integers(reflected, len(log)))])
    restoration = Restoration(store, start_offset=0, end_offset=len(log))
    assert (restoration.position, restoration.rebuilt) == (reflected, False)
    while not restoration.done:
        at = restoration.position
        until = data.draw(st.integers(at + 1, len(log)))
        restoration.apply(log[at:until], next_offset=until)
        assert restoration.remaining == len(log) - until
    assert state_of(store) == oracle_of(log)
    expected = TaskProgress(offsets={("t", 0): len(batches) - 1}) if batches else None
    assert restoration.progress() == expected


def test_a_large_commit_is_written_in_slices_with_the_offset_last() -> None:
    writes: list[list[Change]] = []

    class Watched(MemoryStore):
        def write(self, changes: Any) -> None:
            writes.append(list(changes))
            super().write(writes[-1])

    store = Watched()
    records = Changes.of([(number.to_bytes(4), b"v") for number in range(2_500)])
    apply_records(store, checkpoint(records, TaskProgress()), next_offset=2_501)
    assert [len(write) for write in writes] == [WRITE_KEYS_MAX, WRITE_KEYS_MAX, 502]
    assert [key for key, _ in writes[-1][-2:]] == [PROGRESS_KEY, OFFSET_KEY]
    assert changelog_offset(store) == 2_501


def test_a_commit_without_changes_still_moves_the_offset() -> None:
    store = MemoryStore()
    apply_records(store, [], next_offset=7)
    assert changelog_offset(store) == 7
    assert stored_progress(store) is None


def test_a_new_store_starts_where_the_log_starts() -> None:
    restoration = Restoration(MemoryStore(), start_offset=5, end_offset=9)
    assert (restoration.position, restoration.rebuilt, restoration.done) == (5, False, False)
    restoration.apply([(b"\x01sa", b"1")], next_offset=9)
    assert restoration.done
    assert Restoration(MemoryStore(), start_offset=0, end_offset=0).done


@pytest.mark.parametrize(("start", "end"), [(8, 20), (0, 6)])
def test_a_store_outside_the_log_s_offsets_is_rebuilt(start: int, end: int) -> None:
    store = MemoryStore()
    stale = Changes([b"\x01sold"], [b"1"])
    apply_records(store, checkpoint(stale, TaskProgress(offsets={("t", 0): 3})), next_offset=7)
    restoration = Restoration(store, start_offset=start, end_offset=end)
    assert (restoration.position, restoration.rebuilt) == (start, True)
    assert restoration.progress() is None
    restoration.apply([(b"\x01snew", b"2")], next_offset=end)
    assert state_of(store) == {b"\x01snew": b"2"}


def test_a_restore_refuses_decreasing_offsets() -> None:
    restoration = Restoration(MemoryStore(), start_offset=0, end_offset=9)
    restoration.apply([], next_offset=5)
    with pytest.raises(CorruptData, match="from offset 5 to 3"):
        restoration.apply([], next_offset=3)


def test_a_damaged_offset_is_reported_with_its_remedy() -> None:
    store = MemoryStore()
    store.put(OFFSET_KEY, b"x")
    with pytest.raises(CorruptData, match="delete the state directory"):
        changelog_offset(store)
