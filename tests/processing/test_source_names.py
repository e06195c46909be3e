"""Sources that come by several feeds have distinct names, and each keeps its own time."""

from __future__ import annotations

from streamlog.processing.column_batch import TimeSource
from streamlog.processing.node_time import source_names
from streamlog.processing.set_timestamp import SetTimestampSource
from streamlog.windows.emit import Source


class RepartitionSource(TimeSource):
    """A time source that reads a repartition topic."""

    def __init__(self, name: str, *sources: Source) -> None:
        super().__init__((name, 0))
        self._sources = sources

    def source_times(self) -> list[tuple[Source, int, int]]:
        return [(source, 5, 0) for source in self._sources]


FIRST = RepartitionSource("first", ("words", 0), ("words", 1))
LAST = RepartitionSource("last", ("words", 1), ("others", 0))


def test_a_source_keeps_its_plain_name_in_its_first_feed() -> None:
    assert source_names([FIRST, LAST]) == {
        FIRST: {("words", 0): ("words", 0), ("words", 1): ("words", 1)},
        LAST: {("words", 1): ("words by last", 1), ("others", 0): ("others", 0)},
    }


def test_new_timestamps_advance_only_the_feed_that_they_come_by() -> None:
    feed = SetTimestampSource("retimed", 0, [FIRST, LAST])
    feed.stream.advance(feed.source_behind(FIRST, ("words", 1)), 50)
    times = {source: time_ms for source, time_ms, _ in feed.source_times()}
    assert times == {
        ("retimed/words", 0): -1,
        ("retimed/words", 1): 50,
        ("retimed/words by last", 1): -1,
        ("retimed/others", 0): -1,
    }
