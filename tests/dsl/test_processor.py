"""Users' processors on the test driver, and declarations that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from streamlog import (
    App,
    ErrorPolicy,
    ProcessingError,
    Processor,
    Record,
    Topic,
    kv_store,
    on_error,
)
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import difference
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, SerdeError, TopologyError, UsageError
from streamlog.nodes.stream_nodes import RepartitionSink


@dataclass
class Alarm:
    device: str
    readings: int


class Steps(Processor[str, int, str, int]):
    """Forwards the difference of each value to the one before it."""

    last = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        before = self.last.get(record.key)
        self.last.put(record.key, record.value)
        if before is not None:
            self.ctx.forward(record.key, record.value - before)


Numbers = Topic[str, int]


def app_of(kind: type[Processor[str, int, str, int]]) -> tuple[App, Numbers, Numbers]:
    app = App("steps")
    numbers = app.topic("numbers", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    app.stream(numbers).process(kind, name="steps").to(out)
    return app, numbers, out


def test_processor_state_is_per_key_and_survives_a_restart() -> None:
    app, numbers, out = app_of(Steps)
    with app.test(partitions=3) as t:
        for key, value in (("a", 1), ("b", 10), ("a", 5)):
            t.input(numbers).send(value, key=key)
        t.restart()
        t.input(numbers).send(7, key="a")
        t.input(numbers).send(30, key="b")
        assert [(r.key, r.value) for r in t.output(out).records] == [("a", 4), ("a", 2), ("b", 20)]


def test_a_forwarded_record_has_the_input_s_time_by_default() -> None:
    class Twice(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            assert record == self.ctx.record
            self.ctx.forward(record.key, record.value)
            self.ctx.forward("later", record.value, timestamp=when_ms(record.timestamp) + 5)

    app, numbers, out = app_of(Twice)
    with app.test() as t:
        t.input(numbers).send(1, key="a", at=100)
        rows = [(r.key, r.value, when_ms(r.timestamp)) for r in t.output(out).records]
        assert rows == [("a", 1, 100), ("later", 1, 105)]


def test_stream_time_follows_the_slowest_source_and_never_decreases() -> None:
    seen: list[datetime] = []

    class Watch(Processor[str, int, str, int]):
        def process(self, _record: Record[str, int]) -> None:
            seen.append(self.ctx.stream_time)

    app = App("watch")
    left, right = (app.topic(name, key=str, value=int) for name in ("left", "right"))
    app.stream(left, right).process(Watch, name="watch")
    with app.test() as t:
        for topic, at in ((left, 50), (right, 30), (left, 90), (left, 20), (right, 60)):
            t.input(topic).send(1, key="a", at=at)
        t.restart()
        t.input(right).send(1, key="a", at=40)
    assert [when_ms(at) for at in seen] == [0, 30, 30, 30, 60, 60]


def test_a_store_is_ordered_by_key() -> None:
    found: dict[str, Any] = {}

    class Ranges(Processor[str, int, str, int]):
        by_number = kv_store(int, str)
        by_price = kv_store(float, str)
        by_moment = kv_store(datetime, int)

        def process(self, record: Record[str, int]) -> None:
            for number in (5, -1, 0, 300, -70_000):
                self.by_number.put(number, str(number))
                self.by_price.put(number / 2, str(number))
                self.by_moment.put(datetime.fromtimestamp(number, UTC), number)
            self.by_number.put(7, "x")
            self.by_number.delete(7)
            found["all"] = [key for key, _ in self.by_number.range()]
            found["some"] = list(self.by_number.range(-1, 5))
            found["back"] = [key for key, _ in self.by_price.range(lo=-1.0, reverse=True)]
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            found["since"] = [number for _, number in self.by_moment.range(lo=epoch)]

    app, numbers, _ = app_of(Ranges)
    with app.test() as t:
        t.input(numbers).send(1, key="a")
    assert found == {
        "all": [-70_000, -1, 0, 5, 300],
        "some": [(-1, "-1"), (0, "0")],
        "back": [150.0, 2.5, 0.0, -0.5],
        "since": [0, 5, 300],
    }


def test_a_scan_sees_the_store_as_of_its_start() -> None:
    seen: list[str] = []

    class Sweep(Processor[str, int, str, int]):
        rows = kv_store(str, int)

        def process(self, record: Record[str, int]) -> None:
            self.rows.put(record.key, record.value)
            for key, _ in self.rows.range():
                seen.append(key)
                self.rows.delete(key)
                self.rows.put(f"{key}'", 1)

    app, numbers, _ = app_of(Sweep)
    with app.test() as t:
        t.input(numbers).send(1, key="a")
        t.restart()
        t.input(numbers).send(1, key="b")
    assert seen == ["a", "a'", "b"]


def test_changing_a_value_read_from_a_store_does_not_change_the_store() -> None:
    class Lists(Processor[str, int, str, int]):
        rows = kv_store(str, list[int])

        def process(self, record: Record[str, int]) -> None:
            values = self.rows.get(record.key) or []
            values.append(record.value)
            self.ctx.forward(record.key, len(self.rows.get(record.key) or []))
            self.rows.put(record.key, values)

    app, numbers, out = app_of(Lists)
    with app.test() as t:
        for value in range(3):
            t.input(numbers).send(value, key="a")
        assert t.output(out).values == [0, 1, 2]


def test_random_numbers_depend_only_on_the_record_s_offset() -> None:
    class Draws(Processor[str, int, str, str]):
        def process(self, record: Record[str, int]) -> None:
            chance = self.ctx.random
            text = (
                f"{chance.random():.6f} {chance.randrange(9)} {self.ctx.uuid()} {self.ctx.uuid()}"
            )
            self.ctx.forward(record.key, text)

    def drawn(app_id: str, *, upstream: bool) -> dict[int, list[str]]:
        app = App(app_id)
        numbers = app.topic("numbers", key=str, value=int)
        out = app.topic("out", key=str, value=str)
        stream = app.stream(numbers).flat_map_values(lambda v: [v, v])
        if upstream:
            stream = stream.rekey(lambda _, v: str(v % 7), name="digits").repartition(name="r")
        stream.process(Draws, name="draws").to(out)
        with app.test(partitions=2) as t:
            for value in range(8):
                t.input(numbers).send(value, key=str(value), partition=value % 2)
                if value % 3 == 0:
                    t.restart()
            found: dict[int, list[str]] = {}
            for record in t.output(out).records:
                found.setdefault(int(record.key), []).append(record.value)
            return found

    for upstream in (False, True):
        once = drawn("app", upstream=upstream)
        assert once == drawn("app", upstream=upstream)
        texts = [text for both in once.values() for text in both]
        assert len({*texts}) == 16
        assert {*texts}.isdisjoint(
            text for both in drawn("other", upstream=upstream).values() for text in both
        )


def test_a_changed_key_is_repartitioned_for_stores_and_aggregations() -> None:
    class Plain(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(str(record.value), record.value)

    def topics(app: App) -> list[str]:
        return sorted(n.topic.name for n in app.topology().nodes if isinstance(n, RepartitionSink))

    app = App("a")
    rekeyed = app.stream(app.topic("numbers", key=str, value=int)).rekey(lambda _, v: str(v))
    rekeyed.process(Plain, name="plain")
    assert topics(app) == []
    rekeyed.process(Steps, name="steps").group_by_key().count(name="counts")
    assert topics(app) == ["a-steps-input-repartition", "a-steps-repartition"]


def test_forwarded_records_are_counted_behind_a_repartition() -> None:
    class Digits(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            for digit in str(record.value):
                self.ctx.forward(digit, record.value)

    app = App("digits")
    numbers = app.topic("numbers", key=str, value=int)
    counts = app.stream(numbers).process(Digits, name="digits").group_by_key().count(name="n")
    with app.test(partitions=3) as t:
        for value in range(40):
            t.input(numbers).send(value, key=str(value))
            if value % 7 == 0:
                t.restart()
        text = "".join(map(str, range(40)))
        assert t.table(counts) == {digit: text.count(digit) for digit in sorted({*text})}


def test_init_reads_the_state_and_close_is_called_at_the_end() -> None:
    calls: list[object] = []

    class Calls(Processor[str, int, str, int]):
        rows = kv_store(str, int)

        def init(self) -> None:
            calls.append(("init", [*self.rows.range()]))

        def process(self, record: Record[str, int]) -> None:
            self.rows.put(record.key, record.value)

        def close(self) -> None:
            calls.append("close")

    app, numbers, _ = app_of(Calls)
    with app.test() as t:
        t.input(numbers).send(1, key="a")
        t.restart()
    assert calls == [("init", []), "close", ("init", [("a", 1)]), "close"]


def test_a_processor_s_error_names_its_record() -> None:
    class Fails(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, 100 // record.value)

    app, numbers, _ = app_of(Fails)
    with app.test() as t:
        t.input(numbers).send(1, key="a")
        with pytest.raises(ProcessingError, match=r"'steps' failed at offset 1 of numbers-0: Zero"):
            t.input(numbers).send(0, key="a")


def misuse_init(self: Steps) -> None:
    self.ctx.forward("a", 1)


def misuse_close(self: Steps) -> None:
    self.last.put("a", 1)


def misuse_none(self: Steps, _record: Record[str, int]) -> None:
    self.last.put("a", None)  # type: ignore[arg-type]


def misuse_key(self: Steps, _record: Record[str, int]) -> None:
    self.last.get(5)  # type: ignore[arg-type]


def misuse_time(self: Steps, record: Record[str, int]) -> None:
    self.ctx.forward("a", 1, timestamp=-5)


@pytest.mark.parametrize(
    ("method", "misuse", "message"),
    [
        ("init", misuse_init, r"'steps' failed in init.*call ctx.forward in process"),
        ("close", misuse_close, r"'steps' failed in close.*'steps/last' can't be written in close"),
        ("process", misuse_none, r"offset 0 of numbers-0: store 'steps/last' can't hold None"),
        ("process", misuse_key, r"offset 0 of numbers-0: str expected, got int"),
        ("process", misuse_time, r"offset 0 of numbers-0: .*before 1970"),
    ],
)
def test_a_misuse_of_the_context_is_reported(method: str, misuse: Any, message: str) -> None:
    app, numbers, _ = app_of(type("Wrong", (Steps,), {method: misuse}))

    def run_app() -> None:
        with app.test() as t:
            t.input(numbers).send(1, key="a")

    with pytest.raises(ProcessingError, match=message):
        run_app()


def test_a_range_with_bounds_needs_ordered_keys() -> None:
    class Pairs(Processor[str, int, str, int]):
        rows = kv_store(tuple[int, str], int)

        def process(self, record: Record[str, int]) -> None:
            self.rows.put((record.value, record.key), 1)
            assert [key for key, _ in self.rows.range()] == [(1, "a")]
            self.rows.range((0, "a"))

    app, numbers, _ = app_of(Pairs)
    with app.test() as t, pytest.raises(ProcessingError, match="order of the keys of store"):
        t.input(numbers).send(1, key="a")


class Waits(Steps):
    async def process(self, record: Record[str, int]) -> None:  # type: ignore[override]
        """Refused, because it is async."""


class Opens(Steps):
    async def init(self) -> None:  # type: ignore[override]
        """Refused, because it is async."""


class Yields(Steps):
    def process(self, record: Record[str, int]) -> Iterator[int]:  # type: ignore[override]
        yield 1


class Needs(Steps):
    def __init__(self, limit: int) -> None:
        """A processor with a required argument."""


class Idle(Processor[str, int, str, int]):
    """A processor without `process`."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Waits, r"Waits.process is `async def`.*amap_values.*@app.agent"),
        (Opens, r"Opens.init is `async def`"),
        (Yields, r"Yields.process yields.*ctx.forward"),
        (Needs, r"Needs can't be created without arguments .*limit"),
        (Idle, r"Idle needs a method process"),
        (int, r"a class derived from Processor, not <class 'int'>"),
        (Steps(), r"a class derived from Processor, not <"),
    ],
)
def test_an_invalid_processor_class_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        app_of(kind)


