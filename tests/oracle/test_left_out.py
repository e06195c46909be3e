"""Records that are left out before an operator do not affect it: a law, by random histories.

A history runs twice: as it is, and with garbage between its records. Garbage is records that a
source refuses (unreadable values, invalid timestamps), or that a filter, a failing function or a
missing key leaves out. Output and late records must be equal, for every operator that keeps time:
record by record, all at once, with restarts, and behind a repartition.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import (
    App,
    Emit,
    JoinWindow,
    Processor,
    Windowed,
    calendar,
    count_window,
    hopping,
    kv_store,
    on_error,
    session,
    sliding,
    tumbling,
)
from streamlog.durations import TIMESTAMP_MS_MAX, when_ms
from streamlog.serdes import serde_for

FAR_MS = when_ms("2099-01-01T00:00:00Z")
FILTERED, FAILING = -1, -2
"""Values that a filter or a failing function leaves out."""
EXAMPLES = 100 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 10

dumped = serde_for(int).dumps


class Raw(NamedTuple):
    """A record as a producer writes it."""

    topic: str
    key: bytes | None
    value: bytes
    timestamp_ms: int


class Streams(NamedTuple):
    """The streams to which an operator is applied."""

    app: App
    stream: Any
    """The remaining records of the first topic."""
    other: Any
    """The remaining records of the second topic."""
    other_topic: Any


Operator: TypeAlias = Callable[[Streams], Any]


class Silence(Processor[str, int, str, str]):
    """A processor with a timer for each key, and a store whose rows expire."""

    seen = kv_store(str, int, ttl="20ms")

    def process(self, record: Any) -> None:
        self.ctx.forward(record.key, f"{self.seen.get(record.key)}")
        self.seen.put(record.key, record.value)
        self.ctx.timers.set(record.key, record.timestamp + timedelta(milliseconds=7), "quiet")

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, f"{tag} {when_ms(at)} {when_ms(self.ctx.stream_time)}")


def windowed(windows: Any, emit: Emit) -> Operator:
    def build(streams: Streams) -> Any:
        counted = streams.stream.group_by_key().windowed(windows).emit(emit).count(name="n")
        return counted.changes().map(flatten_key)

    return build


def flatten_key(key: Windowed[str], value: object) -> tuple[str, str]:
    return key.key, f"{when_ms(key.start)}-{when_ms(key.end)} {value}"


def join_streams(how: str, **window: Any) -> Operator:
    def build(streams: Streams) -> Any:
        within = JoinWindow(**window)
        return getattr(streams.stream, how)(
            streams.other, lambda a, b: f"{a}+{b}", within=within, name="j"
        )

    return build


def as_of(streams: Streams) -> Any:
    table = streams.app.table(streams.other_topic, history="30ms")
    return streams.stream.left_join(
        table, lambda a, b: f"{a}+{b}", as_of=True, grace="5ms", name="j"
    )


def suppressed(streams: Streams) -> Any:
    windows = streams.stream.group_by_key().windowed(tumbling("10ms", grace="3ms"))
    final = windows.emit(Emit.UPDATE).count(name="n").suppress(until="closed", name="final")
    return final.changes().map(flatten_key)


def expiring(streams: Streams) -> Any:
    counted = streams.stream.group_by_key().count(name="n", ttl="15ms")
    return counted.changes().map_values(str)


def deduped(streams: Streams) -> Any:
    return streams.stream.dedupe(lambda v: v, within="10ms", name="once").map_values(str)


def behind_repartition(operator: Operator) -> Operator:
    """Return the operator behind a repartition."""

    def build(streams: Streams) -> Any:
        stream, other = (each.rekey(lambda k, _: k) for each in (streams.stream, streams.other))
        return operator(streams._replace(stream=stream, other=other))

    return build


GRACE = {"grace": "3ms"}
WINDOWS = {
    "tumbling": tumbling("10ms", **GRACE),
    "hopping": hopping("10ms", "4ms", **GRACE),
    "sliding": sliding("8ms", **GRACE),
    "session": session("5ms", **GRACE),
    "calendar": calendar("day", tz="Europe/Berlin"),
}
ALONE: dict[str, Operator] = {
    **{
        f"{name} {emit.name}": windowed(windows, emit)
        for name, windows in WINDOWS.items()
        for emit in (Emit.UPDATE, Emit.CLOSE, Emit.early("6ms"))
    },
    "count window": windowed(count_window(3, timeout="9ms"), Emit.CLOSE),
    "suppress": suppressed,
    "expiring": expiring,
}
WITHOUT_KEYS: dict[str, Operator] = {
    "processor": lambda streams: streams.stream.process(Silence, name="silence"),
    "dedupe": deduped,
}
"""Operators that take records without a key, too."""
TWO: dict[str, Operator] = {
    "join": join_streams("join", before_ms=4, after_ms=9, grace_ms=2),
    "left join": join_streams("left_join", before_ms=-2, after_ms=9, grace_ms=2),
    "outer join": join_streams("outer_join", before_ms=9, after_ms=-3, grace_ms=0),
    "as of": as_of,
}


def app_of(operator: Operator) -> App:
    """Build the operator behind a filter and a failing function on two topics."""

    def check(value: int) -> int:
        if value == FAILING:
            raise ValueError("a failing function")
        return value

    app = App("law", on_error=on_error.skip(log=False))
    first, second = (
        app.topic(name, key=str, value=int, partitions=1) for name in ("first", "second")
    )
    streams = [
        app.stream(topic).filter(lambda _, v: v != FILTERED).map_values(check)
        for topic in (first, second)
    ]
    build = operator(Streams(app, *streams, second))
    build.to(app.topic("out", key=str, value=str, partitions=1))
    return app


def run(operator: Operator, history: list[Raw], rng: Random | None) -> tuple[list[Any], int]:
    """Return output and late count; random cuts and restarts, or record by record (no rng)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        app = app_of(operator)
        with app.test() as t:
            for each in history:
                t.topic(each.topic).append(
                    each.value, key=each.key, timestamp_ms=each.timestamp_ms, partition=0
                )
                if rng is None or rng.random() < 0.2:
                    t.settle()
                if rng is not None and rng.random() < 0.1:
                    t.settle()
                    t.restart()
            t.settle()
            rows = [
                (record.key, record.value, record.timestamp_ms)
                for _, record in t.topic("out").arrivals
            ]
            late = sum(count for (_, why), count in t.drops.items() if why == "late")
            return rows, late


