"""What a source does with timestamps that are no event time: by policy, operator and reader."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streamlog import App, Emit, Windowed, on_error, tumbling
from streamlog.durations import TIMESTAMP_MS_MAX, when_ms
from streamlog.errors import ConfigError, ProcessingError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.record_queue import ANY_TIME, EventTimes, InvalidTimestamp
from streamlog.record import Record
from streamlog.serdes import serde_for

T = when_ms("2025-01-01T00:00:00Z")
BEYOND = [-1, -(2**63), T * 1_000, TIMESTAMP_MS_MAX + 1, 2**62, 2**63 - 1]
"""No event time: before 1970, in microseconds, past the year 9999."""
HOUR_MS = 3_600_000


def spec(ahead_max_ms: int | None = None, *, internal: bool = False) -> TopicSpec:
    texts: Any = serde_for(str)
    return TopicSpec("t", texts, texts, timestamp_ahead_max_ms=ahead_max_ms, internal=internal)


@pytest.mark.parametrize("timestamp_ms", BEYOND)
def test_what_no_calendar_shows_is_refused_by_value(timestamp_ms: int) -> None:
    with pytest.raises(InvalidTimestamp, match=str(timestamp_ms)):
        ANY_TIME.check(timestamp_ms)


def test_the_bound_counts_from_the_clock_and_includes_its_end() -> None:
    accepted = EventTimes.of(spec(HOUR_MS), T)
    accepted.check(T + HOUR_MS)
    with pytest.raises(InvalidTimestamp, match="3600000 ms ahead of the clock"):
        accepted.check(T + HOUR_MS + 1)
    assert EventTimes.of(spec(), T) == EventTimes.of(spec(HOUR_MS, internal=True), T) == ANY_TIME


def test_a_bound_near_the_end_of_the_calendar_does_not_go_beyond_it() -> None:
    accepted = EventTimes.of(spec(HOUR_MS), TIMESTAMP_MS_MAX)
    accepted.check(TIMESTAMP_MS_MAX)
    with pytest.raises(InvalidTimestamp, match="year 9999"):
        accepted.check(TIMESTAMP_MS_MAX + 1)


class Counting:
    """A windowed count over raw records, some of which have impossible timestamps."""

    def __init__(self, policy: ErrorPolicy, **topic: Any) -> None:
        self.app = App("counting", on_error=policy)
        self.source = self.app.topic("in", key=str, value=str, partitions=1, **topic)
        self.out = self.app.topic("out", key=Windowed[str], value=int, partitions=1)
        stream = self.app.stream(self.source).group_by_key().windowed(tumbling("1m"))
        stream.emit(Emit.UPDATE).count(name="n").changes().to(self.out)
        self.letters: list[Record[bytes, bytes]] = []
        self.drops: dict[tuple[str, str], int] = {}

    def counts(self, *records: tuple[int, bytes]) -> list[int]:
        """What is counted of records with these timestamps and values."""
        with self.app.test() as t:
            for timestamp_ms, value in records:
                # Past the driver's own check of times, as a foreign producer writes.
                t.topic("in").append(value, key=b"k", timestamp_ms=timestamp_ms)
                t.settle()
            self.drops = dict(t.drops)
            if self.app.on_error.action == "dlq":
                self.letters = t.dead_letters()
            return t.output(self.out).values


def at(*times: int) -> list[tuple[int, bytes]]:
    return [(timestamp_ms, b"v") for timestamp_ms in times]


@pytest.mark.parametrize("timestamp_ms", BEYOND)
def test_a_refused_time_moves_no_window(timestamp_ms: int) -> None:
    counting = Counting(on_error.skip())
    assert counting.counts(*at(T, timestamp_ms, T + 1, T + 2)) == [1, 2, 3]
    assert counting.drops == {("in", "error"): 1}


@pytest.mark.parametrize("timestamp_ms", BEYOND)
def test_a_dead_letter_can_be_written_whatever_the_time_of_its_record(timestamp_ms: int) -> None:
    counting = Counting(on_error.dlq())
    assert counting.counts(*at(T, timestamp_ms, T + 1)) == [1, 2]
    (letter,) = counting.letters
    assert when_ms(letter.timestamp) == T
    headers = dict(letter.headers)
    assert headers["__streams.errors.timestamp"] == b"%d" % timestamp_ms
    assert headers["__streams.errors.topic"] == b"in"
    assert headers["__streams.errors.partition"] == b"0"
    assert headers["__streams.errors.offset"] == b"1"
    assert counting.drops == {("in", "dead letter"): 1}


def test_a_dead_letter_before_all_other_records_has_the_time_of_the_clock() -> None:
    counting = Counting(on_error.dlq())
    counting.counts(*at(2**62, T))
    assert counting.letters[0].timestamp == datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("timestamp_ms", BEYOND)
def test_without_a_policy_the_error_says_which_record_and_what_to_do(timestamp_ms: int) -> None:
    text = rf"offset 1 of in-0: the timestamp is {timestamp_ms} ms, .*on_error"
    with pytest.raises(ProcessingError, match=text):
        Counting(on_error.FAIL).counts(*at(T, timestamp_ms))


def test_a_record_too_far_ahead_of_the_clock_is_refused() -> None:
    """The driver's clock stands at 2025-01-01."""
    counting = Counting(on_error.dlq(), timestamp_ahead_max="1h")
    assert counting.counts(*at(T, T + HOUR_MS + 1, T + 1, T + HOUR_MS, T + 2)) == [1, 2, 1]
    assert counting.drops == {("in", "dead letter"): 1, ("n", "late"): 1}
    assert when_ms(counting.letters[0].timestamp) == T


