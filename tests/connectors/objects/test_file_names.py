from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import BadRecord, TopicPartition
from streamlog.connectors.objects.file_names import PathTemplate, file_name
from streamlog.errors import ConfigError
from streamlog.record import Record
from tests.connectors.objects.paths import path_of

PLACE = TopicPartition("orders", 3)
TIME = datetime(2025, 1, 31, 23, 30, tzinfo=timezone(timedelta(hours=-2)))


def record(key: Any = "k", value: Any = None) -> Record[Any, Any]:
    return Record(key, value, TIME, (), "orders", 3, 17)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", ""),
        ("{topic}/", "orders/"),
        ("{topic}/p{partition}", "orders/p3/"),
        ("dt={timestamp:%Y-%m-%d}/hr={timestamp:%H}/", "dt=2025-02-01/hr=01/"),
        ("land={value.land}/{key}/", "land=de/k/"),
        ("{value.none}", "__HIVE_DEFAULT_PARTITION__/"),
    ],
)
def test_paths(template: str, expected: str) -> None:
    assert path_of(template, record(value={"land": "de", "none": None})) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("/data/", "leads out"),
        ("a/../../b", "leads out"),
        ("{timestamp:../%H}", "leads out"),
        ("{timestamp}/", "{timestamp} is unknown; there are {topic}"),
        ("{value}/", "{value} is unknown"),
        ("{value.}/", "{value.} is unknown"),
        ("{topic!r}/", "{topic} is unknown"),
        ("{offset}/", "{offset} is unknown"),
        ("{topic", "is no template"),
    ],
)
def test_wrong_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PathTemplate(template)
    assert message in str(raised.value)


@given(st.text(min_size=1, max_size=20) | st.sampled_from(["..", ".", "a/../../b", "/etc"]))
def test_no_value_leads_to_another_directory(text: str) -> None:
    found = path_of("{value.name}/", record(value={"name": text}))
    assert found.endswith("/")
    assert PurePosixPath(found).parts == (found[:-1],)
    assert found not in {"./", "../"}


def test_a_value_that_names_no_path_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="no field name"):
        path_of("{value.name}", record(value={}))
    with pytest.raises(BadRecord, match="too long"):
        path_of("{key}", record("x" * 300))
    with pytest.raises(BadRecord, match="has no fields"):
        path_of("{value.name}", record(value=b"bytes"))


def test_names_sort_as_offsets_do() -> None:
    names = [file_name(PLACE, offset, ".parquet") for offset in (9, 10, 2_000_000_000)]
    assert names == sorted(names)
    assert names[0] == "orders+3+0000000009.parquet"


def test_the_time_of_a_path_is_utc() -> None:
    local = Record(None, None, TIME.astimezone(UTC), (), "t", 0, 0)
    assert path_of("{timestamp:%Y%m%d%H}", local) == path_of("{timestamp:%Y%m%d%H}", record())
