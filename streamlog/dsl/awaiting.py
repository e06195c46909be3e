"""Operators whose functions are awaited: how `amap_values` becomes a node.

Rule of the file: the name is the identity of the open calls, so one that the user has not given
is that of the function, never a number that other operators would move.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from streamlog.dsl.place import Place
from streamlog.dsl.shapes import returned
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import ORDERS, AsyncMapValues, ErrorPolicy, Order, check_name

_AWAITABLES = (Awaitable, Coroutine)


def awaiting(
    place: Place,
    fn: Callable[[Any], Awaitable[Any]],
    name: str | None,
    *,
    in_flight_max: int,
    ordered: Order,
    timeout: Dur | None,
    on_error: ErrorPolicy | None,
) -> Place:
    """The place behind a node that awaits the function.

    Raises:
        TopologyError: it has no name, or a setting is out of range.
    """
    found = name or str(getattr(fn, "__name__", "<lambda>"))
    if found == "<lambda>":
        raise TopologyError(
            "amap_values keeps the records whose calls are open, and its name is the identity of "
            "that state: give it a name=, or an `async def` with a name"
        )
    check_name("amap_values", found)
    if inspect.isasyncgenfunction(fn):
        raise TopologyError(f"{found!r} yields, but amap_values needs a function that returns")
    if in_flight_max < 1:
        raise TopologyError(f"{found!r}: max_in_flight is 1 or more, not {in_flight_max}")
    if ordered not in ORDERS:
        raise TopologyError(f"{found!r}: ordered is 'key', 'partition' or 'none', not {ordered!r}")
    timeout_ms = None if timeout is None else duration_ms(timeout)
    if timeout_ms == 0:
        raise TopologyError(f"{found!r}: timeout must be longer than 0 ms, such as '5s'")
    place.builder.add(
        AsyncMapValues(
            name=found,
            parents=(place.node,),
            fn=fn,
            store=StoreSpec(found),
            key=place.key.serde,
            value=place.value.serde,
            in_flight_max=in_flight_max,
            ordered=ordered,
            timeout_ms=timeout_ms,
            on_error=on_error,
        )
    )
    return replace(place, node=found, value=returned(fn, of=_awaited))


def _awaited(declared: object) -> object:
    """Picks R out of Awaitable[R]; an `async def` is annotated with R itself."""
    if typing.get_origin(declared) in _AWAITABLES:
        return typing.get_args(declared)[-1]
    return declared
