"""Users' timers and punctuations on the test driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamlog import App, ProcessingError, Processor, Record, Topic, kv_store, punctuate
from streamlog.blueprints.blueprint import Blueprint
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, TopologyError
from streamlog.processing import processor_step

START = datetime(2025, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass
class Beat:
    load: float


@dataclass
class Alarm:
    device: str
    silent_s: float


class Silence(Processor[str, Beat, str, Alarm]):
    """Raises an alarm for each device that is silent for five minutes."""

    last_seen = kv_store(str, datetime)

    def process(self, record: Record[str, Beat]) -> None:
        self.last_seen.put(record.key, record.timestamp)
        self.ctx.timers.set(record.key, at=record.timestamp + 5 * MINUTE)

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        seen = self.last_seen.get(key)
        if seen is not None:
            self.ctx.forward(key, Alarm(key, (at - seen).total_seconds()))


def test_a_silent_device_raises_one_alarm_across_a_restart() -> None:
    app = App("watchdog")
    beats = app.topic("beats", key=str, value=Beat)
    alarms = app.topic("alarms", key=str, value=Alarm)
    app.stream(beats).process(Silence, name="silence").to(alarms)
    with app.test() as t:
        for device, minute in (("a", 0), ("b", 0), ("b", 4), ("c", 4)):
            t.input(beats).send(Beat(1.0), key=device, at=START + minute * MINUTE)
        t.restart()
        # Due timers fire before the record that advances time: "a" was silent until then.
        t.input(beats).send(Beat(1.0), key="a", at=START + 7 * MINUTE)
        assert t.output(alarms).pop() == Record(
            "a", Alarm("a", 300.0), START + 5 * MINUTE, (), "alarms", 0, 0
        )
        assert t.output(alarms).records == []
        t.input(beats).send(Beat(1.0), key="d", at=START + 60 * MINUTE)
        reported = [(r.key, (r.timestamp - START) // MINUTE) for r in t.output(alarms).records]
        assert reported == [("b", 9), ("c", 9), ("a", 12)]


Numbers = Topic[str, int]
Texts = Topic[str, str]


def app_of(kind: Any, **settings: Any) -> tuple[App, Numbers, Texts]:
    app = App("timed")
    numbers = app.topic("numbers", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    app.stream(numbers).process(kind, name="timed", **settings).to(out)
    return app, numbers, out


class Timed(Processor[str, int, str, str]):
    """Forwards the time of each timer; a record's value is the delay in ms."""

    def process(self, record: Record[str, int]) -> None:
        self.ctx.timers.set(record.key, record.timestamp + timedelta(milliseconds=record.value))

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, f"{tag}{when_ms(at)}")


def test_one_timer_per_key_and_tag_can_be_reset_and_cancelled() -> None:
    class Many(Timed):
        def process(self, record: Record[str, int]) -> None:
            timers, at = self.ctx.timers, when_ms(record.timestamp)
            timers.set(record.key, at + 50)
            timers.set(record.key, at + 20)
            timers.set(record.key, at + 10, "x")
            timers.set(record.key, at + 10, "y")
            timers.cancel(record.key, "y")
            timers.cancel(record.key, "never set")

    app, numbers, out = app_of(Many)
    with app.test() as t:
        t.input(numbers).send(1, key="a", at=100)
        t.restart()
        t.input(numbers).send(1, key="b", at=1_000)
        assert [(r.key, r.value) for r in t.output(out).records] == [("a", "x110"), ("a", "120")]


def test_a_timer_in_the_past_fires_at_once() -> None:
    app, numbers, out = app_of(Timed)
    with app.test() as t:
        t.input(numbers).send(0, key="a", at=100)
        t.input(numbers).send(-30, key="b", at=100)
        assert [(r.key, r.value) for r in t.output(out).records] == [("a", "100"), ("b", "70")]


