"""StreamCount against a model of a stream that keeps every id: what was missed, to the entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.redis.stream_count import StreamCount, StreamState

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("trim"), st.integers(0, 6)),
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("look"), st.integers(1, 4)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


class Stream:
    def __init__(self) -> None:
        self.added = 0
        self.there: list[int] = []

    def change(self, kind: str, number: int) -> None:
        if kind == "add":
            self.there += range(self.added, self.added + number)
            self.added += number
        elif kind == "trim":
            del self.there[: max(len(self.there) - number, 0)]
        elif self.there:
            del self.there[number % len(self.there)]

    @property
    def state(self) -> StreamState:
        return StreamState(self.added, len(self.there))


@given(STEPS)
def test_every_entry_is_read_or_missed(steps: list[tuple[str, int]]) -> None:
    stream, count, last, read, missed = Stream(), StreamCount(0), -1, 0, 0
    for kind, number in [*steps, ("look", 1_000)]:
        if kind == "restart":
            count = StreamCount(count.seen)
        elif kind != "look":
            stream.change(kind, number)
        else:
            unread = [entry for entry in stream.there if entry > last][:number]
            missed += count.missed(stream.state, len(unread), is_all=len(unread) < number)
            # Never more than there were, however far the reader is behind.
            assert missed <= stream.added - read - len(unread)
            count.read(len(unread))
            read += len(unread)
            last = max([last, *unread])
    assert missed == stream.added - read
    assert count.seen == stream.added


def test_what_was_removed_before_the_first_look_is_not_missed() -> None:
    count = StreamCount(None)
    assert count.missed(StreamState(added=10, length=4), 4, is_all=True) == 0
    count.read(4)
    assert count.seen == 10


def test_a_stream_that_was_made_anew_is_counted_from_its_beginning() -> None:
    count = StreamCount(100)
    assert count.missed(StreamState(added=3, length=3), 2, is_all=False) == 0
    count.read(2)
    assert count.missed(StreamState(added=3, length=3), 1, is_all=True) == 0
    count.read(1)
    assert count.seen == 3
    # The server went back to the 90 first entries, all of which were read.
    count = StreamCount(100)
    assert count.missed(StreamState(added=90, length=90), 0, is_all=True) == 0
    assert count.seen == 90