records = st.builds(
    Raw,
    st.sampled_from(["first", "first", "second"]),
    st.sampled_from([b"a", b"b"]),
    st.integers(0, 9).map(dumped),
    st.integers(0, 60),
)
topics = st.sampled_from(["first", "second"])
any_time = st.sampled_from([0, 30, 1_000, FAR_MS, TIMESTAMP_MS_MAX])
refused = st.one_of(
    st.builds(Raw, topics, st.just(b"a"), st.just(b"no number"), any_time),
    st.builds(
        Raw,
        topics,
        st.just(b"a"),
        st.just(dumped(1)),
        st.sampled_from([-1, TIMESTAMP_MS_MAX + 1, FAR_MS * 1_000, 2**62, 2**63 - 1]),
    ),
)
unkeyed = st.builds(Raw, topics, st.none(), st.just(dumped(1)), any_time)
filtered_out = st.builds(
    Raw, topics, st.just(b"a"), st.sampled_from([FILTERED, FAILING]).map(dumped), any_time
)


@st.composite
def histories(
    draw: Any,
    garbage: st.SearchStrategy[Raw],
) -> tuple[list[Raw], list[Raw]]:
    """Draw a history with a late end, and a copy with garbage in it."""
    clean = draw(st.lists(records, max_size=16))
    clean += [Raw(topic, b"end", dumped(0), 500) for topic in ("first", "second")]
    dirty = list(clean)
    for each in draw(st.lists(garbage, min_size=1, max_size=5)):
        dirty.insert(draw(st.integers(0, len(dirty))), each)
    return clean, dirty


def check(operator: Operator, garbage: st.SearchStrategy[Raw], *, cut: bool) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(histories(garbage), st.integers(0, 1_000))
    def holds(pair: tuple[list[Raw], list[Raw]], seed: int) -> None:
        clean, dirty = pair
        wanted = run(operator, clean, None)
        assert run(operator, dirty, Random(seed) if cut else None) == wanted

    holds()


@pytest.mark.parametrize("through", ["direct", "repartition"])
@pytest.mark.parametrize("name", ALONE)
def test_records_left_out_before_an_operator_do_not_affect_it(name: str, through: str) -> None:
    operator = ALONE[name] if through == "direct" else behind_repartition(ALONE[name])
    # Deletions of expired rows of several keys come at the end of a batch.
    check(operator, st.one_of(refused, filtered_out, unkeyed), cut=name != "expiring")


@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_records_left_out_do_not_affect_keyless_operators(name: str) -> None:
    check(WITHOUT_KEYS[name], st.one_of(refused, filtered_out), cut=True)


@pytest.mark.parametrize("through", ["direct", "repartition"])
@pytest.mark.parametrize("name", TWO)
def test_records_left_out_do_not_affect_joins(name: str, through: str) -> None:
    operator = TWO[name] if through == "direct" else behind_repartition(TWO[name])
    left_out = refused  # The table of an as-of join reads the topic directly.
    if name != "as of":
        left_out |= filtered_out
    if name == "join":
        left_out |= unkeyed  # Outer joins emit them unmatched.
    check(operator, left_out, cut=False)


@pytest.mark.parametrize("name", TWO)
def test_refused_records_do_not_change_the_order_of_two_inputs(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(histories(refused), st.integers(0, 1_000))
    def holds(pair: tuple[list[Raw], list[Raw]], seed: int) -> None:
        clean, dirty = pair
        at_once = Random(seed)
        at_once.random = lambda: 1.0  # type: ignore[method-assign]
        assert run(TWO[name], dirty, at_once) == run(TWO[name], clean, at_once)

    holds()


KEYED = {name: each for name, each in ALONE.items() if name != "suppress"}
TABLES: dict[str, Operator] = {
    "stream and table": lambda streams: streams.stream.join(
        streams.app.table(streams.other_topic), lambda a, b: f"{a}+{b}", name="j"
    ),
    "to_table": lambda streams: streams.stream.to_table(name="n").map_values(str).changes(),
}


@pytest.mark.parametrize("name", [*KEYED, "join", "stream and table", "to_table"])
def test_dropped_records_without_key_or_value_are_counted(name: str) -> None:
    app = App("law")
    topics = [app.topic(each, key=str, value=int, partitions=1) for each in ("first", "second")]
    first, second = map(app.stream, topics)
    operator = {**KEYED, **TWO, **TABLES}[name]
    operator(Streams(app, first, second, topics[1])).peek(lambda _: None)
    node = "j" if name in {"join", "stream and table"} else "n"
    with app.test() as t:
        for key, value in [(None, 1), ("a", None), (None, 2), ("a", None), ("a", None)]:
            data = None if value is None else dumped(value)
            raw = None if key is None else key.encode()
            t.topic("first").append(data, key=raw, timestamp_ms=1, partition=0)
        t.settle()
        has_rows = name == "to_table"  # A record without a value deletes a row of a table.
        assert t.drops[node, "null key"] == 2
        assert t.drops.get((node, "null value"), 0) == (0 if has_rows else 3)