def test_processor_names_and_store_types_are_checked() -> None:
    app = App("names")
    stream = app.stream(app.topic("numbers", key=str, value=int))
    stream.process(Steps, name="steps")
    with pytest.raises(TopologyError, match="taken by a Process already"):
        stream.process(Steps, name="steps")
    with pytest.raises(TopologyError, match="can't be the name of a processor"):
        stream.process(Steps, name="a/b")
    with pytest.raises(SerdeError):
        kv_store(object, int)
    with pytest.raises(UsageError, match=r"Steps.last can't be used in __init__"):
        _ = Steps().last


def test_forwarded_types_come_from_the_class_parameters() -> None:
    class Alarms(Processor[str, int, str, Alarm]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, Alarm(record.key, record.value))

    class Louder(Alarms):
        """A subclass that inherits its types."""

    app = App("types")
    numbers = app.topic("numbers", key=str, value=int)
    reduced = (
        app.stream(numbers)
        .process(Louder, name="alarms")
        .group_by_key()
        .reduce(lambda a, b: Alarm(a.device, a.readings + b.readings), name="sums")
    )
    with app.test() as t:
        t.input(numbers).send(1, key="a")
        t.input(numbers).send(2, key="a")
        assert t.table(reduced) == {"a": Alarm("a", 3)}


