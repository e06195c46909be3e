"""Where `dedupe` puts its node: what identifies a record, and how that is written.

Rule of the file: an identity of a type that is not known is packed with its type (`shapes`), so
that nothing is taken for equal that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from streamlog.dsl.fields import bare, field_type, getter
from streamlog.dsl.place import Place, partitioned
from streamlog.dsl.shapes import declared_shape, returned
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import Dedupe, ErrorPolicy, check_name


def deduped(
    place: Place,
    by: Callable[[Any], object] | str,
    *,
    within: Dur,
    name: str,
    on_error: ErrorPolicy | None,
) -> Place:
    """The place behind a node that leaves out what has a twin before it.

    Raises:
        TopologyError: see `Stream.dedupe`.
    """
    check_name("dedupe", name)
    within_ms = duration_ms(within)
    if within_ms == 0:
        raise TopologyError(f"{name!r}: within must be longer than 0 ms, such as '10m'")
    if isinstance(by, str):
        shape = declared_shape(bare(field_type(place.value.known, by, f"dedupe {name!r}")))
        found = getter(place.value.known, by)
        by = attrgetter(found) if isinstance(found, str) else found
    else:
        shape = returned(by, place.value)
    there = partitioned(place, name)
    there.builder.add(
        Dedupe(
            name=name,
            parents=(there.node,),
            by=by,
            identity=shape.serde,
            key=there.key.serde,
            store=StoreSpec(name),
            within_ms=within_ms,
            on_error=on_error,
        )
    )
    return replace(there, node=name)
