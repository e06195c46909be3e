"""StreamPosition: the node at which a stream or table is, with the types known there, and checks.

A change of keys is only noted (`rekeyed`). A repartition topic is added before the first operator
that needs equal keys in one partition, as in Kafka Streams. Types that both sides declare are
compared here, while the topology is built.

Rule: only a combination that certainly fails is refused.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import TypeVar, is_typeddict

from streamlog.connect.declared_connectors import Connectors
from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.topic import Topic, refuse_other
from streamlog.dsl.value_types import UNKNOWN, Shape, bare, is_union, may_be_none, type_of
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.stream_nodes import RepartitionSink, Source, View
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.record import Windowed
from streamlog.replace import replace
from streamlog.serdes import type_name
from streamlog.serdes.erased_types import UserFunction, UserKey, UserValue
from streamlog.topology import TopologyBuilder


class AppBuilder(TopologyBuilder):
    """The nodes and connectors of an app, and its ports to the process that runs it."""

    def __init__(
        self, app_id: str, runtime: AppRuntime, *, on_error: ErrorPolicy = on_error.FAIL
    ) -> None:
        super().__init__(app_id, on_error=on_error)
        self.runtime = runtime
        self.connectors = Connectors()
        self.policy = on_error


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The node whose output a stream is, and the shapes of its keys and values."""

    builder: AppBuilder
    node: str
    key: Shape
    value: Shape
    rekeyed: str | None = None
    """The operator that changed the keys, so that equal keys may be in any partition; "" if it has
    no name, None if no operator changed them."""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table: the node that keeps its rows, and the views between that node and a reader."""

    position: StreamPosition
    """The node whose output the changes are."""
    owner: str
    """The node that keeps the rows."""
    views: tuple[View, ...] = ()
    """The views to apply to each row, in order."""
    is_windowed: bool = False

    @property
    def rows(self) -> str:
        """The node whose rows a reader sees: the last view, or the owner."""
        return self.views[-1].name if self.views else self.owner


def check_same_app(position: StreamPosition, other: StreamPosition, what: str) -> None:
    """Refuse to connect streams or tables of two apps.

    Raises:
        TopologyError: the two belong to different apps; the message names the operation `what`.
    """
    if position.builder is not other.builder:
        raise TopologyError(
            f"can't {what} {position.node!r} of app {position.builder.app_id!r} with"
            f" {other.node!r} of app {other.builder.app_id!r}: let one write a topic that the"
            " other reads"
        )


def check_same_keys(position: StreamPosition, table: StreamPosition, owner: str) -> None:
    """Refuse to join sides whose keys are serialized differently.

    Equal keys would have different bytes, and so be in different partitions.

    Raises:
        TopologyError: the serdes of the keys are of different classes.
    """
    here, there = position.key.serde, table.key.serde
    # By class only: two types written as JSON may have equal bytes for equal keys, and only what
    # certainly fails is refused.
    if type(here) is type(there):
        return
    raise TopologyError(
        f"the keys at {position.node!r} are written by {type(here).__name__}, and the keys of "
        f"{owner!r} by {type(there).__name__}: equal keys would not match. Give both topics one "
        "key type, and annotate a function that makes keys (group_by, rekey) with the type that "
        "it returns"
    )


def repartition_if_needed(
    position: StreamPosition, name: str | None, key: Shape | None = None
) -> StreamPosition:
    """Return a position at which equal keys are in one partition.

    Args:
        position: the position before; it is returned if its keys were not changed.
        name: the name of the operator that needs equal keys, for the repartition topic if the
            operator that changed the keys has no name.
        key: the shape of the keys of the other side of a join; by default that of `position`.

    Raises:
        TopologyError: a repartition topic is needed, and no operator has a name.
    """
    if position.rekeyed is None:
        return position
    # The operator that changed the keys comes first, so two joins below it share one topic.
    topic = position.rekeyed or name
    if not topic:
        raise TopologyError(
            f"the key was changed by {position.node!r} or before it, so the records have to go "
            "through a repartition topic: name it, with name= at rekey, map or the join"
        )
    return repartition(position, topic, key or position.key)


def repartition(
    position: StreamPosition, name: str, key: Shape, *, partitions: int | None = None
) -> StreamPosition:
    """Return the position after a repartition topic, which is added once for a position and name.

    Args:
        position: the position before.
        name: names the topic and its nodes.
        key: the shape of the keys, which decides how they are written.
        partitions: the number of partitions; by default, that of the topics it is joined with.
    """
    builder = position.builder
    topic = f"{builder.app_id}-{check_name('a topic', name)}-repartition"
    spec = TopicSpec(
        check_name("a topic", topic),
        key.serde,
        position.value.serde,
        partitions=partitions,
        internal=True,
    )
    there = builder.nodes.get(f"{name}-repartition-sink")
    if isinstance(there, RepartitionSink) and there.parents == (position.node,):
        # 1. A join with a table of `str` keys repartitions the stream, and writes its keys as str.
        # 2. An aggregation repartitions the same position under the same name; its key type is
        #    unknown, so alone it would write MessagePack.
        # The first use has decided, so that both read one topic.
        as_there = replace(spec, key=there.topic.key) if position.key == UNKNOWN else spec
        if as_there == there.topic:
            return _below_topic(builder, name, there.topic)
    builder.add(
        RepartitionSink(name=f"{name}-repartition-sink", parents=(position.node,), topic=spec)
    )
    builder.add(Source(name=f"{name}-repartition", topic=spec))
    return _below_topic(builder, name, spec)


def _below_topic(builder: AppBuilder, name: str, topic: TopicSpec) -> StreamPosition:
    key, value = Shape(given=topic.key), Shape(given=topic.value)
    return StreamPosition(builder, f"{name}-repartition", key, value)


def idle_after_ms(wall: Dur | None) -> int | None:
    """Return the option `idle_after` in milliseconds; None if it is not set.

    Raises:
        TopologyError: the time is 0.
    """
    waited_ms = None if wall is None else duration_ms(wall)
    if waited_ms == 0:
        raise TopologyError("idle_after must be longer than 0 ms, such as '30s'")
    return waited_ms


F = TypeVar("F", bound=UserFunction)
"""A function of the user's."""