def test_a_topology_describes_a_processor_and_its_state() -> None:
    app, _, _ = app_of(Steps)
    text = app.topology().describe()
    assert "sub-topology 0, state in steps-0-changelog" in text
    assert "Process steps with last after numbers-source" in text


def test_rows_with_a_time_to_live_expire_by_stream_time() -> None:
    class Recent(Processor[str, int, str, int]):
        seen = kv_store(str, int, ttl="10ms")

        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, len([*self.seen.range()]))
            self.seen.put(record.key, record.value)

    app, numbers, out = app_of(Recent)
    with app.test() as t:
        for key, at in (("a", 0), ("b", 5), ("c", 9), ("d", 10), ("a", 15), ("b", 100), ("c", 100)):
            t.input(numbers).send(1, key=key, at=at)
            t.restart()
        # When "d" comes, "a" has expired; when "a" comes again, "b" has.
        assert t.output(out).values == [0, 1, 2, 2, 2, 0, 1]
    with pytest.raises(ConfigError, match="ttl must be longer than 0 ms"):
        kv_store(str, int, ttl="0s")


@pytest.mark.parametrize(
    ("life", "wanted"), [("forever", [0, 1, 2, 1, 2, 1]), ("30ms", [0, 1, 2, 1, 2, 0])]
)
def test_one_row_may_have_a_time_to_live_of_its_own(life: Any, wanted: list[int]) -> None:
    """ "a" and "b" end 10 ms after their records; "c" is written once without an end."""

    class Recent(Processor[str, int, str, int]):
        seen = kv_store(str, int, ttl=life)

        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, len([*self.seen.range()]))
            self.seen.put(record.key, record.value, ttl=None if record.key == "c" else "10ms")

    app, numbers, out = app_of(Recent)
    with app.test() as t:
        for key, at in (("a", 0), ("c", 5), ("b", 6), ("a", 16), ("b", 25), ("a", 35)):
            t.input(numbers).send(1, key=key, at=at)
            t.restart()
        assert t.output(out).values == wanted


