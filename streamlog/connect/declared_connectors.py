"""Declared connectors: what an app says about each of its sources and sinks, as data.

`App.source`, `App.sink` and `Stream.sink` declare; the worker and the test driver run. A name is
the identity of a connector's offsets, as the name of a node with state is that of its state, so an
app has each name once.

Rule: values only, checked when they are declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streamlog.blueprints.blueprint import ConnectorEntry
from streamlog.connect.java_connectors import LeftOffsets
from streamlog.connect.retries import NO_RETRIES, RecordRetries
from streamlog.connect.setting_values import check_settings
from streamlog.connect.sink import Sink
from streamlog.connect.source import Source, SourceOffset, SourcePartition, Transform
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.replace import replace

ErrorLog: TypeAlias = Literal["off", "errors", "records"]
"""Nothing; each error; each error with the coordinates of its record."""
TASKS_MAX = 1_000
"""The most tasks of one connector."""
DISCOVER_EVERY = "30s"
"""How often the leader asks a source for its parts, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConnector:
    """A source of an app, and the topics that it writes."""

    name: str
    """The identity of its offsets."""
    source: Source[Any, Any]
    topics: Mapping[str, TopicSpec]
    """The topics by the source's own names for them; one under "" takes every record."""
    tasks: int = 1
    """The largest number of tasks."""
    discover_every_ms: int = 30_000
    transforms: Sequence[Transform] = ()
    """Applied in order, before a record is written."""
    policy: ErrorPolicy
    """For records that can't be carried."""
    has_context_headers: bool = False
    """Whether dead letters have Kafka Connect's headers as well."""
    retries: RecordRetries = NO_RETRIES
    """For records on which a transform or a serde fails with an error that may pass."""
    error_log: ErrorLog = "off"
    """What is logged of each record that can't be carried, besides what the policy does."""

    def left_offset(self, part: SourcePartition, left: LeftOffsets) -> SourceOffset | None:
        """Return where a part continues that has no offset, by those of a Java class: `left`."""
        del part, left
        return None

    @property
    def needs_schemas(self) -> bool:
        """Whether transforms and serdes get the schemas of rows: a declared type needs none."""
        return False

    @property
    def keeps_raw(self) -> bool:
        """Whether the bytes of a raw Read are written as they are, without a record each."""
        return not self.transforms

    def topic_of(self, own_name: str) -> TopicSpec:
        """Return the topic of a record.

        Args:
            own_name: the source's own name for it, `Record.topic`.

        Raises:
            ConfigError: the app has declared no topic for this name.
        """
        # "" is the topic of a source with one topic, whatever the source calls it.
        found = self.topics.get("") or self.topics.get(own_name)
        if found is None:
            raise ConfigError(
                f"source {self.name!r} read a record for {own_name!r}, and the app has topics for "
                f"{', '.join(map(repr, self.topics))} only: add it in app.source"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConnector:
    """A sink of an app, and the topics that it carries outside."""

    name: str
    """Names its consumer group, `<app>-<name>`."""
    sink: Sink[Any, Any]
    topics: Sequence[TopicSpec]
    pattern: re.Pattern[str] | None = None
    """In place of `topics`: every topic whose whole name matches, now or later."""
    like: TopicSpec | None = None
    """With a pattern: has the serdes of all these topics."""
    tasks: int = 1
    """The largest number of tasks; more than partitions are not started."""
    transforms: Sequence[Transform] = ()
    """Applied in order, before a record is written outside."""
    policy: ErrorPolicy
    """For records that can't be carried."""
    has_context_headers: bool = False
    """Whether dead letters have Kafka Connect's headers as well."""
    retries: RecordRetries = NO_RETRIES
    """For records on which a transform or a serde fails with an error that may pass."""
    error_log: ErrorLog = "off"
    """What is logged of each record that can't be carried, besides what the policy does."""
    is_own_topic: bool = False
    """Whether the topic belongs to the sink alone (`Stream.sink`), so that records are removed from
    it once the target has them."""

    def topic_of(self, name: str) -> TopicSpec:
        """Return a topic that it carries.

        Raises:
            ConfigError: neither the topics nor the pattern name it.
        """
        for spec in self.topics:
            if spec.name == name:
                return spec
        if self.like is None:
            raise ConfigError(f"sink {self.name!r} does not carry the topic {name!r}")
        return replace(self.like, name=name)


Connector: TypeAlias = SourceConnector | SinkConnector


class Connectors:
    """The connectors of an app, in the order of their declaration."""

    def __init__(self) -> None:
        self._by_name: dict[str, Connector] = {}

    def add(self, connector: Connector) -> None:
        """Add a connector after its checks.

        Raises:
            TopologyError: the name is taken or no name, or `tasks` is out of range.
            ConfigError: the settings of the connector contradict each other.
        """
        name = check_name("a connector", connector.name)
        # Sources and sinks share one set of names: metrics and commands know a connector by it.
        if name in self._by_name:
            raise TopologyError(f"connector {name!r} is already declared: pass another name=")
        if not 1 <= connector.tasks <= TASKS_MAX:
            raise TopologyError(
                f"connector {name!r}: tasks must be 1 to {TASKS_MAX}, not {connector.tasks}"
            )
        inner = connector.source if isinstance(connector, SourceConnector) else connector.sink
        try:
            check_settings(inner)
        except ConfigError as error:
            raise ConfigError(f"connector {name!r} ({type(inner).__name__}): {error}") from error
        self._by_name[name] = connector

    @property
    def all(self) -> tuple[Connector, ...]:
        """All connectors."""
        return tuple(self._by_name.values())

    @property
    def sources(self) -> tuple[SourceConnector, ...]:
        """The sources."""
        return tuple(each for each in self.all if isinstance(each, SourceConnector))

    @property
    def sinks(self) -> tuple[SinkConnector, ...]:
        """The sinks."""
        return tuple(each for each in self.all if isinstance(each, SinkConnector))

    @property
    def own_topics(self) -> dict[str, TopicSpec]:
        """The topics that belong to one sink each, by name."""
        own = (each for each in self.sinks if each.is_own_topic)
        return {spec.name: spec for each in own for spec in each.topics}


def connector_entries(connectors: Iterable[Connector]) -> dict[str, ConnectorEntry]:
    """Return connectors as a blueprint has them, by name."""
    return {each.name: _entry(each) for each in connectors}


def _entry(connector: Connector) -> ConnectorEntry:
    if isinstance(connector, SourceConnector):
        kind, specs = type(connector.source).__name__, [*connector.topics.values()]
    else:
        kind, specs = type(connector.sink).__name__, [*connector.topics]
    role = "source" if isinstance(connector, SourceConnector) else "sink"
    return ConnectorEntry(role, kind, sorted({spec.name for spec in specs}))


def check_source(given: object) -> None:
    """Refuse anything but a `Source`.

    Raises:
        TopologyError: the argument is not a `Source`.
    """
    if not isinstance(given, Source):
        raise TopologyError(f"{given!r} is no source: pass an object of a class under Source")


def check_sink(given: object) -> None:
    """Refuse anything but a `Sink`.

    Raises:
        TopologyError: the argument is not a `Sink`.
    """
    if not isinstance(given, Sink):
        raise TopologyError(f"{given!r} is no sink: pass an object of a class under Sink")


def named_policy(given: ErrorPolicy, app_id: str, where: str) -> ErrorPolicy:
    """Return a policy that names the app's dead-letter topic, so that a task need not know the app.

    Raises:
        TopologyError: the argument is no policy; the message names the connector, `where`.
    """
    if not isinstance(given, ErrorPolicy):
        raise TopologyError(
            f"on_error of connector {where!r} is {given!r}, which is no policy: use one of "
            "on_error.FAIL, on_error.skip(), on_error.dlq() and on_error.retry(...)"
        )
    return given.named(app_id)


def check_transforms(given: Iterable[Transform]) -> tuple[Transform, ...]:
    """Return the transforms.

    Raises:
        TopologyError: one of them can't be called.
    """
    transforms = tuple(given)
    for each in transforms:
        if not callable(each):
            raise TopologyError(f"{each!r} is no transform: pass functions of a Record")
    return transforms


def discover_ms(every: Dur) -> int:
    """Return the interval at which a source is asked for its parts, in milliseconds, 1 or more.

    Raises:
        ConfigError: it is 0 or not a duration.
    """
    every_ms = duration_ms(every)
    if not every_ms:
        raise ConfigError("discover_every must be longer than 0 ms")
    return every_ms
