"""Aggregations: the nodes and folds of `count`, `reduce` and `aggregate`, windowed or not.

Sessions, sliding windows and count windows follow from records; options that they do not support
are refused here, with the name of the table.

Rule: a forwarded result is a copy unless its type is immutable, because the user's function may
change its state in place. Not done here: columns (`columns`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamlog.dsl.stream_position import StreamPosition
from streamlog.dsl.value_types import Shape, return_shape
from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Aggregation, Aggregator, WholeNumbers
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.nodes.window_nodes import (
    CountedAggregate,
    RecordWindowsAggregate,
    SessionAggregate,
    SlidingAggregate,
)
from streamlog.serdes import IntSerde, JsonSerde, PackedSerde, WideIntSerde, serde_for
from streamlog.serdes.erased_types import ANY_TYPE, AnyRecord, AnySerde, UserState, UserValue
from streamlog.tables.change_serdes import Revision
from streamlog.tables.folds import plain_values
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.definitions import Counted, Sessions, Sliding, Windows
from streamlog.windows.emit import Emit

_EMPTY = object()
_UNCHANGING = (str, bytes, int, float, bool, datetime, type(None))
"""Immutable types, whose values need no copy."""
_CONTAINERS: frozenset[type] = frozenset({dict, list})
_ANYTHING = (ANY_TYPE, dict, dict[str, ANY_TYPE], list, list[ANY_TYPE])
"""Types that do not declare the parts of a value."""


@dataclass(frozen=True, slots=True)
class Windowing:
    """The options of a windowed aggregation."""

    windows: Windows
    emit: Emit = Emit.CLOSE
    late: TopicSpec | Callable[[AnyRecord], object] | None = None
    idle_after_ms: int | None = None
    united: bool = False
    """Whether it aggregates several streams, which share one time."""


def count_aggregation() -> Aggregation:
    """Return the aggregation that counts values."""
    return Aggregation(
        int,
        lambda state, _: state + 1,
        lambda state: state,
        serde_for(int),
        merge=lambda state, later: state + later,
        numbers=WholeNumbers((Aggregator("count"),), (None,), is_row=False),
    )


def reduce_aggregation(
    fn: Callable[[UserValue, UserValue], UserValue], serde: AnySerde
) -> Aggregation:
    """Return the aggregation whose state is the first value, then the result of `fn`."""

    # None stands for "no value yet": `reduce` has no initial value to start from.
    def add(state: UserState, value: UserValue) -> UserState:
        return value if state is None else fn(state, value)

    def merge(state: UserState, later: UserState) -> UserState:
        return state if later is None else add(state, later)

    serde = state_serde(serde)
    return Aggregation(lambda: None, add, _copier(serde), serde, merge=merge)


def custom_aggregation(
    init: Callable[[], UserState],
    fn: Callable[[UserState, UserValue], UserState],
    serde: AnySerde,
    merge: Callable[[UserState, UserState], UserState] | None = None,
) -> Aggregation:
    """Return an aggregation of the user's functions; arguments are those of `Aggregation`."""
    serde = state_serde(serde)
    return Aggregation(init, fn, _copier(serde), serde, merge=merge)


def revision_aggregation(
    init: Callable[[], UserState],
    add: Callable[[UserState, UserValue], UserState],
    subtract: Callable[[UserState, UserValue], UserState],
    serde: AnySerde,
) -> Aggregation:
    """Return the aggregation of a grouped table, which folds revisions.

    The state of a group without rows is None; it starts as `init()` when the first row is added.
    """

    def revise(state: UserState, revision: Revision) -> UserState:
        # 1. A row enters the group: old is None, so only `add` is called.
        # 2. The row changes within the group: the old value is subtracted, the new one added.
        # 3. It leaves, or is deleted: new is None. If `subtract` returns None, the group's row is
        #    deleted, and the next row that enters starts from `init()` again.
        if revision.old is not None and state is not None:
            state = subtract(state, revision.old)
        if revision.new is not None:
            state = add(init() if state is None else state, revision.new)
        return state

    serde = state_serde(serde)
    return Aggregation(lambda: None, revise, _copier(serde), serde)


def revision_reduction(
    add: Callable[[UserState, UserValue], UserState],
    subtract: Callable[[UserState, UserValue], UserState],
    serde: AnySerde,
) -> Aggregation:
    """Return the aggregation of a grouped table whose state is the first value, then `add`'s."""

    def add_value(state: UserState, value: UserValue) -> UserState:
        # Not None, which is the state of a group without a row: `revise` replaces that by `init()`.
        return value if state is _EMPTY else add(state, value)

    return revision_aggregation(lambda: _EMPTY, add_value, subtract, serde)