def test_the_bound_of_the_app_holds_for_topics_without_one_of_their_own() -> None:
    app = App("bounded", timestamp_ahead_max="1h")
    assert app.topic("a", key=str, value=str).spec.timestamp_ahead_max_ms == HOUR_MS
    own = app.topic("b", key=str, value=str, timestamp_ahead_max="2h")
    assert own.spec.timestamp_ahead_max_ms == 2 * HOUR_MS
    with pytest.raises(ConfigError, match="no unit"):
        App("bounded", timestamp_ahead_max="60")


def _raise(_: str) -> datetime:
    raise ValueError("no time in here")


EXTRACTORS = {
    "raises": _raise,
    "none": lambda _: None,
    "naive": lambda _: datetime(2025, 1, 1),  # noqa: DTZ001 - that is what is wrong
    "microseconds": lambda _: T * 1_000,
    "negative": lambda _: -1,
    "beyond": lambda _: "9999-12-31T23:59:59-12:00",
    "before": lambda _: datetime.min.replace(tzinfo=UTC),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("wrong", EXTRACTORS)
def test_a_time_that_the_extractor_gets_wrong_is_refused_alike(wrong: str) -> None:
    def extracted(value: str) -> Any:
        return T if value == "v" else EXTRACTORS[wrong](value)

    counting = Counting(on_error.dlq(), timestamp=extracted)
    assert counting.counts((1, b"v"), (2, b"bad"), (3, b"v")) == [1, 2]
    assert when_ms(counting.letters[0].timestamp) in {2, T}


@pytest.mark.parametrize("timestamp_ms", BEYOND)
def test_an_agent_is_not_given_what_has_no_event_time(timestamp_ms: int) -> None:
    app = App("reading", on_error=on_error.dlq())
    source = app.topic("in", key=str, value=str, partitions=1)
    seen: list[tuple[str, int]] = []

    @app.agent(source)
    async def read(stream: Any) -> None:
        async for record in stream.records():
            place = (record.value, when_ms(record.timestamp))
            seen.append(place)

    with app.test() as t:
        for value, at_ms in ((b"1", T), (b"2", timestamp_ms), (b"3", T + 1)):
            t.topic("in").append(value, key=b"k", timestamp_ms=at_ms)
        t.settle()
        assert seen == [("1", T), ("3", T + 1)]
        assert [letter.value for letter in t.dead_letters()] == [b"2"]


SECONDS = T // 1000


def _told_seconds(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "looks like seconds" in text]


@pytest.mark.parametrize("reader", ["task", "agent", "set_timestamp"])
@pytest.mark.parametrize("made_by", ["producer", "extractor"])
def test_seconds_in_place_of_milliseconds_are_told_once(
    reader: str, made_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("seconds")
    extract: Any = int if made_by == "extractor" else None
    source = app.topic("in", key=str, value=str, timestamp=extract, partitions=1)
    out = app.topic("out", key=str, value=str)
    if reader == "agent":

        @app.agent(source)
        async def read(stream: Any) -> None:
            async for _ in stream:
                pass

    elif reader == "set_timestamp":
        app.stream(source).set_timestamp(int).to(out)
    else:
        app.stream(source).to(out)
    with app.test() as t:
        for offset in range(3):
            seconds = SECONDS + offset
            t.input(source).send(f"{seconds}", key="k", at=T if made_by == "extractor" else seconds)
    told = [text for text in _told_seconds(caplog) if text.startswith("in-0, offset 0: ")]
    assert len(told) == 1
    assert f"the timestamp {SECONDS} looks like seconds (2025-01-01T00:00:00+00:00)" in told[0]
    assert "Multiply it by 1000" in told[0]


def test_seconds_that_set_timestamp_gives_are_told_with_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("seconds")
    source = app.topic("in", key=str, value=int)
    app.stream(source).set_timestamp(lambda seconds: seconds, name="by-reading").to(
        app.topic("out", key=str, value=int)
    )
    with app.test() as t:
        for offset in range(3):
            t.input(source).send(SECONDS + offset, key="k", at=T)
    (told,) = _told_seconds(caplog)
    assert told.startswith("node 'by-reading': ")


@pytest.mark.parametrize("at_ms", [0, 1, 999_999_999, 4_102_444_801, T])
def test_other_times_are_not_taken_for_seconds(
    at_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("milliseconds")
    source = app.topic("in", key=str, value=str)
    app.stream(source).to(app.topic("out", key=str, value=str))
    with app.test() as t:
        t.input(source).send("v", key="k", at=at_ms)
    assert not _told_seconds(caplog)
