"""Time behind a join of streams: unmatched records advance it, too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streamlog import App, Emit, JoinWindow, Processor, Record, Stream, Windowed, tumbling

START = datetime(2025, 1, 1, tzinfo=UTC)


class Alarm(Processor[str, str, str, str]):
    """Forwards each key ten seconds after its record."""

    def process(self, record: Record[str, str]) -> None:
        self.ctx.timers.set(record.key, at=record.timestamp + timedelta(seconds=10))

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, "due")


def test_unmatched_records_advance_the_time_behind_a_join() -> None:
    app = App("joined")
    left = app.topic("left", key=str, value=str)
    right = app.topic("right", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    pairs = app.stream(left).join(
        app.stream(right), lambda a, b: a + b, within=JoinWindow.of("1s"), name="pairs"
    )
    pairs.process(Alarm, name="alarm").to(out)
    with app.test() as t:
        for topic in (left, right):
            t.input(topic).send("x", key="k", at=START)
        for topic in (left, right):
            t.input(topic).send("alone", key=topic.name, at=START + timedelta(seconds=11))
        assert t.output(out).values == ["due"]


def counted(stream: Stream[str, int], name: str, emit: Emit) -> Stream[str, int]:
    """Count by key and second, and emit the plain key."""

    def unwindowed(windowed: Windowed[str], count: int) -> tuple[str, int]:
        return windowed.key, count

    windowed = stream.group_by_key().windowed(tumbling("1s")).emit(emit)
    return windowed.count(name=name).changes().map(unwindowed, name=f"{name}-flat")


@pytest.mark.parametrize("is_retimed", [False, True])
def test_pairs_of_two_joins_of_the_same_streams_are_counted(*, is_retimed: bool) -> None:
    app = App("joined")
    left = app.topic("left", key=str, value=int)
    right = app.topic("right", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    streams = app.stream(left), app.stream(right)
    near, far = (
        streams[0].join(streams[1], lambda a, _: a, within=within, name=within)
        for within in ("1s", "3s")
    )
    merged = near.merge(far)
    if is_retimed:
        merged = merged.set_timestamp(lambda v: START + timedelta(seconds=v), name="retimed")
    counted(merged, "pairs", Emit.CLOSE).to(out)
    with app.test() as t:
        for second in (0, 2, 20):
            for topic in (left, right):
                t.input(topic).send(second, key="k", at=START + timedelta(seconds=second))
        # Each record meets its partner in both joins; in the wide join, the records of 0 s and
        # 2 s meet as well, at 2 s. With new times, the left record of 0 s is late, and no later
        # window closes, because no records follow on the left.
        assert t.output(out).values == ([2] if is_retimed else [2, 4])


def test_time_advances_behind_window_updates_with_new_timestamps() -> None:
    app = App("retimed")
    numbers = app.topic("numbers", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    updates = counted(app.stream(numbers), "updates", Emit.UPDATE)
    retimed = updates.set_timestamp(lambda n: START + timedelta(seconds=n), name="retimed")
    counted(retimed, "again", Emit.CLOSE).to(out)
    with app.test() as t:
        for number in range(3):
            t.input(numbers).send(number, key="k", at=START + timedelta(milliseconds=number))
        assert t.output(out).values == [1, 1]
        t.advance("10s")  # A mark of the input advances the new time, too.
        assert t.output(out).values == [1, 1, 1]