def state_serde(serde: AnySerde) -> AnySerde:
    """Return the serde of a state: that of its values, except that whole numbers may grow."""
    return WideIntSerde() if type(serde) is IntSerde else serde


def _copier(serde: AnySerde) -> Callable[[UserState], UserValue]:
    """Return a function that copies a state, because a result must not change with its state."""
    # From the cheapest to the dearest: no copy of what can't change, a copy part by part, a round
    # trip through bytes.
    plain = _plain_containers(serde)

    def copy(state: UserState) -> UserValue:
        if type(state) in plain:
            found = plain_values.copied(state)
            if found is not plain_values.OTHER:
                return found
        return state if isinstance(state, _UNCHANGING) else serde.loads(serde.dumps(state))

    return copy


def _plain_containers(serde: AnySerde) -> frozenset[type]:
    """Return the containers that the serde reads back unchanged if all their parts are plain."""
    # A declared part, as in `list[datetime]`, is read back as its type, which only the serde knows.
    if type(serde) is JsonSerde and serde.declared in _ANYTHING:
        return _CONTAINERS if serde.declared is ANY_TYPE else serde.exact
    return _CONTAINERS if type(serde) is PackedSerde else frozenset()


def state_shape(
    init: Callable[[], UserState], fn: Callable[[UserState, UserValue], UserState]
) -> Shape:
    """Return the shape of the function's annotated result, else that of `init()`."""
    shape = return_shape(fn)
    if shape.is_known:
        return shape
    start = type(init())
    # The class of a container does not tell the types of its parts.
    return shape if start in (list, dict, tuple, type(None)) else Shape(start)


def counted_aggregate(
    name: str,
    position: StreamPosition,
    how: Windowing,
    windows: Counted,
    *,
    aggregation: Aggregation,
    on_error: ErrorPolicy | None,
) -> CountedAggregate:
    """Return the node of an aggregation by count windows.

    Raises:
        TopologyError: an option does not apply to count windows.
    """
    if how.late is not None:
        raise TopologyError(
            f"{name!r} counts records in the order of processing, so none is late: remove .late()"
        )
    if how.emit not in (Emit.CLOSE, Emit.UPDATE):
        raise TopologyError(
            f"{name!r} can't emit at commits or early: count windows have only final "
            "rows (Emit.CLOSE) or every change (Emit.UPDATE)"
        )
    if how.united:
        raise TopologyError(
            f"{name!r} can't count the records of several streams together: merge them first"
        )
    return CountedAggregate(
        name=name,
        parents=(position.node,),
        on_error=on_error,
        store=StoreSpec(name),
        due=StoreSpec(f"{name}/@due"),
        key=position.key.serde,
        aggregation=aggregation,
        windows=windows,
        emit=how.emit,
        idle_after_ms=how.idle_after_ms,
    )


def record_windows_aggregate(
    name: str,
    position: StreamPosition,
    how: Windowing,
    windows: Sessions | Sliding,
    *,
    aggregation: Aggregation,
    on_error: ErrorPolicy | None,
) -> RecordWindowsAggregate:
    """Return the node of an aggregation by sessions or sliding windows.

    Raises:
        TopologyError: a session aggregation has no `merge`, or `emit` is `Emit.COMMIT`.
    """
    if how.emit == Emit.COMMIT:
        raise TopologyError(
            f"{name!r} can't emit with Emit.COMMIT: sessions and sliding windows have final rows "
            "(Emit.CLOSE), every change (Emit.UPDATE), or changes at intervals (Emit.early)"
        )
    fields = _fields(name, position, how)
    if isinstance(windows, Sliding):
        return SlidingAggregate(
            **fields,
            on_error=on_error,
            by_key=StoreSpec(f"{name}/@records"),
            aggregation=aggregation,
            windows=windows,
            value=position.value.serde,
        )
    if aggregation.merge is None:
        raise TopologyError(
            f"{name!r} aggregates sessions, and a record may merge two of them: pass a function "
            "that merges their states, as in aggregate(..., merge=lambda a, b: ...)"
        )
    return SessionAggregate(
        **fields,
        on_error=on_error,
        by_key=StoreSpec(f"{name}/@sessions"),
        aggregation=aggregation,
        windows=windows,
    )


def _fields(name: str, position: StreamPosition, how: Windowing) -> dict[str, Any]:
    """Return the fields that both kinds of nodes have."""
    return {
        "name": name,
        "parents": (position.node,),
        "store": StoreSpec(name),
        "key": position.key.serde,
        "emit": how.emit,
        "early": StoreSpec(f"{name}/@early") if how.emit.is_early else None,
        "late": how.late,
        "idle_after_ms": how.idle_after_ms,
        "united": how.united,
    }
