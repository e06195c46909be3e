"""Options of the Spark source: accepted and refused values, and messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.offset_ranges import OffsetRange, parse_options, resolve, split
from spark_bridge.source_options import COLUMNS
from streamlog.errors import ConfigError

GOOD = {"path": "/data", "subscribe": "sales"}


def ranges(
    options: dict[str, str], *, partitions: int = 2, first: int = 3, end: int = 9
) -> list[OffsetRange]:
    parsed = parse_options({**GOOD, **options})
    topics = {"sales": partitions, "salaries": 1, "other": 1}

    def offset_of_time(_topic: str, _number: int, time_ms: int) -> int | None:
        """Map offset n to the time 10 * n ms."""
        return -(-time_ms // 10) if time_ms < end * 10 else None

    return resolve(parsed, topics, lambda _topic, _partition: (first, end), offset_of_time)


def test_all_records_are_read_by_default() -> None:
    assert ranges({}) == [OffsetRange("sales", 0, 3, 9), OffsetRange("sales", 1, 3, 9)]


def test_option_names_are_case_insensitive() -> None:
    assert parse_options({**GOOD, "includeheaders": "TRUE"}).include_headers


def test_offsets_can_be_given_by_partition() -> None:
    read_options = {"startingOffsets": '{"sales": {"0": -2, "1": 5}}'}
    read_options["endingOffsets"] = '{"sales": {"0": 4, "1": -1}}'
    assert ranges(read_options) == [OffsetRange("sales", 0, 3, 4), OffsetRange("sales", 1, 5, 9)]


def test_a_partition_without_records_after_the_start_is_left_out() -> None:
    read_options = {"startingTimestamp": "90", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges({**read_options, "endingTimestamp": "50"}) == []
    assert ranges({**read_options, "endingOffsets": '{"sales": {"0": 4, "1": 5}}'}) == []


def test_an_empty_range_is_left_out() -> None:
    assert ranges({}, first=9) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "has no meaning in a batch query"),
        ({"kafka.enable.auto.commit": "true"}, "sets option 'kafka.enable.auto.commit' itself"),
        ({"subscribePattern": "s.*"}, "subscribe and subscribePattern"),
        ({"minPartitions": "0"}, "whole number of 1 or more"),
        ({"columns": "value,size"}, "names 'size'"),
        ({"isolationLevel": "serializable"}, "read_committed or read_uncommitted"),
        ({"startingTimestamp": "yesterday"}, "ms since 1970"),
        ({"startingTimestamp": "100"}, "no record at or after 100 ms"),
        ({"startingOffsetsByTimestamp": '{"sales": {"0": 1}}'}, "leaves out sales-1"),
        ({"kafka.bootstrap.servers": "x:1"}, "either the option 'path'"),
        ({"subscribe": " , "}, "subscribe"),
        ({"subscribe": "purchases"}, "no topic 'purchases'"),
        ({"startingOffsets": "latest"}, "can't be 'latest'"),
        ({"endingOffsets": "earliest"}, "can't be 'earliest'"),
        ({"startingOffsets": "5"}, "neither 'earliest' nor 'latest' nor JSON"),
        ({"startingOffsets": '{"sales": {"0": 3}}'}, "leaves out sales-1"),
        ({"startingOffsets": '{"sales": {"0": 3, "1": 3, "2": 3}}'}, "names sales-2"),
        ({"startingOffsets": '{"sales": {"0": 3, "1": 10}}'}, "begins at 3 and ends at 9"),
        (
            {
                "startingOffsets": '{"sales": {"0": 3, "1": 7}}',
                "endingOffsets": '{"sales": {"0": 4, "1": 5}}',
            },
            r"sales-1: the start .startingOffsets. is offset 7, after the end .*offset 5",
        ),
        (
            {"startingTimestamp": "80", "endingTimestamp": "40"},
            r"sales-0: the start .startingTimestamp. is offset 8, after the end .*offset 4",
        ),
        ({"includeHeaders": "yes"}, "true or false"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ranges(options)


def test_topics_can_match_a_pattern_and_partitions_be_assigned() -> None:
    by_pattern = parse_options({"path": "/data", "subscribePattern": "sal.*"})
    found = resolve(by_pattern, {"sales": 1, "salaries": 1, "x": 1}, lambda _t, _p: (0, 2))
    assert [each.topic for each in found] == ["salaries", "sales"]
    assigned = parse_options({"path": "/data", "assign": '{"sales": [1, 3]}'})
    found = resolve(assigned, {"sales": 4}, lambda _t, _p: (0, 2))
    assert [each.partition for each in found] == [1, 3]
    with pytest.raises(ConfigError, match="names sales-3"):
        resolve(assigned, {"sales": 3}, lambda _t, _p: (0, 2))


def test_timestamps_take_precedence_over_offsets() -> None:
    read_options = {
        "startingTimestamp": "41",
        "endingTimestamp": "70",
        "startingOffsets": "earliest",
    }
    assert ranges(read_options, partitions=1) == [OffsetRange("sales", 0, 5, 7)]
    late = {"startingTimestamp": "100", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(late) == []
    by_partition = {
        "startingOffsetsByTimestamp": '{"sales": {"0": 41, "1": 0}}',
        "endingOffsetsByTimestamp": '{"sales": {"0": 70, "1": 500}}',
    }
    assert ranges(by_partition) == [OffsetRange("sales", 0, 5, 7), OffsetRange("sales", 1, 3, 9)]


def test_deleted_offsets_are_skipped_without_fail_on_data_loss() -> None:
    read_options = {"startingOffsets": '{"sales": {"0": 1}}', "failOnDataLoss": "false"}
    assert ranges(read_options, partitions=1) == [OffsetRange("sales", 0, 3, 9)]


def test_columns_are_in_spark_s_order() -> None:
    assert parse_options({**GOOD, "columns": "offset, key"}).columns == ("key", "offset")
    assert parse_options(GOOD).columns == COLUMNS


def test_connection_settings_lose_their_prefix() -> None:
    connection_options = {
        "kafka.bootstrap.servers": "x:1",
        "subscribe": "s",
        "kafka.security.protocol": "SSL",
    }
    assert parse_options(connection_options).client == {"security.protocol": "SSL"}


def test_streaming_queries_start_at_the_end_and_can_be_limited() -> None:
    options = parse_options({**GOOD, "maxOffsetsPerTrigger": "7"}, streaming=True)
    assert options.starting.word == "latest"
    assert options.offsets_per_trigger_max == 7
    assert options.group_id == "spark-streamlog-sales"
    with pytest.raises(ConfigError, match="has no meaning in a streaming query"):
        parse_options({**GOOD, "endingOffsets": "latest"}, streaming=True)


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1_000)), max_size=6)


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 300))
def test_split_ranges_cover_everything_in_order(
    sizes: list[tuple[int, int]], min_partitions: int | None, records_max: int | None
) -> None:
    whole = [OffsetRange("t", n, start, start + size) for n, (start, size) in enumerate(sizes)]
    parts = split(whole, min_partitions=min_partitions, records_max=records_max)
    read = [(each.partition, offset) for each in parts for offset in range(each.start, each.end)]
    assert read == [(each.partition, n) for each in whole for n in range(each.start, each.end)]
    assert all(each.start < each.end for each in parts)
    if records_max is not None:
        assert all(each.end - each.start <= records_max for each in parts)


def test_larger_ranges_are_split_first() -> None:
    whole = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)]
    parts = split(whole, min_partitions=10, records_max=None)
    assert [each.partition for each in parts] == [0] * 9 + [1]
