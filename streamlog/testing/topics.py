"""Where a test puts records in, and where it looks at what came out.

Both are typed as the topic is declared. The driver stands behind the ports `Entrance` and `Exit`,
so that it may know these and not they it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from streamlog.dsl.topic import Topic
from streamlog.durations import When, when_ms
from streamlog.errors import UsageError
from streamlog.record import Record
from streamlog.testing.memory_topic import MemoryTopic

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class Entrance(Protocol):
    """Port: what those need where records are put in."""

    @property
    def now_ms(self) -> int:
        """The driver's time, in milliseconds since the epoch."""

    def topic(self, name: str) -> MemoryTopic:
        """A topic of the app."""

    def check_runs(self) -> None:
        """Refuse to go on after the end, or after a failure."""

    def settle(self) -> None:
        """Let tasks and agents run until nothing is left to do."""


class Exit(Protocol):
    """Port: what those need where one looks at what came out."""

    def topic(self, name: str) -> MemoryTopic:
        """A topic of the app."""

    def popped(self, name: str) -> int:
        """How many records have been popped from a topic."""

    def pop(self, name: str) -> None:
        """One more."""


class TestTopicIn(Generic[K, V]):
    """Where a test puts records in."""

    __test__ = False

    def __init__(self, driver: Entrance, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        at: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> None:
        """Write one record and let everything happen that follows from it.

        Args:
            value: None deletes the key from tables.
            key: decides the partition; without one they take turns.
            at: the record's timestamp; the driver's time, if it is not given.
            headers: names to bytes.
            partition: instead of the key's.

        Raises:
            SerdeError: key or value are not of the topic's types.
            ProcessingError: something failed on it.
        """
        raw_key, raw_value = self._topic.encoded(key, value)
        driver = self._driver
        driver.check_runs()
        driver.topic(self._topic.name).append(
            raw_value,
            key=raw_key,
            timestamp_ms=driver.now_ms if at is None else when_ms(at),
            headers=tuple((headers or {}).items()),
            partition=partition,
        )
        driver.settle()


class TestTopicOut(Generic[K, V]):
    """Where a test looks at what came out, decoded as the topic declares it."""

    __test__ = False

    def __init__(self, driver: Exit, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    @property
    def records(self) -> list[Record[K, V]]:
        """The records that have not been popped, in the order in which they were written."""
        topic, seen = self._topic, self._driver.popped(self._topic.name)
        arrivals = self._driver.topic(topic.name).arrivals
        return [topic.decoded(record, partition) for partition, record in arrivals[seen:]]

    @property
    def values(self) -> list[V]:
        """The values of `records`."""
        return [record.value for record in self.records]

    def pop(self) -> Record[K, V]:
        """The first of `records`, which is then gone from them.

        Raises:
            UsageError: there is none.
        """
        records = self.records
        if not records:
            raise UsageError(f"nothing (more) has come out of {self._topic.name!r}")
        self._driver.pop(self._topic.name)
        return records[0]
