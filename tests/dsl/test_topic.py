from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from streamlog import App, ProcessingError
from streamlog.errors import UsageError
from streamlog.records.batch import LogRecord


@dataclass
class Beat:
    at: int


def test_send_takes_timestamp_headers_and_partition() -> None:
    app = App("a")
    words = app.topic("words", key=str, value=str, partitions=3)

    @app.timer("1s")
    async def tick() -> None:
        sent = await words.send(
            "x", key="k", timestamp="2025-01-01T12:00:00Z", headers={"h": b"1"}, partition=2
        )
        assert (sent.partition, sent.offset) == (2, 0)

    with app.test() as t:
        t.advance("1s")
        record = t.output(words).pop()
        assert (record.partition, record.headers) == (2, (("h", b"1"),))
        assert record.timestamp == datetime(2025, 1, 1, 12, tzinfo=UTC)
        with pytest.raises(UsageError, match="no partition 3"):
            t.input(words).send("x", partition=3)


def test_a_record_is_decoded_with_its_event_time() -> None:
    app = App("a")
    beats = app.topic("beats", key=str, value=Beat, timestamp=lambda b: b.at)
    read = beats.decoded(LogRecord(3, 7, b"k", b'{"at": 1000}', (("h", None),)), 2)
    assert (read.key, read.value, read.partition, read.offset) == ("k", Beat(1000), 2, 3)
    assert read.timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert beats.decoded(LogRecord(3, 7, b"k", None), 2).timestamp.microsecond == 7_000
    for data in (b'{"at": "noon"}', b"{", b'{"at": 1e300}'):
        with pytest.raises(ProcessingError, match="offset 3 of beats-2 can't be read") as error:
            beats.decoded(LogRecord(3, 7, b"k", data), 2)
        assert (error.value.topic, error.value.offset) == ("beats", 3)
