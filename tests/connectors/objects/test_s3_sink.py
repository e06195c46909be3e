"""Confluent's S3 settings: directories, files, cuts, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import BadRecord, ConnectError, Flush
from streamlog.connect.connector_settings import SettingsRefused, read_settings
from streamlog.connectors.objects.s3_sink import S3SinkConnector, joda_path
from streamlog.durations import duration_ms
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.serdes.erased_types import AnyRecord
from tests.connectors.objects.paths import path_of

TIME = "io.confluent.connect.storage.partitioner.TimeBasedPartitioner"
BASE = {
    "s3.bucket.name": "lake",
    "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
    "flush.size": "3",
}
BY_TIME = {
    **BASE, "partitioner.class": TIME, "path.format": "'dt'=YYYY-MM-dd/'hour'=HH",
    "partition.duration.ms": "3600000", "timezone": "UTC", "locale": "en-US",
    "timestamp.extractor": "Record",
}  # fmt: skip


def made(**changes: str) -> S3SinkConnector:
    named = {name.replace("_", "."): text for name, text in changes.items()}
    return read_settings(S3SinkConnector, {**BY_TIME, **named})


def record(value: object, hour: int = 3) -> AnyRecord:
    return Record(
        None, value, datetime(2026, 1, 2, hour, 4, tzinfo=UTC), topic="orders", partition=0
    )


@given(st.integers(0, 253_402_300_799))
def test_a_path_by_time_is_what_joda_writes(seconds: int) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    path, finest_ms = joda_path("'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH/'o''clock'-mm")
    found = path_of(path, Record(None, {}, moment))
    # Joda's numbers are padded to the count of their letters.
    assert found == (
        f"year={moment.year:04}/month={moment.month:02}/day={moment.day:02}"
        f"/hour={moment.hour:02}/o'clock-{moment.minute:02}/"
    )
    assert finest_ms == 60_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("YYYY/MMM", "MMM is unknown"),
        ("yyyy-D", "D is unknown"),
        ("'year=YYYY", "quote without an end"),
        ("YY", "YY is unknown"),
    ],
)
def test_a_path_that_depends_on_more_than_numbers_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        joda_path(text)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "orders/dt=2026-01-02/hour=03/"),
        (
            {"partitioner_class": TIME.replace("TimeBased", "Daily")},
            "orders/year=2026/month=01/day=02/",
        ),
        (
            {"partitioner_class": TIME.replace("TimeBased", "Hourly")},
            "orders/year=2026/month=01/day=02/hour=03/",
        ),
        ({"partitioner_class": TIME.replace("TimeBased", "Default")}, "orders/partition=0/"),
        (
            {
                "partitioner_class": TIME.replace("TimeBased", "Field"),
                "partition_field_name": "a,b",
            },
            "orders/a=x%2Fy/b=7/",
        ),
    ],
)  # fmt: skip
def test_each_partitioner_has_confluents_directories(changes: dict[str, str], path: str) -> None:
    connector = made(**changes)
    given = connector.adapt(record({"a": "x/y", "b": 7}))
    assert given is not None
    assert path_of(connector.connector().path, given) == path


@pytest.mark.parametrize(
    ("changes", "flush"),
    [
        ({}, Flush(records=3, size_bytes=2**26, every="36500d")),
        ({"rotate_schedule_interval_ms": "600"}, Flush(records=3, size_bytes=2**26, every="600ms")),
        (
            {"rotate_interval_ms": "3600000"},
            Flush(records=3, size_bytes=2**26, every="36500d", stream_time="3600000ms"),
        ),
        (
            {
                "rotate_interval_ms": "900", "rotate_schedule_interval_ms": "600",
                "timestamp_extractor": "Wallclock",
                "partitioner_class": TIME.replace("TimeBased", "Default"),
            },
            Flush(records=3, size_bytes=2**26, every="600ms"),
        ),
    ],
)  # fmt: skip
def test_a_file_ends_by_confluents_rules(changes: dict[str, str], flush: Flush) -> None:
    found = made(**changes).connector().flush
    assert found == flush
    assert duration_ms(found.every)


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (1767323045678, datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T04:04:05+01:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None), datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)
def test_the_time_may_be_that_of_a_field(value: object, moment: datetime) -> None:
    connector = made(timestamp_extractor="RecordField", timestamp_field="at")
    found = connector.adapt(record({"at": value}))
    assert found is not None
    assert found.timestamp == moment


@pytest.mark.parametrize("value", [{}, {"at": None}, {"at": "soon"}, {"at": 10**18}, {"at": True}])
def test_a_record_without_such_a_time_is_bad(value: object) -> None:
    connector = made(timestamp_extractor="RecordField", timestamp_field="at")
    with pytest.raises(BadRecord, match=r"=at: .* is no time"):
        connector.adapt(record(value))


def test_a_null_is_a_bad_record_or_left_out() -> None:
    with pytest.raises(ConnectError, match=r"behavior\.on\.null\.values=ignore"):
        made().adapt(record(None))
    assert made(behavior_on_null_values="ignore").adapt(record(None)) is None


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"timestamp.extractor": "Wallclock"}, "timestamp.extractor"),
        ({"timezone": ""}, "timezone"),
        ({"timezone": "Europe/Berlin"}, "timezone"),
        ({"path.format": ""}, "path.format"),
        ({"path.format": "YYYY/mm"}, "partition.duration.ms"),
        ({"partition.duration.ms": "-1"}, "partition.duration.ms"),
        ({"partition.duration.ms": "86400000"}, "partition.duration.ms"),
        ({"partition.field.name": "a"}, "partition.field.name"),
        ({"format.class": "io.confluent.connect.s3.format.avro.AvroFormat"}, "format.class"),
        (
            {
                "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
                "schema.compatibility": "FULL",
            },
            "schema.compatibility",
        ),
        ({"aws.access.key.id": "a"}, "aws.access.key.id"),
        ({"topics.dir": "a/../x"}, "topics.dir"),
        ({"s3.bucket.name": ""}, "s3.bucket.name"),
    ],
)
def test_what_would_mean_something_else_is_a_fault_of_its_setting(
    changes: dict[str, str], setting: str
) -> None:
    with pytest.raises(SettingsRefused) as refused:
        read_settings(S3SinkConnector, {**BY_TIME, **changes})
    assert [each.setting for each in refused.value.faults] == [setting]


def test_the_store_gets_its_options_and_secret() -> None:
    keys: dict[str, Any] = {"aws.access.key.id": "me", "aws.secret.access.key": "hunter2"}
    given = {**BASE, **keys, "store.url": "http://127.0.0.1:9000", "topics.dir": ""}
    sink = read_settings(S3SinkConnector, given).connector()
    assert sink.url == "s3://lake"
    assert sink.options == {
        "region": "us-west-2", "endpoint": "http://127.0.0.1:9000",
        "access_key_id": "me",
    }  # fmt: skip
    assert sink.secret is not None
    assert sink.secret.reveal() == "hunter2"
    assert "hunter2" not in repr(sink)
