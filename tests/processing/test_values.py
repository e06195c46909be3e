"""Every type in every column of `agg`: it round-trips through its bytes, or it is refused.

The expected values come from loops over plain Python numbers, fractions and decimals, without
states, windows or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog import App, Emit, Table, agg, count_window, hopping, on_error, session, tumbling
from streamlog.errors import ProcessingError, TopologyError
from streamlog.nodes.stream_nodes import Aggregator


class Color(Enum):
    RED = "r"
    BLUE = "b"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    A = "a"
    B = "b"


@dataclass
class Plain:
    n: int
    f: float = 1.0


@dataclass(order=True)
class Ordered:
    n: int


class Fast(msgspec.Struct):
    n: int


class Ranked(msgspec.Struct, order=True):
    n: int


class Typed(TypedDict):
    n: int


class Named(NamedTuple):
    n: int
    s: str


class Model(BaseModel):
    n: int


CET = timezone(timedelta(hours=1))
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
LONG = Decimal("12345678901234567890123456789012345678.9")
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, [3, 2**63, 2**63, -(2**80), 10**30, 0]),
    "float": (float, [1.5, -0.0, 1e100, -5.0]),
    "bool": (bool, [True, False, True]),
    "str": (str, ["b", "a", "ü"]),
    "bytes": (bytes, [b"\xff", b"\0", b"z"]),
    "Decimal": (Decimal, [Decimal("1.10"), LONG, Decimal("-0.05")]),
    "aware": (datetime, [NOON, datetime(2019, 1, 1, tzinfo=CET)]),
    "naive": (datetime, [NOON.replace(tzinfo=None), NOON.replace(tzinfo=None, year=1)]),
    "date": (date, [date(2020, 1, 1), date(2019, 1, 1)]),
    "time": (time, [time(3), time(2, 0, 0, 5)]),
    "timedelta": (timedelta, [timedelta(1), timedelta(-1, 5, 7)]),
    "UUID": (UUID, [UUID(int=5), UUID(int=3), UUID(int=2**100)]),
    "Enum": (Color, [Color.RED, Color.BLUE]),
    "IntEnum": (Level, [Level.HIGH, Level.LOW]),
    "StrEnum": (Word, [Word.B, Word.A]),
    "Literal": (Literal["x", "y"], ["y", "x"]),
    "int | None": (int | None, [3, None, 2**64]),
    "Decimal | None": (Decimal | None, [Decimal("1.1"), None]),
    "dataclass": (Plain, [Plain(2**64, -0.0), Plain(3)]),
    "ordered": (Ordered, [Ordered(2), Ordered(2**70)]),
    "Struct": (Fast, [Fast(2**70), Fast(1)]),
    "ordered Struct": (Ranked, [Ranked(2**70), Ranked(1)]),
    "TypedDict": (Typed, [{"n": 2**70}, {"n": 1}]),
    "NamedTuple": (Named, [Named(2**70, "a"), Named(1, "b")]),
    "list": (list[int], [[2**70], [1, 2]]),
    "dict": (dict[str, float], [{"a": 1.0}, {"b": 2.0}]),
    "dict of int": (dict[int, int], [{1: 2**70}, {2: 1}]),
    "set": (set[int], [{1, 2**70}, {3}]),
    "frozenset": (frozenset[str], [frozenset("a"), frozenset("bc")]),
    "tuple": (tuple[int, str], [(2**70, "b"), (1, "a")]),
    "Any": (Any, [1, 2**70, -5]),
    "int | float": (int | float, [1, 2**70, 1.5]),
    "str | int": (str | int, ["a", 2**70]),
    "model": (Model, [Model(n=2**70), Model(n=1)]),
}


def columns(kind: Any) -> dict[str, tuple[Aggregator[Any, Any], Any]]:
    """Return columns over field `x` of this type, ordered by `o`, with their result types."""
    one, several = kind, list[kind]
    return {
        "count": (agg.count(), int),
        "sum": (agg.sum("x"), one),
        "sum by a function": (agg.sum(lambda v: v.x), Decimal if kind is Decimal else float),
        "mean": (agg.mean("x"), float),
        "mean as Decimal": (agg.mean("x"), Decimal),
        "var": (agg.var("x"), float),
        "quantile": (agg.quantile("x", 0.5), float),
        "min": (agg.min("x"), one),
        "max": (agg.max("x"), one),
        "first": (agg.first("x"), one),
        "last": (agg.last("x"), one),
        "first by": (agg.first("x", by="o"), one),
        "last by it": (agg.last("o", by="x"), int),
        "last by a function": (agg.last("o", by=lambda v: v.x), int),
        "collect": (agg.collect("x"), several),
        "collect by a function": (agg.collect(lambda v: v.x), several),
        "top": (agg.top(2, "x"), several),
        "top by": (agg.top(2, "x", by="o"), several),
        "top by functions": (agg.top(2, lambda v: v.x, by=lambda v: v.o), several),
        "top by it": (agg.top(2, "o", by="x"), list[int]),
        "distinct": (agg.distinct("x"), int),
    }


def class_with(kind: Any, **fields: Any) -> Any:
    """Make a class with these fields that can be written as JSON."""
    if kind is Model:
        return type("It", (BaseModel,), {"__annotations__": fields, "__module__": __name__})
    return make_dataclass("It", list(fields.items()))


def outcome(kind: Any, values: list[Any], column: Any, into: Any, restart: bool) -> Any:
    """Return the output and the table's rows, or the offset of the failure."""
    value = class_with(kind, x=kind, o=int)
    row = class_with(kind if into not in (int, float, Decimal, list[int]) else None, r=into)
    app = App("t")
    topic = app.topic("in", key=str, value=value, partitions=1)
    out = app.topic("out", key=str, value=row, partitions=1)
    table = app.stream(topic).group_by_key().agg(row, name="it", r=column)
    table.changes().to(out)
    with app.test() as t:
        try:
            for at, x in enumerate(values):
                t.input(topic).send(value(x=x, o=at), key="k")
                if restart:
                    t.restart()
            t.restart()
        except ProcessingError as error:
            return error.offset
        return [each.r for each in t.output(out).values], [
            each.r for each in t.table(table).values()
        ]


