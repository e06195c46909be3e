"""Places in a topology: where a stream is, where a table is, and the way through a topic.

Rule of the file: a changed key is only remembered (`rekeyed`). The repartition topic comes in
when an operator follows that needs equal keys in one partition, as in Kafka Streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamlog.dsl.shapes import UNKNOWN, Shape
from streamlog.dsl.topic import Outlet
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.topology import (
    ErrorPolicy,
    RepartitionSink,
    Source,
    TopicSpec,
    TopologyBuilder,
    View,
    check_name,
    on_error,
)


class AppBuilder(TopologyBuilder):
    """The nodes of an app, and the outlet that its tables are asked through while it runs."""

    def __init__(
        self, app_id: str, outlet: Outlet, *, on_error: ErrorPolicy = on_error.FAIL
    ) -> None:
        super().__init__(app_id, on_error=on_error)
        self.outlet = outlet


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the topology a stream is, and what is known of its records."""

    builder: AppBuilder
    node: str
    key: Shape
    value: Shape
    rekeyed: str | None = None
    """Keys may lie in any partition since this operator changed them; "" if it has no name."""


@dataclass(frozen=True, slots=True)
class Side:
    """A table as its joins and readers see it."""

    place: Place
    """Where its changes come from."""
    owner: str
    """The node that keeps the rows."""
    views: tuple[View, ...] = ()
    """Applied to each row, in order."""
    is_windowed: bool = False

    @property
    def rows(self) -> str:
        """The node whose rows it shows: the last view, or what keeps them."""
        return self.views[-1].name if self.views else self.owner


def same_app(place: Place, other: Place, what: str) -> None:
    """Refuse to connect two apps."""
    if place.builder is not other.builder:
        raise TopologyError(
            f"can't {what} {place.node!r} of app {place.builder.app_id!r} with {other.node!r} of "
            f"app {other.builder.app_id!r}: let one write a topic that the other reads"
        )


def check_same_keys(place: Place, table: Place, owner: str) -> None:
    """Keys that are written differently lie in different partitions: such a join finds nothing."""
    here, there = place.key.serde, table.key.serde
    if type(here) is type(there):
        return
    raise TopologyError(
        f"the keys at {place.node!r} are written by {type(here).__name__}, those of "
        f"{owner!r} by {type(there).__name__}: equal keys would not meet. Give both topics the "
        "same key type; a function that makes keys (group_by, rekey) has to be annotated with "
        "the type it returns"
    )


def partitioned(place: Place, name: str | None, key: Shape | None = None) -> Place:
    """The same records with equal keys in one partition; through a topic if that is needed.

    `name` is that of the operator that needs it, for the topic if nothing else has a name.
    `key` is how the other side of a join writes its keys.
    """
    if place.rekeyed is None:
        return place
    topic = place.rekeyed or name
    if not topic:
        raise TopologyError(
            f"the key was changed by {place.node!r} or before it, so the records have to go "
            "through a repartition topic: name it, with name= at rekey, map or the join"
        )
    return through_topic(place, topic, key or place.key)


def through_topic(place: Place, name: str, key: Shape, *, partitions: int | None = None) -> Place:
    """The same records behind a repartition topic; made once for the same place and name."""
    builder = place.builder
    topic = f"{builder.app_id}-{check_name('a topic', name)}-repartition"
    spec = TopicSpec(
        check_name("a topic", topic),
        key.serde,
        place.value.serde,
        partitions=partitions,
        internal=True,
    )
    there = builder.nodes.get(f"{name}-repartition-sink")
    if isinstance(there, RepartitionSink) and there.parents == (place.node,):
        # Of a key without a known type, the first use has decided how it is written.
        as_there = replace(spec, key=there.topic.key) if place.key == UNKNOWN else spec
        if as_there == there.topic:
            return _behind(builder, name, there.topic)
    builder.add(RepartitionSink(name=f"{name}-repartition-sink", parents=(place.node,), topic=spec))
    builder.add(Source(name=f"{name}-repartition", topic=spec))
    return _behind(builder, name, spec)


def _behind(builder: AppBuilder, name: str, topic: TopicSpec) -> Place:
    key, value = Shape(given=topic.key), Shape(given=topic.value)
    return Place(builder, f"{name}-repartition", key, value)


def idle_after_ms(wall: Dur | None) -> int | None:
    """A time to wait for quiet sources, as given.

    Raises:
        TopologyError: it is no time at all.
    """
    waited_ms = None if wall is None else duration_ms(wall)
    if waited_ms == 0:
        raise TopologyError("idle_after must be longer than 0 ms, such as '30s'")
    return waited_ms
