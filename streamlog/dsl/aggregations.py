"""What `count`, `reduce` and `aggregate` come to as an `Aggregation`.

Rule of the file: a result that is handed on is a copy, unless its type never changes: the
user's function may fold in place, and the next record must not reach into the last result.
Columns (`agg`): `columns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamlog.dsl.shapes import Shape, returned
from streamlog.serdes import IntSerde, JsonSerde, PackedSerde, Serde, WideIntSerde, serde_for
from streamlog.tables import plain_values
from streamlog.tables.revision import Revision
from streamlog.topology import Aggregation, Aggregator, TopicSpec, WholeNumbers
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import Emit

_EMPTY = object()
_UNCHANGING = (str, bytes, int, float, bool, datetime, type(None))
"""A result of these types needs no copy."""
_CONTAINERS: frozenset[type] = frozenset({dict, list})
_ANYTHING = (Any, dict, dict[str, Any], list, list[Any])
"""Types that say nothing of what is in a value."""


@dataclass(frozen=True, slots=True)
class Windowing:
    """How a stream is windowed, as far as it has been said."""

    windows: Windows
    emit: Emit = Emit.CLOSE
    late: TopicSpec | Callable[[Any], object] | None = None
    idle_after_ms: int | None = None
    united: bool = False
    """Of several streams, which have one time."""


def counting() -> Aggregation:
    """How many values."""
    return Aggregation(
        int,
        lambda state, _: state + 1,
        lambda state: state,
        serde_for(int),
        merge=lambda state, later: state + later,
        numbers=WholeNumbers((Aggregator("count"),), (None,), is_row=False),
    )


def reducing(fn: Callable[[Any, Any], Any], serde: Serde[Any]) -> Aggregation:
    """The first value, then what the function makes of it and the next."""

    def add(state: Any, value: Any) -> Any:  # noqa: ANN401 - the stream's values
        return value if state is None else fn(state, value)

    def merge(state: Any, later: Any) -> Any:  # noqa: ANN401 - the stream's values
        return state if later is None else add(state, later)

    serde = state_serde(serde)
    return Aggregation(lambda: None, add, _copied(serde), serde, merge=merge)


def aggregating(
    init: Callable[[], Any],
    fn: Callable[[Any, Any], Any],
    serde: Serde[Any],
    merge: Callable[[Any, Any], Any] | None = None,
) -> Aggregation:
    """A state of the user's."""
    serde = state_serde(serde)
    return Aggregation(init, fn, _copied(serde), serde, merge=merge)


def revising(
    init: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    subtract: Callable[[Any, Any], Any],
    serde: Serde[Any],
) -> Aggregation:
    """A state of the user's that revisions of a table are folded into.

    None is the state of a group that is not there; it begins with the first value put in.
    """

    def revised(state: Any, revision: Revision) -> Any:  # noqa: ANN401 - a state
        if revision.old is not None and state is not None:
            state = subtract(state, revision.old)
        if revision.new is not None:
            state = add(init() if state is None else state, revision.new)
        return state

    serde = state_serde(serde)
    return Aggregation(lambda: None, revised, _copied(serde), serde)


def revising_reduction(
    add: Callable[[Any, Any], Any], subtract: Callable[[Any, Any], Any], serde: Serde[Any]
) -> Aggregation:
    """As `reducing`, with revisions: the first value put in is the state."""

    def added(state: Any, value: Any) -> Any:  # noqa: ANN401 - a state
        return value if state is _EMPTY else add(state, value)

    return revising(lambda: _EMPTY, added, subtract, serde)


def state_serde(serde: Serde[Any]) -> Serde[Any]:
    """How a state is stored: as its values are written, but for whole numbers, which may grow."""
    return WideIntSerde() if type(serde) is IntSerde else serde


def _copied(serde: Serde[Any]) -> Callable[[Any], Any]:
    """The state as it is now: what is handed on must not change with the next record."""
    plain = _plain_containers(serde)

    def copy(state: Any) -> Any:  # noqa: ANN401 - a state
        if type(state) in plain:
            found = plain_values.copied(state)
            if found is not plain_values.OTHER:
                return found
        return state if isinstance(state, _UNCHANGING) else serde.loads(serde.dumps(state))

    return copy


def _plain_containers(serde: Serde[Any]) -> frozenset[type]:
    """The containers that come back from it as they were as long as all in them is plain."""
    if type(serde) is JsonSerde and serde.declared in _ANYTHING:
        return _CONTAINERS if serde.declared is Any else serde.exact
    return _CONTAINERS if type(serde) is PackedSerde else frozenset()


def state_shape(init: Callable[[], Any], fn: Callable[[Any, Any], Any]) -> Shape:
    """What the function is annotated to return, else what `init()` is."""
    shape = returned(fn)
    if shape.is_known:
        return shape
    start = type(init())
    # Plain containers say nothing of what is in them: they are packed as they are.
    return shape if start in (list, dict, tuple, type(None)) else Shape(start)
