"""Sources that come by several feeds are told apart, and each keeps its own time."""

from __future__ import annotations

from streamlog.processing.column_batch import TimeSource
from streamlog.processing.node_time import source_names
from streamlog.processing.set_timestamp import SetTimestampSource
from streamlog.windows.emit import Source


class Heard(TimeSource):
    """What is read of a repartition topic."""

    def __init__(self, name: str, *sources: Source) -> None:
        super().__init__((name, 0))
        self._sources = sources

    def source_times(self) -> list[tuple[Source, int, int]]:
        return [(source, 5, 0) for source in self._sources]


FIRST = Heard("first", ("words", 0), ("words", 1))
LAST = Heard("last", ("words", 1), ("others", 0))


def test_by_the_first_feed_a_source_keeps_its_name() -> None:
    assert source_names([FIRST, LAST]) == {
        FIRST: {("words", 0): ("words", 0), ("words", 1): ("words", 1)},
        LAST: {("words", 1): ("words by last", 1), ("others", 0): ("others", 0)},
    }


def test_new_timestamps_of_one_way_say_nothing_of_the_other() -> None:
    feed = SetTimestampSource("retimed", 0, [FIRST, LAST])
    feed.stream.advance(feed.source_behind(FIRST, ("words", 1)), 50)
    times = {source: time_ms for source, time_ms, _ in feed.source_times()}
    assert times == {
        ("retimed/words", 0): -1,
        ("retimed/words", 1): 50,
        ("retimed/words by last", 1): -1,
        ("retimed/others", 0): -1,
    }
