"""Topic: a name in the log with the types of its keys and values.

What an app reads from and writes to. A topic can be sent to from anywhere in the app, as
long as somebody runs it: a worker and the test driver put their own `Sender` into the app's
`Outlet`. Rule of the file: bytes are made and read here, with the topic's name in every error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from streamlog.dsl.app_runtime import AppRuntime
from streamlog.durations import When, moment, when_ms
from streamlog.errors import ProcessingError, SerdeError, StreamlogError, TopologyError, UsageError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Record
from streamlog.serdes import Serde

if TYPE_CHECKING:
    from streamlog.records.batch import LogRecord as RawRecord

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""


class Sent(NamedTuple):
    """Where a record that was sent has come to lie."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def refuse_other(given: object) -> None:
    """Refuse what is no topic: its name, most often, as other libraries take one.

    Raises:
        TopologyError: it is something else.
    """
    if not isinstance(given, Topic):
        raise TopologyError(
            f"{given!r} is no topic: declare it with its types, "
            "orders = app.topic('orders', key=str, value=Order), and pass that"
        )


class Topic(Generic[K, V]):
    """A topic with the types of its keys and values."""

    def __init__(self, spec: TopicSpec, outlet: AppRuntime) -> None:
        self.spec = spec
        self._outlet = outlet

    @property
    def name(self) -> str:
        """The topic's name in the log."""
        return self.spec.name

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        timestamp: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Write one record and wait until the log has it.

        Args:
            value: None deletes the key from tables.
            key: decides the partition.
            timestamp: now, if it is not given.
            headers: names to bytes.
            partition: instead of the key's.

        Raises:
            UsageError: nobody runs the app: neither a worker nor a test.
            SerdeError: key or value are not of the topic's types.
        """
        sender = self._outlet.sender
        if sender is None:
            raise UsageError(
                f"nobody runs the app, so nothing can be sent to {self.name!r}: send from an "
                "agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        raw_key, raw_value = self.encoded(key, value)
        sent = await sender.send(
            self.name,
            raw_value,
            key=raw_key,
            timestamp_ms=None if timestamp is None else when_ms(timestamp),
            headers=tuple((headers or {}).items()),
            partition=partition,
        )
        return Sent._make(sent)

    def encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        """Key and value as bytes.

        Raises:
            SerdeError: they are not of the topic's types.
        """
        return (
            _encode(self.spec.key, key, f"the key for {self.name!r}"),
            _encode(self.spec.value, value, f"the value for {self.name!r}"),
        )

    def decoded(self, record: RawRecord, partition: int) -> Record[K, V]:
        """A record of this topic as its types.

        Raises:
            ProcessingError: it is not of these types, or its event time can't be told.
        """
        spec = self.spec
        try:
            key: Any = None if record.key is None else spec.key.loads(record.key)
            value: Any = None if record.value is None else spec.value.loads(record.value)
            timestamp_ms = record.timestamp_ms
            if spec.timestamp is not None and value is not None:
                timestamp_ms = when_ms(spec.timestamp(value))
        except Exception as error:  # noqa: BLE001 - the user's serde and extractor: raised again
            failure = error
        else:
            at = (self.name, partition, record.offset)
            return Record(key, value, moment(timestamp_ms), record.headers, *at)
        raise ProcessingError(
            f"the record at offset {record.offset} of {self.name}-{partition} can't be read: "
            f"{failure}",
            topic=self.name,
            partition=partition,
            offset=record.offset,
            node=self.name,
        ) from failure


def _encode(serde: Serde[Any], obj: object, what: str) -> bytes | None:
    if obj is None:
        return None
    try:
        return serde.dumps(obj)
    except StreamlogError as error:
        raise SerdeError(f"{what}: {error}") from error