def test_a_store_without_a_time_to_live_has_no_rows_with_one() -> None:
    class Wrong(Processor[str, int, str, int]):
        seen = kv_store(str, int)

        def process(self, record: Record[str, int]) -> None:
            self.seen.put(record.key, record.value, ttl="10ms")

    app, numbers, _ = app_of(Wrong)
    with pytest.raises(ProcessingError, match="declare it with kv_store"), app.test() as t:
        t.input(numbers).send(1, key="a")


def test_adding_a_time_to_live_starts_a_new_store() -> None:
    class Kept(Steps):
        last = kv_store(str, int, ttl="1d")

    old, new = (Blueprint.of(app_of(kind)[0].topology()) for kind in (Steps, Kept))
    assert [loss.store for loss in difference(old, new).losses] == ["steps/last"]


class Clumsy(Processor[str, int, str, int]):
    """Writes, forwards and sets a timer before it fails."""

    total = kv_store(str, int)
    recent = kv_store(str, int, ttl="1s")

    def process(self, record: Record[str, int]) -> None:
        self.total.put("all", (self.total.get("all") or 0) + record.value)
        self.total.delete("gone")
        self.recent.put(record.key, record.value)
        self.ctx.forward(record.key, record.value)
        self.ctx.timers.set(record.key, record.timestamp)
        if record.value < 0:
            raise ValueError("below zero")
        self.total.put("gone", 1)
        self.ctx.forward("total", self.total.get("all") or 0)

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        rows = [*self.total.range(), *self.recent.range()]
        self.ctx.forward(f"timer {key}", len(rows))