def test_event_time_punctuations_fire_at_every_multiple() -> None:
    class Ticks(Processor[str, int, str, str]):
        total = kv_store(str, int)

        def process(self, record: Record[str, int]) -> None:
            self.total.put("", (self.total.get("") or 0) + record.value)

        @punctuate(every="10ms")
        def tick(self, now: datetime) -> None:
            self.ctx.forward("", f"{when_ms(now)}: {self.total.get('')}")

    app, numbers, out = app_of(Ticks)
    with app.test() as t:
        for value, at in ((1, 25), (2, 29), (3, 31), (4, 8), (5, 60)):
            t.input(numbers).send(value, key="a", at=at)
            t.restart()
        t.advance("1h")
        assert t.output(out).values == ["30: 3", "40: 10", "50: 10", "60: 10"]
        assert [when_ms(r.timestamp) for r in t.output(out).records] == [30, 40, 50, 60]


def test_wall_clock_punctuations_follow_the_driver_s_clock() -> None:
    class Ticks(Processor[str, int, str, str]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, f"record {self.ctx.wall_time:%H:%M}")

        @punctuate(every="15m", clock="wall")
        def tick(self, now: datetime) -> None:
            assert now == self.ctx.wall_time
            self.ctx.forward("", f"tick {now:%H:%M}")

    app, numbers, out = app_of(Ticks)
    with app.test(start=START + 5 * MINUTE) as t:
        t.advance("20m")
        t.restart()
        t.input(numbers).send(1, key="a")
        t.advance("10m")
        t.restart()
        t.advance("9m")
        assert t.output(out).values == ["tick 00:15", "record 00:25", "tick 00:30"]


def test_wall_clock_timers_survive_a_restart() -> None:
    class Waits(Timed):
        def process(self, record: Record[str, int]) -> None:
            at = self.ctx.wall_time + timedelta(seconds=record.value)
            self.ctx.timers.set(record.key, at, "wall ", clock="wall")
            self.ctx.timers.set(record.key, at, "event ")
            if record.value == 3:
                self.ctx.timers.cancel(record.key, "wall ", clock="wall")

    app, numbers, out = app_of(Waits)
    with app.test(start=0) as t:
        for value, key in ((2, "b"), (1, "a"), (3, "c")):
            t.input(numbers).send(value, key=key, at=0)
        t.advance("1s")
        t.restart()
        t.advance("10s")
        assert t.output(out).values[:2] == ["wall 1000", "wall 2000"]
        # No more records came: event time advanced by time marks.
        assert t.output(out).values[2:] == ["event 1000", "event 2000", "event 3000"]


def test_an_empty_source_holds_time_back_until_it_is_calm_or_idle() -> None:
    def outputs_after(after: str, **settings: Any) -> list[str]:
        app = App("idle")
        numbers = app.topic("numbers", key=str, value=int)
        out = app.topic("out", key=str, value=str)
        stream = app.stream(numbers).repartition(name="again")
        stream.process(Timed, name="timed", **settings).to(out)
        with app.test(partitions=2) as t:
            t.input(numbers).send(5, key="a", at=100, partition=0)
            t.input(numbers).send(5, key="b", at=200, partition=0)
            t.advance(after)
            return t.output(out).values

    assert outputs_after("4s") == []
    assert outputs_after("5s") == ["105"]  # Advanced to 200; from there on, time follows the clock.
    assert outputs_after("1m") == ["105", "205"]
    assert outputs_after("29s", idle_after="30s") == []
    assert outputs_after("30s", idle_after="30s") == ["105", "205"]


def test_records_from_timers_are_timed_by_their_own_timestamp() -> None:
    app = App("down")
    numbers = app.topic("numbers", key=str, value=int)
    counted = (
        app.stream(numbers)
        .process(Timed, name="timed")
        .group_by(lambda _, text: text[:1], name="by-digit")
        .count(name="counts")
    )
    with app.test(partitions=2) as t:
        for at in range(0, 100, 10):
            for partition in (0, 1):
                t.input(numbers).send(5, key=f"key-{partition}", at=at, partition=partition)
            t.restart()
        assert t.table(counted) == {str(digit): 2 for digit in [*range(1, 9)]} | {"5": 4}


def wrong_endless(self: Timed, key: str, at: datetime, tag: str) -> None:
    self.ctx.timers.set(key, at)


def wrong_record(self: Timed, key: str, at: datetime, tag: str) -> None:
    _ = self.ctx.record


def wrong_division(self: Timed, key: str, at: datetime, tag: str) -> None:
    _ = 1 // 0


