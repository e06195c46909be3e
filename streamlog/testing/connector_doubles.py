"""Connector doubles: what a test sees of its app's connectors, `TestSource` and `TestSink`.

Rule: nothing outside is read or written before a test calls `run`.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.connect.connector_errors import ConnectError
from streamlog.connect.source import Read, SourceOffset
from streamlog.connect_tasks.carried import SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.durations import When, moment, when_ms
from streamlog.errors import StreamlogError, UsageError
from streamlog.serdes.erased_types import AnyRecord, UserKey, UserValue
from streamlog.testing.driver_connectors import (
    AnySource,
    ConnectorClock,
    ConnectorStage,
    DriverConnectors,
    append,
)
from streamlog.testing.driver_topics import MemoryTopic


class TestSource:
    """Stands for a source of a test's app, which reads nothing outside unless it is `run`."""

    __test__ = False

    def __init__(
        self, name: str, connectors: DriverConnectors, stage: ConnectorStage,
        topics: Mapping[str, MemoryTopic],
    ) -> None:  # fmt: skip
        if name not in connectors.sources:
            raise UsageError(f"the app has no source {name!r}; it has {sorted(connectors.sources)}")
        self._name, self._connectors = name, connectors
        self._stage, self._topics = stage, topics

    def give(
        self,
        *values: UserValue,
        key: UserKey = None,
        at: When | None = None,
        topic: str = "",
    ) -> None:
        """Let the source read values, and run the app until everything that follows has happened.

        Args:
            values: what it reads, in order.
            key: the key of each.
            at: the event time of each; the driver's time by default.
            topic: the connector's own name of the topic, if it feeds several.

        Raises:
            ProcessingError: a record can't be carried, or the app failed on it.
        """
        self._stage.check_runs()
        context = ConnectorContext(self._name, 0, ConnectorClock(self._stage))
        records = [context.record(value, key=key, timestamp=at, topic=topic) for value in values]
        # The way of a real read, so transforms and the error policy apply to what a test gives.
        carrier = SourceCarrier(self._connectors.sources[self._name].connector)
        now = moment(self._stage.now_ms if at is None else when_ms(at))
        carried = carrier.carry(Read(records, {}), now)
        append(self._topics, carried.batches)
        self._stage.settle()

    def run(self, connector: AnySource | None = None) -> None:
        """Run the connector itself, on the driver's loop and clock, from here on.

        Args:
            connector: another one to run in its stead, with a path of the test's for instance.

        Raises:
            ProcessingError: the connector or the app failed.
        """
        self._stage.check_runs()
        declared = self._connectors.sources[self._name].connector.source
        self._connectors.run(self._name, declared if connector is None else connector)
        self._stage.settle()

    @property
    def offsets(self) -> Mapping[str, SourceOffset]:
        """How far each part was read while the connector ran, by the part's name as JSON."""
        return dict(self._connectors.sources[self._name].offsets)


class TestSink:
    """Stands for a sink of a test's app; its records go into a list."""

    __test__ = False

    def __init__(self, name: str, connectors: DriverConnectors) -> None:
        if name not in connectors.targets:
            raise UsageError(f"the app has no sink {name!r}; it has {sorted(connectors.targets)}")
        self._target = connectors.targets[name]

    @property
    def records(self) -> list[AnyRecord]:
        """What the sink has carried outside, in order."""
        return [*self._target.records]

    @property
    def values(self) -> list[UserValue]:
        """The values of `records`."""
        return [record.value for record in self._target.records]

    def fail(self, error: Exception, *, times: int = 1) -> None:
        """Let the sink fail on what comes next.

        `Retriable`, and what the connector calls transient, fails the next writes, which are tried
        again. Any other error is one of a record: the next records fail with it at each attempt,
        so the error policy decides about them.

        Args:
            error: what the connector would raise.
            times: the number of writes, or of records.

        Raises:
            UsageError: `times` is below 1.
        """
        if times < 1:
            raise UsageError(f"fail needs times=1 or more, not {times}")
        # The runtime takes such an error for the log's, and would end the app.
        if isinstance(error, StreamlogError) and not isinstance(error, ConnectError):
            raise UsageError(f"{error!r} is an error of streamlog, which no connector raises")
        self._target.failing += [error] * times