@pytest.mark.parametrize("name", TYPES)
def test_a_column_keeps_a_type_or_refuses_it_by_name(name: str) -> None:
    kind, values = TYPES[name]
    worked_columns = set()
    for column_name, (column, into) in columns(kind).items():
        try:
            steady = outcome(kind, values, column, into, restart=False)
        except TopologyError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert refused.startswith("column 'r' of 'it'")
            continue
        assert outcome(kind, values, column, into, restart=True) == steady, column_name
        if isinstance(steady, tuple):
            worked_columns.add(column_name)
        else:
            # The type of a function's result is unknown before the call.
            assert "function" in column_name, column_name
            assert steady >= 0, f"{column_name}: without coordinates"
    assert {
        "count",
        "first",
        "last",
        "first by",
        "collect",
        "top by",
        "top by functions",
    } <= worked_columns


whole = st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from([2**63, -(2**63) - 1, 2**64])
floats = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, 1e308])
exact = st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.sampled_from([LONG])
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "no windows": lambda grouped: grouped,
    "commits": lambda grouped: grouped.emit(Emit.COMMIT),
    "tumbling": lambda grouped: grouped.windowed(tumbling("1h")).emit(Emit.UPDATE),
    "hopping": lambda grouped: grouped.windowed(hopping("1h", "1h")).emit(Emit.UPDATE),
    "session": lambda grouped: grouped.windowed(session("1h")),
    "closed": lambda grouped: grouped.windowed(tumbling("1h")),
    "counted": lambda grouped: grouped.windowed(count_window(99)),
}


def fold(kind: type, values: Sequence[Any]) -> dict[str, Any]:
    """Compute the expected row by definition."""
    is_nan = any(value != value for value in values)  # noqa: PLR0124
    found: dict[str, Any] = {"first": values[0], "last": values[-1], "every": [*values]}
    if kind is float:
        total = 0.0
        for value in values:
            total += value
        found |= {"total": total, "mean": total / len(values)}
    else:
        total = sum(map(Fraction, values))
        found |= {"total": total, "mean": float(total / len(values))}
    found["least"] = math.nan if is_nan else min(values)
    found["most"] = math.nan if is_nan else max(values)
    return found


def table_of(kind: Any, windows: str, values: Sequence[Any], restart: bool) -> dict[str, Any]:
    """Return the table's row."""
    row = make_dataclass(
        "Row",
        [(name, kind) for name in ("total", "least", "most", "first", "last")]
        + [("mean", float), ("every", list[kind])],
    )
    app = App("t")
    topic = app.topic("in", key=str, value=int, partitions=1)
    given_ = app.stream(topic).map_values(lambda at: values[at])
    table = WINDOWS[windows](given_.group_by_key()).agg(
        row,
        name="it",
        total=agg.sum(lambda v: v),
        least=agg.min(lambda v: v),
        most=agg.max(lambda v: v),
        first=agg.first(lambda v: v),
        last=agg.last(lambda v: v),
        mean=agg.mean(lambda v: v),
        every=agg.collect(lambda v: v),
    )
    with app.test() as t:
        for at in range(len(values)):
            t.input(topic).send(at, key="k", at=at)
            if restart:
                t.restart()
        t.restart()
        (found,) = t.table(table).values()
    return dict(vars(found))


