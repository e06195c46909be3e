"""`explain` on equality with live workers whose inputs grow, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamlog import (
    App,
    Emit,
    JoinWindow,
    Processor,
    Record,
    Stream,
    Windowed,
    kv_store,
    punctuate,
    session,
    tumbling,
)
from streamlog.history.fed import FedEquality, Flow, Provided
from streamlog.history.plan import plan_history
from streamlog.processing.inputs.cut_input import TimeSpan

Numbers = Stream[str, int]
Make = Callable[[App, Numbers], Any]


class Keyed(Processor[str, int, str, int]):
    seen = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        self.ctx.timers.set(record.key, record.timestamp)

    def on_timer(self, key: str, at: object, tag: str) -> None:
        self.ctx.forward(key, 1)


class Reporting(Keyed):
    @punctuate(every="1s")
    def report(self, now: object) -> None:
        self.ctx.forward("all", 1)


class Dated(Keyed):
    def process(self, record: Record[str, int]) -> None:
        self.ctx.forward(record.key, max(self.ctx.stream_time.second for _ in range(1)))


def add(a: int, b: int) -> int:
    return a + b


def key_of(key: str, value: int) -> str:
    return f"{key}{value % 2}"


def flow_of(make: Make, partitions: int, key: Any = str) -> Flow:
    app = App("fed")
    numbers = app.topic("in", key=str, value=int, partitions=partitions)
    declared = make(app, app.stream(numbers))
    stream = declared if isinstance(declared, Stream) else declared.changes()
    stream.to(app.topic("out", key=key, value=int))
    counts = {name: spec.partitions or 1 for name, spec in app.topics.items()}
    plan = plan_history(app.topology(), counts, span=TimeSpan())
    flow = plan.fed["out"]
    assert (
        f"out equal to a live run whose inputs grow meanwhile: {flow.equality}," in plan.explain()
    )
    assert all(f"    as long as {each}" in plan.explain() for each in flow.provided)
    return flow


def pairs(app: App, numbers: Numbers, grace_ms: int = 40) -> Numbers:
    window = JoinWindow(before_ms=10, after_ms=20, grace_ms=grace_ms)
    others = app.stream(app.topic("others", key=str, value=int, partitions=3))
    return numbers.outer_join(others, lambda a, b: a or b or 0, within=window, name="pairs")


def counts_of_sums(_: App, numbers: Numbers) -> Any:
    """Count behind two repartitions."""
    sums = numbers.repartition(name="once").group_by_key().reduce(add, name="sums").changes()
    again = sums.map_values(abs).repartition(name="twice", partitions=2)
    return again.group_by_key().windowed(tumbling("1s", grace="2s")).count(name="n")


def alarms_twice(_: App, numbers: Numbers) -> Any:
    return numbers.repartition(name="once").repartition(name="twice").process(Keyed, name="keyed")


def rekeyed(numbers: Numbers) -> Any:
    return numbers.rekey(key_of, name="again").group_by_key()


CASES: dict[str, tuple[Make, FedEquality]] = {
    "passing": (lambda _, s: s.filter(lambda _, v: v > 0), "K"),
    "a changed key": (lambda _, s: s.rekey(key_of, name="again"), "M"),
    "counts of a key's own": (lambda _, s: s.group_by_key().count(name="n"), "K"),
    "counts behind a changed key": (lambda _, s: rekeyed(s).count(name="n"), "T"),
    "functions behind a changed key": (lambda _, s: rekeyed(s).reduce(add, name="n"), "A"),
    "functions behind kept keys": (
        lambda _, s: s.repartition(name="kept").group_by_key().reduce(add, name="n"),
        "K",
    ),
    "session updates": (
        lambda _, s: rekeyed(s).windowed(session("1s")).emit(Emit.UPDATE).count(name="n"),
        "T",
    ),
    "timers of kept keys": (
        lambda _, s: s.repartition(name="kept").process(Keyed, name="keyed"),
        "K",
    ),
    "timers of changed keys": (
        lambda _, s: s.rekey(key_of, name="again").process(Keyed, name="keyed"),
        "A",
    ),
    "stream time": (lambda _, s: s.repartition(name="kept").process(Dated, name="keyed"), "A"),
    "punctuations": (
        lambda _, s: s.repartition(name="kept").process(Reporting, name="keyed"),
        "A",
    ),
    "foreign keys": (
        lambda app, _: app.table(app.topic("l", key=str, value=int, partitions=3)).join_on(
            app.table(app.topic("r", key=str, value=int, partitions=3)), str, add, name="n"
        ),
        "T",
    ),
    "a table by another key": (
        lambda app, _: (
            app.table(app.topic("l", key=str, value=int, partitions=3))
            .group_by(lambda k, v: (f"{v}", v), name="by")
            .count(name="n")
        ),
        "A",
    ),
    "a table's rows": (
        lambda app, s: s.join(
            app.table(app.topic("r", key=str, value=int, partitions=3)), add, name="n"
        ),
        "A",
    ),
    "timers behind several sources twice": (alarms_twice, "A"),
    "another timestamp": (
        lambda _, s: s.repartition(name="kept").set_timestamp(lambda v: v, name="retimed"),
        "K",
    ),
    "dedupe behind a changed key": (
        lambda _, s: (
            s.rekey(key_of, name="again")
            .repartition(name="by-key")
            .dedupe(lambda v: v, within="1s", name="once")
        ),
        "A",
    ),
}


HAS_MORE_SOURCES = {"foreign keys", "a table's rows", "a table by another key"}


def _key(name: str) -> Any:
    return Windowed[str] if "session" in name else str


@pytest.mark.parametrize("name", CASES)
def test_each_operator_has_its_equality_class(name: str) -> None:
    make, expected = CASES[name]
    found = flow_of(make, 3, _key(name))
    assert found.equality == expected, found.why
    assert found.why, "an output that is not S says why"


@pytest.mark.parametrize("name", [n for n in CASES if n not in HAS_MORE_SOURCES])
def test_a_single_partition_keeps_everything_equal(name: str) -> None:
    found = flow_of(CASES[name][0], 1, _key(name))
    assert (found.equality, found.why, found.provided) == ("S", "", ())


def test_joined_pairs_are_equal_if_no_stream_lags_beyond_the_grace() -> None:
    found = flow_of(pairs, 3)
    assert found.equality == "M"
    assert found.provided == (Provided("pairs", 40, "all"),)


def test_windows_behind_a_join_add_a_condition_per_source() -> None:
    def counted(app: App, numbers: Numbers) -> Any:
        windowed = pairs(app, numbers).group_by_key().windowed(tumbling("1s", grace="3s"))
        return windowed.emit(Emit.CLOSE).count(name="n")

    found = flow_of(counted, 3, Windowed[str])
    assert found.provided == (Provided("pairs", 40, "all"), Provided("n", 3_000, "source"))


def test_pairs_and_unmatched_records_are_two_sources_of_a_key() -> None:
    def itself(_: App, numbers: Numbers) -> Any:
        window = JoinWindow(before_ms=10, after_ms=20, grace_ms=40)
        joined = numbers.outer_join(numbers, lambda a, b: a or b or 0, within=window, name="pairs")
        return joined.repartition(name="again")

    assert flow_of(itself, 3).equality == "M"


def test_a_second_repartition_has_one_time_per_task() -> None:
    found = flow_of(counts_of_sums, 3, Windowed[str])
    assert found.equality == "K"
    assert found.provided == (Provided("n", 2_000, "source"),)


def test_timers_of_kept_keys_depend_on_filtered_records() -> None:
    found = flow_of(CASES["timers of kept keys"][0], 3)
    assert found.provided == (Provided("keyed", 0, "left out"),)


def test_final_window_counts_of_one_task_are_equal() -> None:
    def windows(_: App, numbers: Numbers) -> Any:
        kept = numbers.rekey(key_of, name="a").repartition(name="one", partitions=1)
        return kept.group_by_key().windowed(tumbling("1s")).count(name="n")

    found = flow_of(windows, 3, Windowed[str])
    assert found.equality == "S"
    # Filtered records advance the turn of their source, and so close windows.
    assert found.provided == (Provided("n", 0, "left out"),)
