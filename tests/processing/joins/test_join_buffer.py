"""JoinBuffer against a list of all records, with commits, restarts, and little memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.joins.join_buffer import JoinBuffer
from streamlog.record import Headers
from streamlog.serdes import serde_for
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.windows.emit import FAR_MS
from tests.tables.stores.timed import Step, TaskStore, keys, perform

KEEP_MS = 20
NUMBERS = serde_for(int)
times = st.integers(-30, 120)
operations = st.lists(
    st.tuples(st.just("add"), keys, times)
    | st.tuples(st.just("find"), keys, times, st.integers(0, KEEP_MS))
    | st.tuples(st.just("expire"), st.integers(0, 30))
    | st.tuples(st.just("restart"), st.integers(10, 30))
    | st.just(("commit",)),
    max_size=60,
)


def headers_of(number: int) -> Headers:
    """Every third record has none."""
    return tuple((f"h{each}", b"%d" % number if each else None) for each in range(number % 3))


class CheckedBuffer:
    """A buffer and every record that was added to it."""

    def __init__(self, bytes_max: int) -> None:
        self.task_store = TaskStore(MemoryStore())
        self.bytes_max = bytes_max
        self.buffer = self.made(KEEP_MS)
        self.taken: list[tuple[bytes, int, int]] = []
        self.now_ms = 0

    def made(self, keep_ms: int) -> JoinBuffer:
        store, bytes_max = self.task_store.named(), self.bytes_max
        return JoinBuffer(store, NUMBERS, keep_ms=keep_ms, bytes_max=bytes_max)

    def add(self, key: bytes, timestamp_ms: int) -> None:
        number = len(self.taken)
        if timestamp_ms + 30 >= self.now_ms:
            entry = timestamp_ms, number, number, headers_of(number)
            self.buffer.add(key, entry, NUMBERS.dumps(number))
            self.taken.append((key, timestamp_ms, number))

    def find(self, key: bytes, from_ms: int, span_ms: int) -> None:
        from_ms = max(from_ms, self.now_ms - 10)
        wanted = sorted(
            (at, number, number, headers_of(number))
            for own, at, number in self.taken
            if own == key and from_ms <= at <= from_ms + span_ms
        )
        assert self.buffer.find(key, from_ms, from_ms + span_ms) == wanted

    def expire(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.buffer.expire(self.now_ms)

    def commit(self) -> None:
        self.buffer.flush()
        self.task_store.commit()

    def restart(self, keep_ms: int) -> None:
        """Restart, maybe with another window."""
        self.buffer.flush()
        self.task_store.restart()
        before = self.buffer.bucket_ms
        self.buffer = self.made(keep_ms)
        self.buffer.load(before)


@given(operations, st.sampled_from([0, 1 << 30]))
def test_buffered_records_are_found_by_key_and_time(steps: list[Step], bytes_max: int) -> None:
    checked = CheckedBuffer(bytes_max)
    perform(checked, steps)
    checked.expire(1_000)
    checked.commit()
    assert list(checked.task_store.named().range()) == []
    assert checked.buffer.over_ms == FAR_MS
    checked.task_store.assert_neighbours_kept()
