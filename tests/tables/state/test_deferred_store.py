"""DeferredStore: deferred changes are visible, and are written in whole commits."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.state.changelog import (
    OFFSET_KEY,
    PROGRESS_KEY,
    WRITE_KEYS_MAX,
    apply_records,
    changelog_offset,
)
from streamlog.tables.state.store_transaction import (
    REPLAY_RECORDS_MAX,
    DeferredStore,
    WaitingBudget,
)
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change


class RecordingStore(MemoryStore):
    """A store that records its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[Change]] = []
        self.persisted: list[int] = []
        """The number of writes at each `persist`."""

    def persist(self) -> None:
        self.persisted.append(len(self.writes))

    def write(self, changes: Iterable[Change]) -> None:
        self.writes.append(list(changes))
        super().write(self.writes[-1])


def rows(numbers: Iterable[int], value: bytes = b"v") -> list[Change]:
    return [(b"\x01s%08d" % number, value) for number in numbers]


def test_a_key_that_changes_in_every_commit_is_written_once() -> None:
    inner = RecordingStore()
    store = DeferredStore(inner)
    for commit in range(5):
        apply_records(store, rows([1, 2], b"%d" % commit), next_offset=commit)
    assert inner.writes == []
    assert changelog_offset(store) == 4
    store.flush()
    assert [key for write in inner.writes for key, _ in write] == [
        *(key for key, _ in rows([1, 2])),
        OFFSET_KEY,
    ]
    assert store.get(rows([1])[0][0]) == inner.get(rows([1])[0][0]) == b"4"


def test_slices_are_small_ordered_and_end_with_progress_and_offset() -> None:
    inner = RecordingStore()
    store = DeferredStore(inner)
    changes = rows(range(2 * WRITE_KEYS_MAX + 500))
    apply_records(store, [*reversed(changes), (PROGRESS_KEY, b"p")], next_offset=7)
    store.flush()
    assert [len(write) for write in inner.writes] == [WRITE_KEYS_MAX, WRITE_KEYS_MAX, 500, 2]
    assert [key for write in inner.writes[:-1] for key, _ in write] == [key for key, _ in changes]
    assert [key for key, _ in inner.writes[-1]] == [PROGRESS_KEY, OFFSET_KEY]


def test_deferred_changes_of_all_stores_are_bounded() -> None:
    budget = WaitingBudget(20_000)
    inner = [RecordingStore(), RecordingStore()]
    first, second = (DeferredStore(store, budget) for store in inner)
    apply_records(first, rows(range(50)), next_offset=1)
    assert not inner[0].writes
    apply_records(second, rows(range(100)), next_offset=1)
    assert inner[1].writes
    assert budget.used_bytes < 20_000
    first.close()
    second.close()
    assert budget.used_bytes == 0


def test_replay_after_a_crash_is_bounded() -> None:
    inner = RecordingStore()
    store = DeferredStore(inner)
    commit = rows(range(10_000))
    for offset in range(REPLAY_RECORDS_MAX // len(commit)):
        assert not inner.writes
        apply_records(store, commit, next_offset=offset)
    assert changelog_offset(inner) == REPLAY_RECORDS_MAX // len(commit) - 1
    assert inner.persisted == [len(inner.writes)]


def test_unpersisted_writes_count_towards_the_replay_bound() -> None:
    """Few keys change in every commit, so the inner store's memory never fills up."""
    inner = RecordingStore()
    store = DeferredStore(inner)
    commit = rows(range(10_000))
    for offset in range(REPLAY_RECORDS_MAX // len(commit) - 1):
        apply_records(store, commit, next_offset=offset)
        store.flush()
    assert inner.persisted == []
    apply_records(store, commit, next_offset=10_000)
    assert inner.persisted == [len(inner.writes)]
    assert changelog_offset(inner) == 10_000
    apply_records(store, commit, next_offset=10_001)
    assert len(inner.persisted) == 1


def test_rows_that_are_deleted_while_deferred_are_never_written() -> None:
    inner = RecordingStore()
    budget = WaitingBudget(100_000)
    store = DeferredStore(inner, budget)
    for window in range(50):
        gone = [(key, None) for key, _ in rows(range(200 * window - 200, 200 * window))]
        fresh = rows(range(200 * window, 200 * window + 200))
        apply_records(store, [*(gone if window else []), *fresh], next_offset=window)
        assert budget.used_bytes < 2 * budget.bound_bytes
    assert inner.writes == []
    assert dict(store.range(b"\x01")) == dict(fresh)
    store.flush()
    assert dict(inner.range(b"\x01")) == dict(fresh)
    assert all(value is not None for write in inner.writes for _, value in write)


def test_a_deletion_reaches_only_keys_that_the_inner_store_has() -> None:
    inner = RecordingStore()
    store = DeferredStore(inner)
    apply_records(store, rows([2, 3]), next_offset=1)
    store.flush()
    gone = [(key, None) for key, _ in rows([1, 2, 3, 4, 5])]
    apply_records(store, [*rows([4]), *gone], next_offset=2)
    store.flush()
    assert dict(inner.range(b"\x01")) == {}
    assert [key for key, value in inner.writes[-2] if value is None] == [
        key for key, _ in rows([1, 2, 3])
    ]


def test_a_deletion_reaches_keys_from_before_the_deferred_store() -> None:
    inner = MemoryStore()
    apply_records(inner, rows([1, 7]), next_offset=1)
    store = DeferredStore(inner)
    apply_records(store, [(rows([7])[0][0], None), *rows([3])], next_offset=2)
    store.flush()
    apply_records(store, [(key, None) for key, _ in rows([3, 5])], next_offset=3)
    store.flush()
    assert dict(inner.range(b"\x01")) == dict(rows([1]))


commits = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=3)), max_size=6),
    max_size=8,
)


def changes_of(commit: list[tuple[int, bytes | None]]) -> list[Change]:
    return [(rows([key])[0][0], value) for key, value in commit]


@given(commits, st.integers(0, 2_000), st.integers(0, 8), st.integers(0, 8))
def test_the_inner_store_equals_the_changelog_up_to_its_offset(
    commits: list[list[tuple[int, bytes | None]]], bound_bytes: int, flushed: int, crashed: int
) -> None:
    inner = MemoryStore()
    store = DeferredStore(inner, WaitingBudget(bound_bytes))
    states: list[dict[bytes, bytes]] = [{}]
    for number, commit in enumerate(commits, start=1):
        changes = changes_of(commit)
        apply_records(store, changes, next_offset=number)
        merged: dict[bytes, bytes | None] = {**states[-1], **dict(changes)}
        states.append({key: value for key, value in merged.items() if value is not None})
        if number == flushed:
            store.flush()
        if number == crashed:
            store = DeferredStore(inner, WaitingBudget(bound_bytes))
            for at in range(changelog_offset(inner), number):
                apply_records(store, changes_of(commits[at]), next_offset=at + 1)
        assert dict(store.range(b"\x01")) == states[-1]
        assert dict(inner.range(b"\x01")) == states[changelog_offset(inner)]
    store.close()
