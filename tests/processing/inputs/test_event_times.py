"""Invalid timestamps at a source, by error policy, operator and reader."""

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
INVALID_TIMES = [-1, -(2**63), T * 1_000, TIMESTAMP_MS_MAX + 1, 2**62, 2**63 - 1]
"""Invalid event times: before 1970, in microseconds, past the year 9999."""
HOUR_MS = 3_600_000


def spec(ahead_max_ms: int | None = None, *, internal: bool = False) -> TopicSpec:
    texts: Any = serde_for(str)
    return TopicSpec("t", texts, texts, timestamp_ahead_max_ms=ahead_max_ms, internal=internal)


@pytest.mark.parametrize("timestamp_ms", INVALID_TIMES)
def test_an_impossible_timestamp_is_refused_with_its_value(timestamp_ms: int) -> None:
    with pytest.raises(InvalidTimestamp, match=str(timestamp_ms)):
        ANY_TIME.check(timestamp_ms)


def test_the_bound_ahead_of_the_clock_is_inclusive() -> None:
    accepted = EventTimes.of(spec(HOUR_MS), T)
    accepted.check(T + HOUR_MS)
    with pytest.raises(InvalidTimestamp, match="3600000 ms ahead of the clock"):
        accepted.check(T + HOUR_MS + 1)
    assert EventTimes.of(spec(), T) == EventTimes.of(spec(HOUR_MS, internal=True), T) == ANY_TIME


def test_the_bound_never_exceeds_the_end_of_the_calendar() -> None:
    accepted = EventTimes.of(spec(HOUR_MS), TIMESTAMP_MS_MAX)
    accepted.check(TIMESTAMP_MS_MAX)
    with pytest.raises(InvalidTimestamp, match="year 9999"):
        accepted.check(TIMESTAMP_MS_MAX + 1)


class CountingApp:
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
        """Return the counts after records with these timestamps and values."""
        with self.app.test() as t:
            for timestamp_ms, value in records:
                # Written as by a foreign producer, without the driver's own check.
                t.topic("in").append(value, key=b"k", timestamp_ms=timestamp_ms)
                t.settle()
            self.drops = dict(t.drops)
            if self.app.on_error.action == "dlq":
                self.letters = t.dead_letters()
            return t.output(self.out).values


def at(*times: int) -> list[tuple[int, bytes]]:
    return [(timestamp_ms, b"v") for timestamp_ms in times]


@pytest.mark.parametrize("timestamp_ms", INVALID_TIMES)
def test_a_refused_timestamp_does_not_advance_windows(timestamp_ms: int) -> None:
    app_run = CountingApp(on_error.skip())
    assert app_run.counts(*at(T, timestamp_ms, T + 1, T + 2)) == [1, 2, 3]
    assert app_run.drops == {("in", "error"): 1}


@pytest.mark.parametrize("timestamp_ms", INVALID_TIMES)
def test_a_record_with_an_impossible_time_becomes_a_dead_letter(timestamp_ms: int) -> None:
    app_run = CountingApp(on_error.dlq())
    assert app_run.counts(*at(T, timestamp_ms, T + 1)) == [1, 2]
    (letter,) = app_run.letters
    assert when_ms(letter.timestamp) == T
    headers = dict(letter.headers)
    assert headers["__streams.errors.timestamp"] == b"%d" % timestamp_ms
    assert headers["__streams.errors.topic"] == b"in"
    assert headers["__streams.errors.partition"] == b"0"
    assert headers["__streams.errors.offset"] == b"1"
    assert app_run.drops == {("in", "dead letter"): 1}


def test_a_dead_letter_before_any_record_has_the_clock_s_time() -> None:
    app_run = CountingApp(on_error.dlq())
    app_run.counts(*at(2**62, T))
    assert app_run.letters[0].timestamp == datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("timestamp_ms", INVALID_TIMES)
def test_without_a_policy_the_error_names_the_record_and_the_remedy(timestamp_ms: int) -> None:
    text = rf"offset 1 of in-0: the timestamp is {timestamp_ms} ms, .*on_error"
    with pytest.raises(ProcessingError, match=text):
        CountingApp(on_error.FAIL).counts(*at(T, timestamp_ms))


def test_a_record_too_far_ahead_of_the_clock_is_refused() -> None:
    """The driver's clock is at 2025-01-01."""
    app_run = CountingApp(on_error.dlq(), timestamp_ahead_max="1h")
    assert app_run.counts(*at(T, T + HOUR_MS + 1, T + 1, T + HOUR_MS, T + 2)) == [1, 2, 1]
    assert app_run.drops == {("in", "dead letter"): 1, ("n", "late"): 1}
    assert when_ms(app_run.letters[0].timestamp) == T


def test_the_app_s_bound_applies_to_topics_without_their_own() -> None:
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
def test_an_invalid_time_from_the_extractor_is_refused(wrong: str) -> None:
    def extracted(value: str) -> Any:
        return T if value == "v" else EXTRACTORS[wrong](value)

    app_run = CountingApp(on_error.dlq(), timestamp=extracted)
    assert app_run.counts((1, b"v"), (2, b"bad"), (3, b"v")) == [1, 2]
    assert when_ms(app_run.letters[0].timestamp) in {2, T}


@pytest.mark.parametrize("timestamp_ms", INVALID_TIMES)
def test_an_agent_does_not_get_records_without_a_valid_time(timestamp_ms: int) -> None:
    app = App("reading", on_error=on_error.dlq())
    source = app.topic("in", key=str, value=str, partitions=1)
    seen: list[tuple[str, int]] = []

    @app.agent(source)
    async def read(stream: Any) -> None:
        async for record in stream.records():
            entry = (record.value, when_ms(record.timestamp))
            seen.append(entry)

    with app.test() as t:
        for value, at_ms in ((b"1", T), (b"2", timestamp_ms), (b"3", T + 1)):
            t.topic("in").append(value, key=b"k", timestamp_ms=at_ms)
        t.settle()
        assert seen == [("1", T), ("3", T + 1)]
        assert [letter.value for letter in t.dead_letters()] == [b"2"]


SECONDS = T // 1000


def _seconds_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "looks like seconds" in text]


@pytest.mark.parametrize("reader", ["task", "agent", "set_timestamp"])
@pytest.mark.parametrize("made_by", ["producer", "extractor"])
def test_a_timestamp_in_seconds_is_reported_once(
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
    warnings = [text for text in _seconds_warnings(caplog) if text.startswith("in-0, offset 0: ")]
    assert len(warnings) == 1
    assert f"the timestamp {SECONDS} looks like seconds (2025-01-01T00:00:00+00:00)" in warnings[0]
    assert "Multiply it by 1000" in warnings[0]


def test_seconds_from_set_timestamp_are_reported_with_the_node(
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
    (warnings,) = _seconds_warnings(caplog)
    assert warnings.startswith("node 'by-reading': ")


@pytest.mark.parametrize("at_ms", [0, 1, 999_999_999, 4_102_444_801, T])
def test_valid_times_are_not_mistaken_for_seconds(
    at_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("milliseconds")
    source = app.topic("in", key=str, value=str)
    app.stream(source).to(app.topic("out", key=str, value=str))
    with app.test() as t:
        t.input(source).send("v", key="k", at=at_ms)
    assert not _seconds_warnings(caplog)