def wrong_key(self: Timed, record: Record[str, int]) -> None:
    self.ctx.timers.set(5, record.timestamp)


def wrong_none(self: Timed, record: Record[str, int]) -> None:
    self.ctx.timers.set(None, record.timestamp)


def wrong_time(self: Timed, record: Record[str, int]) -> None:
    self.ctx.timers.set(record.key, -1)


def wrong_clock(self: Timed, record: Record[str, int]) -> None:
    self.ctx.timers.set(record.key, 1, clock="water")  # type: ignore[arg-type]


def wrong_close(self: Timed) -> None:
    self.ctx.timers.set("a", 1)


def wrong_init(self: Timed) -> None:
    _ = self.ctx.wall_time


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        ("on_timer", wrong_endless, r"on_timer\('a', .*, ''\): .*keeps setting timers"),
        ("on_timer", wrong_record, r"'timed' failed in on_timer.*no record here"),
        ("on_timer", wrong_division, r"on_timer\('a', 1970-.*, ''\): ZeroDivisionError"),
        ("process", wrong_key, r"offset 0 of numbers-0: str expected, got int"),
        ("process", wrong_none, r"None can.t be the key of a timer"),
        ("process", wrong_time, r"time before 1970"),
        ("process", wrong_clock, r"a timer's clock must be 'event' or 'wall', not 'water'"),
        ("close", wrong_close, r"timers can't be set in close"),
        ("init", wrong_init, r"ctx.wall_time is not known in init"),
    ],
)
def test_a_misuse_of_timers_is_reported(
    method: str, wrong: Callable[..., None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_step, "AT_ONCE_MAX", 100)
    app, numbers, _ = app_of(type("Wrong", (Timed,), {method: wrong}))

    def run_app() -> None:
        with app.test() as t:
            t.input(numbers).send(0, key="a", at=100)

    with pytest.raises(ProcessingError, match=message):
        run_app()


def test_timers_are_a_store_of_the_topology() -> None:
    app, _, _ = app_of(Timed)
    stores = Blueprint.of(app.topology()).stores
    assert {name: entry.kind for name, entry in stores.items()} == {"timed/@timers": "TimerStore"}


def test_a_processor_without_on_timer_can_not_set_timers() -> None:
    class Without(Processor[str, int, str, str]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.timers.set(record.key, record.timestamp)

    app, numbers, _ = app_of(Without)
    with app.test() as t, pytest.raises(ProcessingError, match="its class has no on_timer"):
        t.input(numbers).send(1, key="a")


def test_random_numbers_in_a_timer_are_reproducible() -> None:
    class Draws(Timed):
        def on_timer(self, key: str, at: datetime, tag: str) -> None:
            self.ctx.forward(key, f"{self.ctx.uuid()} {self.ctx.random.random()}")

    def drawn() -> list[str]:
        app, numbers, out = app_of(Draws)
        with app.test() as t:
            for at in range(5):
                t.input(numbers).send(1, key=f"key-{at}", at=at)
            t.input(numbers).send(1, key="z", at=100)
            return t.output(out).values

    assert drawn() == drawn()
    assert len({*drawn()}) == 5


def test_invalid_timer_and_punctuate_methods_are_refused() -> None:
    class Waits(Timed):
        async def on_timer(self, key: str, at: datetime, tag: str) -> None:  # type: ignore[override]
            """Refused, because it is async."""

    class Ticks(Timed):
        @punctuate(every="1s")  # type: ignore[arg-type]
        async def tick(self, now: datetime) -> None:
            """Refused, because it is async."""

    with pytest.raises(TopologyError, match=r"Waits.on_timer is `async def`"):
        app_of(Waits)
    with pytest.raises(TopologyError, match=r"Ticks.tick is `async def`"):
        app_of(Ticks)
    with pytest.raises(ConfigError, match="longer than 0 ms"):
        punctuate(every="0s")
    with pytest.raises(ConfigError, match="no unit"):
        punctuate(every="5")
    with pytest.raises(ConfigError, match="clock must be 'event' or 'wall'"):
        punctuate(every="5s", clock="water")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="idle_after must be longer"):
        app_of(Timed, idle_after="0s")
