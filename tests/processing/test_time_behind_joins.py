"""Time behind a join of streams: records that find no partner move it, too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streamlog import App, JoinWindow, Processor, Record

START = datetime(2025, 1, 1, tzinfo=UTC)


class Alarm(Processor[str, str, str, str]):
    """Forwards each key ten seconds after its record."""

    def process(self, record: Record[str, str]) -> None:
        self.ctx.timers.set(record.key, at=record.timestamp + timedelta(seconds=10))

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, "due")


def test_records_without_a_partner_move_the_time_behind_a_join() -> None:
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
