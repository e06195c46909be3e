"""StreamPosition: where in a topology a stream or a table is, and what may follow it.

A changed key is only remembered (`rekeyed`). The repartition topic is added when an operator
follows that needs equal keys in one partition, as in Kafka Streams. Types that both sides declare
are compared here, while the app is put together. Rule: only what is certain to fail is refused.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass, replace
from typing import TypeVar, is_typeddict

from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.topic import Topic, refuse_other
from streamlog.dsl.value_types import UNKNOWN, Shape, bare, is_union, may_be_none
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.stream_nodes import RepartitionSink, Source, View
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.serdes import declared_by, type_name
from streamlog.serdes.erased_types import UserFunction, UserKey, UserValue
from streamlog.topology import TopologyBuilder


class AppBuilder(TopologyBuilder):
    """The nodes of an app, and the outlet that its tables are asked through while it runs."""

    def __init__(
        self, app_id: str, outlet: AppRuntime, *, on_error: ErrorPolicy = on_error.FAIL
    ) -> None:
        super().__init__(app_id, on_error=on_error)
        self.outlet = outlet


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where in the topology a stream is, and what is known of its records."""

    builder: AppBuilder
    node: str
    key: Shape
    value: Shape
    rekeyed: str | None = None
    """Keys may lie in any partition since this operator changed them; "" if it has no name."""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as its joins and readers see it."""

    place: StreamPosition
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


def check_same_app(place: StreamPosition, other: StreamPosition, what: str) -> None:
    """Refuse to connect two apps."""
    if place.builder is not other.builder:
        raise TopologyError(
            f"can't {what} {place.node!r} of app {place.builder.app_id!r} with {other.node!r} of "
            f"app {other.builder.app_id!r}: let one write a topic that the other reads"
        )


def check_same_keys(place: StreamPosition, table: StreamPosition, owner: str) -> None:
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


def repartition_if_needed(
    place: StreamPosition, name: str | None, key: Shape | None = None
) -> StreamPosition:
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
    return repartition(place, topic, key or place.key)


def repartition(
    place: StreamPosition, name: str, key: Shape, *, partitions: int | None = None
) -> StreamPosition:
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
            return _below_topic(builder, name, there.topic)
    builder.add(RepartitionSink(name=f"{name}-repartition-sink", parents=(place.node,), topic=spec))
    builder.add(Source(name=f"{name}-repartition", topic=spec))
    return _below_topic(builder, name, spec)


def _below_topic(builder: AppBuilder, name: str, topic: TopicSpec) -> StreamPosition:
    key, value = Shape(given=topic.key), Shape(given=topic.value)
    return StreamPosition(builder, f"{name}-repartition", key, value)


def idle_after_ms(wall: Dur | None) -> int | None:
    """A time to wait for quiet sources, as given.

    Raises:
        TopologyError: it is no time at all.
    """
    waited_ms = None if wall is None else duration_ms(wall)
    if waited_ms == 0:
        raise TopologyError("idle_after must be longer than 0 ms, such as '30s'")
    return waited_ms


F = TypeVar("F", bound=UserFunction)
"""A function of the user's."""


def is_assignable(declared: object, given: object) -> bool:
    """Whether a place of one type takes values of another; in doubt it does."""
    declared, given = bare(declared), bare(given)
    if is_union(declared):
        return any(is_assignable(each, given) for each in typing.get_args(declared))
    if is_union(given):
        return any(is_assignable(declared, each) for each in typing.get_args(given))
    wanted = typing.get_origin(declared) or declared
    found = typing.get_origin(given) or given
    if not isinstance(wanted, type) or not isinstance(found, type) or wanted is found:
        return True
    if is_typeddict(wanted) or is_typeddict(found):
        return _is_dict(wanted) and _is_dict(found)
    try:
        return issubclass(found, wanted) or (wanted is float and found is int)
    except TypeError:
        return True  # A protocol with fields: only values tell.


def check_topic(place: StreamPosition, topic: Topic[UserKey, UserValue]) -> None:
    """Refuse a topic whose types are others than those of the stream, and what is none."""
    refuse_other(topic)
    for what, here, there in (
        ("keys", place.key, topic.spec.key),
        ("values", place.value, topic.spec.value),
    ):
        given, wanted = here.known, declared_by(there)
        if not is_assignable(wanted, given):
            raise TopologyError(
                f"the {what} at {place.node!r} are {type_name(given)}, and topic "
                f"{topic.spec.name!r} takes {type_name(wanted)}: map them before, or declare the "
                "topic as what they are"
            )


def check_alike(place: StreamPosition, other: StreamPosition) -> None:
    """Refuse to make one stream of records of different types."""
    for what, here, there in (("keys", place.key, other.key), ("values", place.value, other.value)):
        mine, theirs = here.known, there.known
        if not is_assignable(mine, theirs) and not is_assignable(theirs, mine):
            raise TopologyError(
                f"can't merge {place.node!r}, whose {what} are {type_name(mine)}, with "
                f"{other.node!r}, whose are {type_name(theirs)}: map them to one type before"
            )


def check_takes_none(fn: F, *places: int, where: str) -> F:
    """The function, if it may be given None at these places as far as it is annotated.

    Raises:
        TopologyError: it is annotated to take no None at one of them.
    """
    try:
        hints = typing.get_type_hints(fn)
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError, AttributeError):
        return fn
    for place in places:
        hint = hints.get(names[place]) if place < len(names) else None
        if bare(hint) is None or isinstance(bare(hint), TypeVar) or may_be_none(hint):
            continue
        raise TopologyError(
            f"{getattr(fn, '__name__', fn)!r} must take None for its {place + 1}. argument "
            f"{names[place]!r}, as {where} calls it also where there is no such row: annotate it "
            f"as {type_name(hint)} | None, and say what is to come of it then"
        )
    return fn


def _is_dict(kind: type) -> bool:
    return is_typeddict(kind) or issubclass(kind, typing.Mapping)