def is_assignable(declared: object, given: object) -> bool:
    """Return whether a value of type `given` can be one of type `declared`; True if in doubt."""
    declared, given = bare(declared), bare(given)
    if is_union(declared):
        return any(is_assignable(each, given) for each in typing.get_args(declared))
    if is_union(given):
        return any(is_assignable(declared, each) for each in typing.get_args(given))
    wanted = typing.get_origin(declared) or declared
    found = typing.get_origin(given) or given
    # Arguments of generic types are not compared: `list[int]` may be a `list[bool]` at run time.
    if not isinstance(wanted, type) or not isinstance(found, type) or wanted is found:
        return True
    if is_typeddict(wanted) or is_typeddict(found):
        return _is_dict(wanted) and _is_dict(found)
    try:
        return issubclass(found, wanted) or (wanted is float and found is int)
    except TypeError:
        return True  # A protocol with attributes, which only instances can have.


def check_topic(position: StreamPosition, topic: Topic[UserKey, UserValue]) -> None:
    """Refuse an argument that is not a topic, and a topic of other types than the stream.

    Raises:
        TopologyError: the argument is not a topic, or a known type differs.
    """
    refuse_other(topic)
    for what, here, there in (
        ("keys", position.key, topic.spec.key),
        ("values", position.value, topic.spec.value),
    ):
        given, wanted = here.known, type_of(there)
        if not is_assignable(wanted, given):
            raise TopologyError(
                f"the {what} at {position.node!r} are {type_name(given)}, and topic "
                f"{topic.spec.name!r} takes {type_name(wanted)}: {_way_out(given, wanted)}"
            )


def _way_out(given: object, wanted: object) -> str:
    """Return what to do about a stream and a topic of different types."""
    # The first windowed app writes its rows to a topic with the keys of its input, more often than
    # not, so this case has an answer of its own.
    if typing.get_origin(given) is Windowed and is_assignable(wanted, typing.get_args(given)[0]):
        return (
            f"declare the topic with key={type_name(given)}, or keep only the key in the window, "
            "as in .rekey(lambda window, _: window.key)"
        )
    return "map them first, or declare the topic with their type"


def check_alike(position: StreamPosition, other: StreamPosition) -> None:
    """Refuse to merge streams of different types.

    Raises:
        TopologyError: known types of keys or values differ.
    """
    for what, here, there in (
        ("keys", position.key, other.key),
        ("values", position.value, other.value),
    ):
        mine, theirs = here.known, there.known
        if not is_assignable(mine, theirs) and not is_assignable(theirs, mine):
            raise TopologyError(
                f"can't merge {position.node!r}, whose {what} are {type_name(mine)}, with "
                f"{other.node!r}, whose {what} are {type_name(theirs)}: map them to one type first"
            )


def check_takes_none(fn: F, *positions: int, where: str) -> F:
    """Return the function, unless its annotations exclude None for one of these parameters.

    Args:
        fn: the function.
        positions: the indexes of the parameters that may be None.
        where: the operator, for messages.

    Raises:
        TopologyError: an annotated type does not include None.
    """
    try:
        hints = typing.get_type_hints(fn)
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError, AttributeError):
        return fn
    for position in positions:
        hint = hints.get(names[position]) if position < len(names) else None
        # A parameter without an annotation, or with Any, may take None: only certain errors count.
        if bare(hint) is None or isinstance(bare(hint), TypeVar) or may_be_none(hint):
            continue
        raise TopologyError(
            f"{getattr(fn, '__name__', fn)!r} must accept None as argument {position + 1} "
            f"({names[position]!r}), because {where} also calls it without a row: annotate the "
            f"argument as {type_name(hint)} | None, and handle None"
        )
    return fn


def _is_dict(kind: type) -> bool:
    return is_typeddict(kind) or issubclass(kind, typing.Mapping)
