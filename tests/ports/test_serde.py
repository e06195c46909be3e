"""The Serde port: one suite over every serde, with any values and any bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog.durations import moment
from streamlog.errors import SerdeError
from streamlog.record import Late, Windowed
from streamlog.serdes import AvroSerde, Serde, serde_for


@dataclass
class Reading:
    name: str
    value: float
    count: int = 0
    at: datetime | None = None
    tags: dict[str, list[int]] = field(default_factory=dict)
    blob: bytes = b""


class Model(BaseModel):
    name: str
    value: float
    at: datetime | None = None
    tags: list[int] = []


@dataclass
class Measured:
    name: str
    value: float
    count: int
    at: datetime | None
    blob: bytes


def serde_of(name: str) -> Serde[Any]:
    declared = SERDES[name][0]
    return cast("Serde[Any]", declared) if hasattr(declared, "dumps") else serde_for(declared)


texts = st.text(st.characters(codec="utf-8"), max_size=20)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
doubles = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
moments = st.integers(0, 4_000_000_000_000).map(moment)
readings = st.builds(
    Reading,
    name=texts,
    value=finite,
    count=longs,
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    tags=st.dictionaries(texts, st.lists(longs, max_size=3), max_size=3),
    blob=st.binary(max_size=20),
)
models = st.builds(
    Model,
    name=texts,
    value=finite,
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    tags=st.lists(longs, max_size=3),
)
schema = {
    "type": "record",
    "name": "Measured",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "value", "type": "double"},
        {"name": "count", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "blob", "type": "bytes"},
    ],
}
measured = st.builds(
    Measured,
    name=texts,
    value=finite,
    count=longs,
    at=st.none() | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - the zone is given
    blob=st.binary(max_size=20),
)
SERDES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "model": (Model, models),
    "models": (list[Model | str], st.lists(models | texts, max_size=2)),
    "late model": (Late[Model], st.builds(Late, models, st.timedeltas(), moments)),
    "avro": (AvroSerde(schema, Measured), measured),
    "registered avro": (AvroSerde.registered({7: schema}, Measured), measured),
    "str": (str, texts),
    "bytes": (bytes, st.binary(max_size=40)),
    "int": (int, longs),
    "float": (float, doubles),
    "bool": (bool, st.booleans()),
    "dataclass": (Reading, readings),
    "containers": (
        dict[str, list[Reading]],
        st.dictionaries(texts, st.lists(readings, max_size=2), max_size=2),
    ),
    "windowed": (Windowed[str], st.builds(Windowed, texts, moments, moments)),
    "late": (Late[Reading], st.builds(Late, readings, st.timedeltas(), moments)),
}
every_serde = pytest.mark.parametrize("name", SERDES)


@every_serde
@given(data=st.data())
def test_every_value_round_trips(name: str, data: st.DataObject) -> None:
    serde, value = serde_of(name), data.draw(SERDES[name][1])
    written = serde.dumps(value)
    assert isinstance(written, bytes)
    assert serde.loads(written) == value
    assert serde.dumps(serde.loads(written)) == written


@every_serde
@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_serde_error(name: str, data: bytes) -> None:
    serde = serde_of(name)
    try:
        value = serde.loads(data)
    except SerdeError as error:
        assert "the data is b" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(serde.dumps(value), bytes)


@every_serde
@given(data=st.data())
def test_damaged_bytes_give_a_value_or_a_serde_error(name: str, data: st.DataObject) -> None:
    serde = serde_of(name)
    damaged = bytearray(serde.dumps(data.draw(SERDES[name][1])))
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        serde.loads(cut)
    except SerdeError:
        return


@every_serde
def test_none_and_values_of_other_types_are_refused(name: str) -> None:
    serde = serde_of(name)
    for other in (None, object()):
        with pytest.raises(SerdeError, match="expected, got"):
            serde.dumps(other)