@settings(max_examples=40)
@given(
    case=st.tuples(st.just(int), st.lists(whole, min_size=1, max_size=8))
    | st.tuples(st.just(float), st.lists(floats, min_size=1, max_size=8))
    | st.tuples(st.just(Decimal), st.lists(exact, min_size=1, max_size=8)),
    windows=st.sampled_from([*WINDOWS]),
)
@example(case=(int, [2**63 - 1, 1]), windows="tumbling")
@example(case=(int, [-(2**63), -1, 2**64]), windows="closed")
@example(case=(float, [1.0, math.nan, 0.0]), windows="session")
@example(case=(Decimal, [LONG, Decimal("0.001")]), windows="no windows")
def test_aggregated_numbers_equal_plain_python_across_restarts(
    case: tuple[Any, list[Any]], windows: str
) -> None:
    kind, values = case
    steady = table_of(kind, windows, values, restart=False)
    # NaN equals nothing, and -0.0 equals 0.0: compare their representations.
    assert repr(table_of(kind, windows, values, restart=True)) == repr(steady)
    wanted = fold(kind, values)
    if kind is Decimal:
        assert Fraction(steady["total"]) == wanted["total"]
        assert steady["mean"] == pytest.approx(wanted["mean"], rel=1e-15, abs=0)
    else:
        # The sign of a zero is not promised: a sum that begins with 0 loses that of -0.0.
        assert repr(steady["mean"] + 0) == repr(wanted["mean"] + 0)
        assert repr(steady["total"] + 0) == repr(kind(wanted["total"]) + 0)
    for name in ("least", "most"):
        assert steady[name] == wanted[name] or (
            math.isnan(steady[name]) and math.isnan(wanted[name])
        )
    for name in ("first", "last", "every"):
        assert repr(steady[name]) == repr(wanted[name])


@given(st.lists(whole, min_size=1, max_size=8))
def test_a_user_s_sum_can_exceed_64_bits(values: list[int]) -> None:
    app = App("t")
    texts = app.topic("in", key=str, value=str, partitions=1)

    def total(state: int, text: str) -> int:
        return state + int(text)

    table = app.stream(texts).group_by_key().aggregate(int, total, name="total")
    with app.test() as t:
        for value in values:
            t.input(texts).send(str(value), key="k")
            t.restart()
        assert dict(t.table(table)) == {"k": sum(values)}


@dataclass
class Reading:
    celsius: float


def reading(celsius: float) -> Reading:
    return Reading(celsius)


async def later(found: Reading) -> Reading:
    return found


def newest(_: Reading, then: Reading) -> Reading:
    return then


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "repartition": lambda s: s.group_by(lambda k, v: k, name="by").count(name="it"),
    "reduce": lambda s: s.group_by_key().reduce(newest, name="it"),
    "closed": lambda s: s.group_by_key().windowed(tumbling("1h")).reduce(newest, name="it"),
    "session": lambda s: s.group_by_key().windowed(session("1h")).reduce(newest, name="it"),
    "counted": lambda s: s.group_by_key().windowed(count_window(9)).reduce(newest, name="it"),
    "table": lambda s: s.to_table(name="it"),
    "suppressed": lambda s: (
        s.group_by_key()
        .agg(Reading, name="it", celsius=agg.last("celsius"))
        .suppress(within="1h", name="later")
    ),
    "join of streams": lambda s: s.join(s, newest, within="1h", name="both"),
    "join of a table": lambda s: s.join(s.to_table(name="it"), newest),
    "awaited": lambda s: s.amap_values(later, name="awaited"),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_number_that_json_lacks_fails_its_record(operator: str, bad: float) -> None:
    def run(policy: Any) -> tuple[Any, dict[tuple[str, str], int]]:
        app = App("t", on_error=policy)
        topic = app.topic("in", key=str, value=float, partitions=1)
        found = OPERATORS[operator](app.stream(topic).map_values(reading))
        keeps = isinstance(found, Table) and operator != "suppressed"
        with app.test() as t:
            for celsius in (1.5, bad):
                t.input(topic).send(celsius, key="k", at=0)
            t.restart()
            t.input(topic).send(2.5, key="k", at=0)
            t.restart()
            return list(t.table(found).values()) if keeps else [], t.drops

    rows, drops = run(on_error.skip(log=False))
    assert {reason for _, reason in drops} == {"error"}
    assert rows in ([], [2] if operator == "repartition" else [Reading(2.5)])
    with pytest.raises(ProcessingError, match=r"offset 1 of in-0: .*`\$.celsius` is "):
        run(on_error.FAIL)
