"""What several streams of the same keys come to that are folded into one aggregate.

Each stream comes through a `Port`, which says of its values which function is to add them; behind
the merge of all ports stands the aggregation that any grouped stream has, windowed or not. Rule of
the file: nobody but the aggregation sees those pairs: what is late leaves as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamlog.dsl.place import Place, check_same_keys, partitioned, same_app
from streamlog.dsl.shapes import Shape, returned
from streamlog.errors import SerdeError, TopologyError
from streamlog.record import Late, Record
from streamlog.serdes import Serde, form_of
from streamlog.topology import Merge, Port, TopicSpec, check_name

INPUTS_MAX = 255
"""Streams that go into one aggregate: their numbers are written in one byte."""

Numbered = tuple[int, Any]
"""The number of an input, and a value of it."""


@dataclass(frozen=True, slots=True)
class Into:
    """A stream, and how its values are added."""

    place: Place
    add: Callable[[Any, Any], Any]


class NumberedSerde:
    """Values of several streams: a byte with the stream's number, then the value as it is there."""

    def __init__(self, serdes: Sequence[Serde[Any]]) -> None:
        self._serdes = tuple(serdes)

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"cogrouped": [form_of(serde) for serde in self._serdes]}

    def dumps(self, obj: Numbered) -> bytes:
        """The number and the value."""
        number, value = obj
        return bytes((number,)) + self._serdes[number].dumps(value)

    def loads(self, data: bytes) -> Numbered:
        """What `dumps` was given.

        Raises:
            SerdeError: it was not written here.
        """
        if not data or data[0] >= len(self._serdes):
            raise SerdeError(f"not a value of one of {len(self._serdes)} streams: {data[:16]!r}")
        return data[0], self._serdes[data[0]].loads(data[1:])


class LateSerde:
    """Late values without their numbers, for the topic that takes them."""

    def __init__(self, inner: Serde[Any]) -> None:
        self._inner = inner

    @property
    def form(self) -> object:
        """That of the topic."""
        return form_of(self._inner)

    def dumps(self, obj: Late[Any]) -> bytes:
        """As the topic has it."""
        return self._inner.dumps(replace(obj, value=obj.value[1]))

    def loads(self, data: bytes) -> Late[Any]:
        """As the topic has it."""
        late: Late[Any] = self._inner.loads(data)
        return late


def joined_inputs(inputs: Sequence[Into], name: str) -> Place:
    """All streams in one place, as the aggregation of this name takes them.

    Raises:
        TopologyError: their keys are not written alike, or they are of several apps.
    """
    check_name("a table", name)
    if len(inputs) > INPUTS_MAX:
        raise TopologyError(f"{name!r} has {len(inputs)} streams: there can be {INPUTS_MAX}")
    first = inputs[0].place
    places: list[Place] = []
    for number, into in enumerate(inputs):
        same_app(first, into.place, "cogroup")
        place = partitioned(into.place, f"{name}-{number + 1}", first.key)
        check_same_keys(place, places[0] if places else place, name)
        places.append(place)
    builder, ports = first.builder, []
    for number, place in enumerate(places):
        port = Port(name=f"{name}/input-{number + 1}", parents=(place.node,), number=number)
        builder.add(port)
        ports.append(port.name)
    builder.add(Merge(name=f"{name}/inputs", parents=tuple(ports)))
    value = Shape(given=NumberedSerde([place.value.serde_if_needed for place in places]))
    return Place(builder, f"{name}/inputs", places[0].key, value)


def adding(inputs: Sequence[Into]) -> Callable[[Any, Numbered], Any]:
    """Adds a value by the function of its stream; annotated as the first of them that is."""
    adds = tuple(into.add for into in inputs)

    def add(state: Any, numbered: Numbered) -> Any:  # noqa: ANN401 - a state
        number, value = numbered
        return adds[number](state, value)

    shapes = [shape for into in adds if (shape := returned(into)).is_known]
    add.__annotations__ = {"return": shapes[0].declared} if shapes else {}
    return add


def late_as_it_came(
    late: TopicSpec | Callable[[Any], object] | None,
) -> TopicSpec | Callable[[Any], object] | None:
    """Where late records go, without the number of their stream."""
    if late is None:
        return None
    if isinstance(late, TopicSpec):
        return replace(late, value=LateSerde(late.value))

    def told(record: Record[Any, Any]) -> object:
        return late(record.replace(value=record.value[1]))

    return told
