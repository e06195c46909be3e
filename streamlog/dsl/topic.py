"""Topic: a name in the log with the types of its keys and values.

An app reads from and writes to topics. Any part of the app can send to a topic while the app runs:
a worker or the test driver puts its own `RecordSender` into the app's `AppRuntime`. Rule of the
file: keys and values become bytes here, and every error names the topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from streamlog.dsl.app_runtime import AppRuntime
from streamlog.durations import When, moment, when_ms
from streamlog.errors import ProcessingError, SerdeError, StreamlogError, TopologyError, UsageError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Record
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnySerde, UserKey, UserValue
from streamlog.serdes.registered.framing import absorb_header, split_header

if TYPE_CHECKING:
    from streamlog.records.batch import LogRecord as RawRecord

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class Sent(NamedTuple):
    """The coordinates of a record that the log has acknowledged; the timestamp is in ms."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def refuse_other(given: object) -> None:
    """Refuse anything but a `Topic`, such as the topic's name, which other libraries take.

    Raises:
        TopologyError: the argument is not a `Topic`.
    """
    if not isinstance(given, Topic):
        raise TopologyError(
            f"{given!r} is not a topic: declare it with its types, "
            "orders = app.topic('orders', key=str, value=Order), and pass the result"
        )


class Topic(Generic[K, V]):
    """A topic with the types of its keys and values; `App.topic` declares it."""

    def __init__(self, spec: TopicSpec, runtime: AppRuntime) -> None:
        self.spec = spec
        self._runtime = runtime

    @property
    def name(self) -> str:
        """The topic's name in the log."""
        return self.spec.name

    def at(self, spec: TopicSpec) -> Topic[K, V]:
        """Return a topic of the same app with this specification."""
        return Topic(spec, self._runtime)

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        timestamp: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Write one record and wait until the log has acknowledged it.

        Args:
            value: the value; None deletes the key from tables.
            key: the key, which decides the partition.
            timestamp: the event time; now by default.
            headers: bytes by header name.
            partition: a partition number that replaces the partitioner's choice.

        Returns:
            The coordinates of the record.

        Raises:
            UsageError: the app does not run, neither in a worker nor in a test.
            SerdeError: key or value does not have the topic's type, or its schema is not
                registered.
        """
        sender = self._runtime.sender
        if sender is None:
            raise UsageError(
                f"the app is not running, so nothing can be sent to {self.name!r}: send from an "
                "agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        await self._runtime.prepare_schemas(self.spec)
        record = (*self.encoded(key, value), tuple((headers or {}).items()))
        raw_key, raw_value, written = split_header(self.spec.key, self.spec.value, record)
        sent = await sender.send(
            self.name,
            raw_value,
            key=raw_key,
            timestamp_ms=None if timestamp is None else when_ms(timestamp),
            headers=written,
            partition=partition,
        )
        return Sent._make(sent)

    def encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        """Serialize key and value.

        Raises:
            SerdeError: key or value does not have the topic's type.
        """
        return (
            _encode(self.spec.key, key, f"the key for {self.name!r}"),
            _encode(self.spec.value, value, f"the value for {self.name!r}"),
        )

    def decoded(self, record: RawRecord, partition: int) -> Record[K, V]:
        """Decode a record of this topic.

        Raises:
            ProcessingError: key or value does not have the topic's type, or the event time can't be
                determined.
        """
        spec = self.spec
        try:
            written = (record.key, record.value, record.headers)
            raw_key, raw_value, headers = absorb_header(spec.key, spec.value, written)
            key: UserKey = None if raw_key is None else spec.key.loads(raw_key)
            value: UserValue = None if raw_value is None else spec.value.loads(raw_value)
            timestamp_ms = record.timestamp_ms
            # A tombstone has no value to take a time from: the record's own timestamp counts.
            if spec.timestamp is not None and value is not None:
                timestamp_ms = when_ms(spec.timestamp(value))
        except Exception as error:  # noqa: BLE001 - the user's serde and extractor: raised again
            failure = error
        else:
            at = (self.name, partition, record.offset)
            return Record(key, value, moment(timestamp_ms), headers, *at)
        raise ProcessingError(
            f"the record at offset {record.offset} of {self.name}-{partition} can't be read: "
            f"{failure}",
            topic=self.name,
            partition=partition,
            offset=record.offset,
            node=self.name,
        ) from failure


class TopicsByPattern(Topic[K, V]):
    """The topics whose names match a pattern, all with these types; see `App.topic_pattern`."""

    def topic(self, name: str) -> Topic[K, V]:
        """Return one of the topics, to send to it, or to write to it in a test.

        Raises:
            TopologyError: the pattern does not match the name.
        """
        pattern = self.spec.pattern or ""
        if re.fullmatch(pattern, name) is None:
            raise TopologyError(f"{self.name!r} has no topic {name!r}: it does not match {pattern}")
        return self.at(replace(self.spec, name=name, pattern=None))

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        timestamp: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Refuse: a record goes to one topic, `topic(name)`.

        Raises:
            UsageError: always.
        """
        del value, key, timestamp, headers, partition
        raise UsageError(
            f"{self.name!r} stands for the topics that match {self.spec.pattern}: send to one of "
            f"them, {self.name}.topic('NAME').send(...)"
        )


def _encode(serde: AnySerde, obj: object, what: str) -> bytes | None:
    # A missing key or a tombstone: there are no bytes, and the serde is not asked.
    if obj is None:
        return None
    try:
        return serde.dumps(obj)
    except StreamlogError as error:
        raise SerdeError(f"{what}: {error}") from error