def test_a_skipped_record_leaves_no_writes_rows_or_timers() -> None:
    def outputs_with(values: list[int], policy: ErrorPolicy) -> tuple[list[tuple[str, int]], int]:
        app = App("clumsy")
        numbers = app.topic("numbers", key=str, value=int)
        out = app.topic("out", key=str, value=int)
        app.stream(numbers).process(Clumsy, name="clumsy", on_error=policy).to(out)
        with app.test() as t:
            for number, value in enumerate(values):
                key = "bad" if value < 0 else str(number)
                t.input(numbers).send(value, key=key, at=number)
            t.restart()
            t.input(numbers).send(0, key="end", at=len(values) + 10)
            rows = [(record.key, record.value) for record in t.output(out).records]
            return rows, t.drops.get(("clumsy", "error"), 0)

    # The bad records come last, so that the others have equal offsets without them.
    good, _ = outputs_with([1, 2, 3], on_error.FAIL)
    with_bad, skipped = outputs_with([1, 2, 3, -1, -2], on_error.skip())
    assert skipped == 2
    assert with_bad == good
    retried, skipped = outputs_with([1, 2, 3, -1], on_error.retry(2, then=on_error.skip()))
    assert (retried, skipped) == (good, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_stores_can_be_in_memory_or_without_a_changelog(restarts: bool) -> None:
    class Counting(Processor[str, int, str, str]):
        kept = kv_store(str, int, backend="memory")
        passing = kv_store(str, int, changelog=False)
        fading = kv_store(str, int, backend="memory", ttl="1h")

        def process(self, record: Record[str, int]) -> None:
            counts = []
            for store in (self.kept, self.passing, self.fading):
                store.put(record.key, (store.get(record.key) or 0) + 1)
                counts.append(store.get(record.key))
            if record.value < 0:
                raise ValueError(record.value)
            keys = [key for key, _ in self.kept.range()]
            self.ctx.forward(record.key, f"{counts} {keys}")

    app = App("counting")
    numbers = app.topic("numbers", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    stream = app.stream(numbers).process(Counting, name="counting", on_error=on_error.skip())
    stream.to(out)
    with app.test() as t:
        t.input(numbers).send(1, key="a")
        # The writes of a record that fails are in no store.
        t.input(numbers).send(-1, key="a")
        t.input(numbers).send(1, key="b")
        if restarts:
            t.restart()
        t.input(numbers).send(1, key="a")
        passing = 1 if restarts else 2
        assert t.output(out).values == [
            "[1, 1, 1] ['a']", "[1, 1, 1] ['a', 'b']", f"[2, {passing}, 2] ['a', 'b']",
        ]  # fmt: skip
        stores = app.topology().subtopologies[0].stores
        assert not any(store.name == "counting/passing" for store in stores)


def test_an_unknown_store_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rocksdb' or 'memory'"):
        kv_store(str, int, backend="disk")  # type: ignore[arg-type]
